"""How many examples a batch holds, whatever kind of batch it is."""

from collections.abc import Mapping


def count_examples(batch, name="source"):
    """Return the number of examples in a batch, at least 1: the leading dimension of its first component."""
    first = batch
    while isinstance(first, tuple | list | Mapping) and first:
        if isinstance(first, list) and isinstance(first[0], int | float | str):
            return len(first)
        parts = list(first.values()) if isinstance(first, Mapping) else first
        first = parts[0]
    shape = tuple(getattr(first, "shape", ()))
    if not shape or not shape[0]:
        raise ValueError(
            f"{name} yielded {type(first).__name__} of shape {shape}, with no examples along a leading dimension:"
            " batch it first, as in dataset.batch(32); instead of a distributed dataset, give what it was made from"
        )
    return int(shape[0])
