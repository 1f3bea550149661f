"""How data lies on disk: folders, TFRecord shards, arrays; written beside and renamed, remade when damaged."""
