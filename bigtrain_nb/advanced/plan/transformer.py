"""A transformer given by a few numbers: its parameters, its operations, and the bytes that a block keeps."""

from dataclasses import dataclass

from bigtrain_nb.advanced.plan.breakdown import Breakdown, Line
from bigtrain_nb.common.checks import integer, one_of, switch
from bigtrain_nb.common.words import amount

RECOMPUTE = ("none", "selective", "everything")
NEWTON_SCHULZ = 5
"""Newton-Schulz steps in Muon."""


@dataclass(frozen=True)
class Transformer:
    """A dense decoder: ``layers`` blocks of ``width`` with ``heads``, a vocabulary, sequences of ``length`` tokens.

    As in GPT-2 and GPT-3, with ``tied``: the output projection is the embedding; `bt.gpt` has a separate one, and no
    biases. Options of later models:

    - ``hidden``: the width of a block's hidden layer, default 4 x width;
    - ``gated``: as in Llama: a second matrix gates the hidden layer (Shazeer 2020, SwiGLU), there are no biases,
      normalizations have only a scale, and positions are encoded by rotations, which have no parameters;
    - ``key_value_heads``: the number of KV heads, default all (Ainslie et al. 2023).

    Raises ValueError for values that are not integers from 1 to a million, for a width that is not a multiple of the
    heads, and for heads that are not a multiple of the KV heads.

    Example::

        model = bt.Transformer(layers=12, width=768, heads=12, length=1024)
        print(model.weights)  # 124,439,808
        print(model.flops(batch=8))
    """

    layers: int
    width: int
    heads: int
    vocabulary: int = 50_257
    length: int = 2048
    tied: bool = True
    hidden: int | None = None
    gated: bool = False
    key_value_heads: int | None = None

    def __post_init__(self):
        for name in ("layers", "width", "heads", "vocabulary", "length", "hidden", "key_value_heads"):
            value = getattr(self, name)
            if value is not None or name not in ("hidden", "key_value_heads"):
                object.__setattr__(self, name, integer(name, value, 1, 10**6))  # numpy's would overflow
        switch("gated", self.gated)
        switch("tied", self.tied)
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        if self.heads % (self.key_value_heads or 1):
            raise ValueError(f"heads={self.heads} must be a multiple of key_value_heads={self.key_value_heads}")

    @property
    def hidden_width(self) -> int:
        """Width of a block's hidden layer: ``hidden``, or 4h."""
        return self.hidden or 4 * self.width

    @property
    def key_value_width(self) -> int:
        """Elements of a token's keys, over all KV heads; values have as many."""
        return self.width // self.heads * (self.key_value_heads or self.heads)

    @property
    def matrices_of_a_layer(self) -> int:
        """Parameters of a block's matmuls: of attention and of the hidden layer."""
        return sum(rows * columns for rows, columns in self.shapes_of_a_layer)

    @property
    def weights_of_a_layer(self) -> int:
        """Parameters of the matrices, their biases and two normalizations; in GPT-3 12 h² + 13 h."""
        biases = 3 * self.width + 2 * self.key_value_width + self.hidden_width
        return self.matrices_of_a_layer + (2 * self.width if self.gated else 4 * self.width + biases)

    @property
    def embeddings(self) -> int:
        """Parameters of the token embedding, and of the position embedding if there is one."""
        return (self.vocabulary + (0 if self.gated else self.length)) * self.width

    @property
    def weights_outside_of_layers(self) -> int:
        """Parameters of the embeddings, the output projection unless tied, and the last normalization."""
        projection = 0 if self.tied else self.vocabulary * self.width
        return self.embeddings + projection + (1 if self.gated else 2) * self.width

    @property
    def weights(self) -> int:
        """Parameters; in GPT-3 l(12h² + 13h) + (V + s)h + 2h (Narayanan et al. 2021, equation 2, without the 2h)."""
        return self.layers * self.weights_of_a_layer + self.weights_outside_of_layers

    def flops(self, batch: int, recompute: str = "none") -> Breakdown:
        """Return a `Breakdown` of the FLOPs of one training step on ``batch`` sequences.

        A matrix of N elements takes 2N FLOPs per token forward and twice that backward: 6N (Kaplan et al. 2020).
        Attention adds 12 l h s per token, with h the width and the masked half counted (Chowdhery et al. 2022, PaLM,
        appendix B): a fused kernel skips that half, and recomputes the scores. The embedding has no matmul. With
        ``recompute="everything"`` the blocks run forward twice: 8N and 16 l h s. With "selective" half of their matmuls
        do, without attention: 7N.
        """
        tokens = integer("batch", batch, 1) * self.length
        passes = {"none": 6, "selective": 7, "everything": 8}[one_of("recompute", recompute, RECOMPUTE)]
        scores = 16 if recompute == "everything" else 12
        matrices, logits = self.layers * self.matrices_of_a_layer, self.width * self.vocabulary
        count = amount(tokens, "tokens")
        how = f"{scores} x {self.layers} layers x {self.width:,} wide x {self.length:,} tokens x {count}"
        lines = [
            Line("matrices", passes * matrices * tokens, f"{passes} x {amount(matrices, 'parameters')} x {count}"),
            Line("attention", scores * self.layers * self.width * self.length * tokens, how),
            Line("logits", 6 * logits * tokens, f"6 x {amount(logits, 'parameters')} x {count}"),
        ]
        return Breakdown(f"Operations of a training step, {batch} x {self.length:,} tokens", "FLOP", lines)

    @property
    def shapes_of_a_layer(self) -> list[tuple[int, int]]:
        """(rows, columns) of each matrix of a block: queries, keys, values, output projection, hidden layer."""
        attention = [(self.width, self.width), (self.width, self.key_value_width)] * 2
        return attention + [(self.width, self.hidden_width)] * (3 if self.gated else 2)

    def orthogonalization_flops(self) -> list[float]:
        """Return the FLOPs of Muon's update for each matrix of a block (Jordan et al. 2024, "Muon").

        Five Newton-Schulz steps on a full matrix of m x n, with m <= n: X Xᵀ, its square, and the result times X take
        4 m² n + 2 m³ per step.
        """
        sides = [sorted(shape) for shape in self.shapes_of_a_layer]
        return [NEWTON_SCHULZ * (4 * m**2 * n + 2 * m**3) for m, n in sides]

    def activations_of_a_layer(self, batch: int, recompute: str = "none", number: int = 2) -> int:
        """Return the bytes that the backward pass needs of one block, with ``number`` bytes per element.

        Attention is fused (Dao et al. 2022) and keeps no scores, which would take 5as²b more bytes in 16 bits with
        dropout. Per token a block keeps:

        - "none": four times its width (the inputs of both normalizations and of both parts after them), queries, keys,
          values and the projection's input, and the hidden layer twice, with a gate three times. In GPT-3 that is 32sbh
          bytes, the 34 of Korthikanti et al. 2022 without dropout masks;
        - "selective": its input, queries, keys, values and the projection's input, and the hidden layer once: about
          as much as torchtitan's ``selective`` keeps, which recomputes every second matmul
          (torchtitan/distributed/activation_checkpoint.py);
        - "everything": its input.
        """
        around_attention = 2 * self.width + 2 * self.key_value_width
        numbers = {
            "none": 4 * self.width + around_attention + (3 if self.gated else 2) * self.hidden_width,
            "selective": self.width + around_attention + self.hidden_width,
            "everything": self.width,
        }
        kept = numbers[one_of("recompute", recompute, RECOMPUTE)]
        return number * integer("batch", batch, 1) * self.length * kept


_LLAMA_3 = {"vocabulary": 128_256, "length": 8192, "tied": False, "gated": True, "key_value_heads": 8}

SIZES: dict[str, Transformer] = {
    "GPT-2": Transformer(12, 768, 12, 50_257, 1024),
    "7 B": Transformer(32, 4096, 32, 32_000, 2048),
    "70 B": Transformer(80, 8192, 64, 32_000, 4096),
    "GPT-3": Transformer(96, 12_288, 96, 50_257, 2048),
    "1 T": Transformer(128, 25_600, 160, 51_200, 2048),
    "Llama 3 8 B": Transformer(32, 4096, 32, hidden=14_336, **_LLAMA_3),
    "Llama 3 70 B": Transformer(80, 8192, 64, hidden=28_672, **_LLAMA_3),
    "Llama 3 405 B": Transformer(126, 16_384, 128, hidden=53_248, **_LLAMA_3),
}
"""Example sizes. GPT-2: Radford et al. 2019; GPT-3: Brown et al. 2020; 1 T: Narayanan et al. 2021, table 1;
Llama 3: Grattafiori et al. 2024, table 3.

Example::

    for name, model in bt.SIZES.items():
        print(name, model.weights)
"""
