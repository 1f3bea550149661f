"""A transformer given by six numbers: how many weights, how many operations, how many bytes a training step needs."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import one_of, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line

BYTES_OF = {"float32": 4, "mixed_float16": 2, "mixed_bfloat16": 2}
"""Bytes of a number that layers compute with, for each Keras dtype policy. Weights stay in float32."""
RECOMPUTE = ("none", "attention", "everything")

SLOTS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2}
"""Tensors that an optimizer keeps for each weight, of the weight's own shape, with the settings Keras starts with.

Adam: Kingma & Ba 2015; AdamW: Loshchilov & Hutter 2019; Lion: Chen et al. 2023; "momentum" is SGD(momentum=0.9).
"""
MOST = 10**6


@dataclass(frozen=True)
class Transformer:
    """A decoder as in GPT-2 and GPT-3: ``layers`` blocks of ``width`` with ``heads``, a vocabulary, ``length`` tokens.

    The hidden layer of a block is four times as wide. ``tied``: the output projection is the embedding (as in GPT-2);
    `bt.gpt` has one of its own, and no biases. Raises ValueError for what is not a whole number from 1 to a million,
    and for a width that is not a multiple of the heads.

    Example::

        model = bt.Transformer(layers=12, width=768, heads=12, length=1024)
        print(model.weights)  # 124,439,808
        print(model.flops(batch=8), model.states(optimizer="adamw"))
    """

    layers: int
    width: int
    heads: int
    vocabulary: int = 50_257
    length: int = 2048
    tied: bool = True

    def __post_init__(self):
        for name in ("layers", "width", "heads", "vocabulary", "length"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1, MOST))  # numpy's would overflow
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")

    @property
    def weights_of_a_layer(self) -> int:
        """12 h² + 13 h: four matrices of attention, two of four times the size, their biases, two normalizations."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def weights_of_the_vocabulary(self) -> int:
        """(V + s)h of the embeddings of words and places, + Vh of the output projection unless tied."""
        matrices = 1 if self.tied else 2
        return (matrices * self.vocabulary + self.length) * self.width

    @property
    def weights_outside_of_layers(self) -> int:
        """Those of the vocabulary, and 2h of the last normalization."""
        return self.weights_of_the_vocabulary + 2 * self.width

    @property
    def weights(self) -> int:
        """All weights: l(12h² + 13h) + (V + s)h + 2h of the last normalization, + Vh unless tied.

        Narayanan et al. 2021, equation 2, which leaves out the 2h.
        """
        return self.weights_of_a_stage(1)

    def weights_of_a_stage(self, stages: int) -> int:
        """The most weights that one of so many pipeline stages holds: of several, the first has the embeddings too."""
        weights = -(-self.layers // stages) * self.weights_of_a_layer
        if stages == 1:
            return weights + self.weights_outside_of_layers
        return weights + (self.vocabulary + self.length) * self.width

    def flops(self, batch: int, recompute: str = "none") -> Breakdown:
        """Return a `Breakdown` of the FLOPs of one training step on ``batch`` sequences.

        A matrix of N numbers takes 2N FLOPs a token forward and twice that backward: 6N (Kaplan et al. 2020).
        Attention adds 12 l h s a token (Chowdhery et al. 2022, PaLM, appendix B), the masked half counted. The
        embedding looks up and multiplies nothing. With ``recompute="everything"`` the blocks run forward twice.
        """
        whole_number("batch", batch, 1)
        one_of("recompute", recompute, RECOMPUTE)
        h, s = self.width, self.length
        tokens = batch * s
        count = amount(tokens, "tokens")
        passes = 8 if recompute == "everything" else 6
        attention = 12 if recompute == "none" else 16
        matrices = self.layers * 12 * h**2
        logits = h * self.vocabulary
        how_attention = f"{attention} x {self.layers} layers x {h:,} wide x {s:,} tokens x {count}"
        lines = [
            Line("matrices", passes * matrices * tokens, f"{passes} x {amount(matrices, 'weights')} x {count}"),
            Line("attention", attention * self.layers * h * s * tokens, how_attention),
            Line("logits", 6 * logits * tokens, f"6 x {amount(logits, 'weights')} x {count}"),
        ]
        return Breakdown(f"Operations of a training step, {batch} x {s:,} tokens", "FLOP", lines)

    def activations_of_a_layer(
        self,
        batch: int,
        policy: str = "mixed_bfloat16",
        recompute: str = "none",
        tensor_parallel: int = 1,
        sequence_parallel: bool = False,
    ) -> float:
        """Return the bytes that the backward pass needs of one block, on each of t ``tensor_parallel`` devices.

        In 16 bits sbh(10 + 24/t + 5as/(ht)), which for one device is sbh(34 + 5as/h); with ``sequence_parallel`` a t-th
        of the latter (Korthikanti et al. 2022, equations 2, 1 and 4). Each device has the whole of what both
        normalizations and both parts after them read (4 numbers) and of two dropout masks (a byte each), and a share of
        12 numbers within the parts. Of the 5, 4 are two numbers of 2 bytes, and 1 is a mask.

        ``recompute="attention"`` leaves out the term with s/h (their selective recomputation), "everything" keeps the
        block's input alone.
        """
        one_of("recompute", recompute, RECOMPUTE)
        whole_number("tensor_parallel", tensor_parallel, 1)
        each = BYTES_OF[one_of("policy", policy, BYTES_OF)]
        tokens = whole_number("batch", batch, 1) * self.length
        sharers = tensor_parallel if sequence_parallel else 1  # of what lies between the parts
        if recompute == "everything":
            return each * tokens * self.width / sharers
        size = tokens * self.width * ((4 * each + 2) / sharers + 12 * each / tensor_parallel)
        if recompute == "none":
            size += tokens * self.heads * self.length * (2 * each + 1) / tensor_parallel
        return size

    def activations(
        self,
        batch: int,
        policy: str = "mixed_bfloat16",
        recompute: str = "none",
        tensor_parallel: int = 1,
        sequence_parallel: bool = False,
        blocks: float | None = None,
    ) -> Breakdown:
        """Return a `Breakdown` of the activations of ``batch`` sequences on a device: of the blocks and of the logits.

        In bytes. ``blocks``: of how many blocks a device keeps them at a time, default: all.
        """
        tokens = whole_number("batch", batch, 1) * self.length
        shards = tensor_parallel, sequence_parallel
        block = self.activations_of_a_layer(batch, policy, recompute, *shards)
        blocks = blocks or self.layers
        kept = blocks * block
        how = f"{blocks:g} blocks x {amount(block, 'bytes')} (Korthikanti et al. 2022)"
        if recompute == "everything":
            kept += self.activations_of_a_layer(batch, policy, "none", *shards)
            how += ", and one block being recomputed"
        how_logits = f"4 bytes x {amount(tokens, 'tokens')} x {self.vocabulary:,} words, in float32"
        if tensor_parallel > 1:
            how_logits += f" / {tensor_parallel}"
        lines = [
            Line("blocks", kept, how),
            Line("logits", 4 * tokens * self.vocabulary / tensor_parallel, how_logits),
        ]
        return Breakdown(f"Activations of {batch} x {self.length:,} tokens", "bytes", lines)

    def states(self, policy: str = "mixed_bfloat16", optimizer: str = "adamw", stages: int = 1) -> Breakdown:
        """Return a `Breakdown` of the bytes that weights take in training, before any activation.

        With pipeline ``stages``: those of the fullest.

        Keras keeps weights, gradients and the optimizer's slots in float32, and under a mixed policy a 16-bit copy of
        the weights: 18 bytes a weight for AdamW. ZeRO (Rajbhandari et al. 2020) counts 16, with gradients in 16 bits.
        """
        weights = self.weights_of_a_stage(whole_number("stages", stages, 1))
        one_of("policy", policy, BYTES_OF)
        one_of("optimizer", optimizer, SLOTS)
        tensors = {  # bytes of each for a weight
            "weights": 4,
            "16-bit copies": 0 if policy == "float32" else 2,
            "gradients": 4,
            f"{optimizer} slots": 4 * SLOTS[optimizer],
        }
        count = amount(weights, "weights")
        lines = [Line(name, size * weights, f"{count} x {size} bytes") for name, size in tensors.items() if size]
        return Breakdown(f"Training state of {count}", "bytes", lines)


SIZES: dict[str, Transformer] = {
    "GPT-2": Transformer(12, 768, 12, 50_257, 1024),
    "7 B": Transformer(32, 4096, 32, 32_000, 2048),
    "70 B": Transformer(80, 8192, 64, 32_000, 4096),
    "GPT-3": Transformer(96, 12_288, 96, 50_257, 2048),
    "1 T": Transformer(128, 25_600, 160, 51_200, 2048),
}
"""Sizes to ask about. GPT-2: Radford et al. 2019; GPT-3: Brown et al. 2020; 1 T: Narayanan et al. 2021, table 1.

Example::

    for name, model in bt.SIZES.items():
        print(name, model.weights)
"""
