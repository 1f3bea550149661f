"""A transformer given by a few numbers: how many weights, how many operations, how many bytes a training step needs."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import one_of, switch, whole_number
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

    ``tied``: the output projection is the embedding (as in GPT-2); `bt.gpt` has one of its own, and no biases.

    What later models have:

    - ``hidden``: the width of the hidden layer of a block, default 4 x width;
    - ``gated``: as in Llama: a second matrix gates the hidden layer (Shazeer 2020, SwiGLU), there are no biases and no
      dropout, normalizations have a scale alone, and places are told by rotations, which have no weights;
    - ``key_value_heads``: heads that keys and values have, default all (Ainslie et al. 2023); ``head_width``: of one
      head, default width / heads;
    - ``experts``: hidden layers that a block has side by side, of which each token takes ``experts_per_token`` (a
      mixture of experts: Shazeer et al. 2017), and ``shared_experts`` that all tokens take (DeepSeek-AI 2024). All
      plans take it that the tokens are spread evenly over the experts.

    Raises ValueError for what is not a whole number from 1 to a million (``shared_experts``: from 0), for a width that
    is not a multiple of the heads, heads that are no multiple of those of keys and values, and more experts for a token
    than there are.

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
    hidden: int | None = None
    gated: bool = False
    key_value_heads: int | None = None
    head_width: int | None = None
    experts: int = 1
    experts_per_token: int = 1
    shared_experts: int = 0

    def __post_init__(self):
        checked = {"shared_experts": whole_number("shared_experts", self.shared_experts, 0, MOST)}
        for name in ("layers", "width", "heads", "vocabulary", "length", "experts", "experts_per_token"):
            checked[name] = whole_number(name, getattr(self, name), 1, MOST)
        for name in ("hidden", "key_value_heads", "head_width"):
            if getattr(self, name) is not None:
                checked[name] = whole_number(name, getattr(self, name), 1, MOST)
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # numpy's numbers would overflow
        switch("gated", self.gated)
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        if self.heads % (self.key_value_heads or 1):
            raise ValueError(f"heads={self.heads} must be a multiple of key_value_heads={self.key_value_heads}")
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} must be at most experts={self.experts}")

    @property
    def hidden_width(self) -> int:
        """Of the hidden layer of a block, or of one expert: ``hidden``, or 4h."""
        return self.hidden or 4 * self.width

    @property
    def query_width(self) -> int:
        """Numbers of a token's queries, over all heads."""
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def key_value_width(self) -> int:
        """Numbers of a token's keys, over all heads that keys have; values have as many."""
        return self.query_width // self.heads * (self.key_value_heads or self.heads)

    @property
    def weights_of_an_expert(self) -> int:
        """The hidden layer of a block: two matrices, three with a gate, and otherwise the biases."""
        matrices = (3 if self.gated else 2) * self.width * self.hidden_width
        return matrices if self.gated else matrices + self.hidden_width + self.width

    @property
    def weights_of_the_experts(self) -> int:
        """Of a block: those that expert parallelism shares out; 0 without a mixture of experts."""
        return self.experts * self.weights_of_an_expert if self.experts > 1 else 0

    @property
    def weights_of_a_layer(self) -> int:
        """Attention, the hidden layers, the router that chooses among experts, and two normalizations.

        As in GPT-3: 12 h² + 13 h, four matrices of attention and two of four times the size, their biases, and both
        normalizations.
        """
        attention = 2 * self.width * (self.query_width + self.key_value_width)
        router = self.width * self.experts if self.experts > 1 else 0
        experts = (self.experts + self.shared_experts) * self.weights_of_an_expert
        normalizations = 2 * self._weights_of_a_normalization
        biases = 0 if self.gated else self.query_width + 2 * self.key_value_width + self.width
        return attention + router + experts + normalizations + biases

    @property
    def _weights_of_a_normalization(self):
        return self.width if self.gated else 2 * self.width

    @property
    def _places(self):
        return 0 if self.gated else self.length

    @property
    def weights_of_the_vocabulary(self) -> int:
        """(V + s)h of the embeddings of words and places, + Vh of the output projection unless tied."""
        matrices = 1 if self.tied else 2
        return (matrices * self.vocabulary + self._places) * self.width

    @property
    def weights_outside_of_layers(self) -> int:
        """Those of the vocabulary, and of the last normalization."""
        return self.weights_of_the_vocabulary + self._weights_of_a_normalization

    @property
    def weights(self) -> int:
        """All weights: of the layers, of the vocabulary and of the last normalization.

        As in GPT-3: l(12h² + 13h) + (V + s)h + 2h (Narayanan et al. 2021, equation 2, which leaves out the 2h).
        """
        return self.weights_of_a_stage(1)

    @property
    def active_weights(self) -> int:
        """The weights that a token meets: all but those of the experts that it does not take."""
        others = self.experts - self.experts_per_token
        return self.weights - self.layers * others * self.weights_of_an_expert

    def weights_of_a_stage(self, stages: int) -> int:
        """The most weights that one of so many pipeline stages holds: of several, the first has the embeddings too."""
        weights = -(-self.layers // stages) * self.weights_of_a_layer
        if stages == 1:
            return weights + self.weights_outside_of_layers
        return weights + (self.vocabulary + self._places) * self.width

    def flops(self, batch: int, recompute: str = "none", chunk_attention: int = 1) -> Breakdown:
        """Return a `Breakdown` of the FLOPs of one training step on ``batch`` sequences.

        A matrix of N numbers takes 2N FLOPs a token forward and twice that backward: 6N (Kaplan et al. 2020); of the
        experts those count that a token takes. Attention adds 12 l h s a token, with h the width of all heads
        (Chowdhery et al. 2022, PaLM, appendix B), the masked half counted. The embedding looks up and multiplies
        nothing. With ``recompute="everything"`` the blocks run forward twice, with "attention" that: 16 l h s. In
        chunks (``chunk_attention`` above 1) the scores alone are computed again, 14 l h s, as in FlashAttention
        (Dao et al. 2022).
        """
        whole_number("batch", batch, 1)
        one_of("recompute", recompute, RECOMPUTE)
        chunks = whole_number("chunk_attention", chunk_attention, 1)
        h, s = self.width, self.length
        tokens = batch * s
        count = amount(tokens, "tokens")
        passes = 8 if recompute == "everything" else 6
        attention = 12 if recompute == "none" else 16
        if chunks > 1:
            attention = 18 if recompute == "everything" else 14
        hidden_layers = self.experts_per_token + self.shared_experts
        matrices_of_an_expert = (3 if self.gated else 2) * h * self.hidden_width
        matrices = self.layers * (2 * h * (self.query_width + self.key_value_width))
        matrices += self.layers * hidden_layers * matrices_of_an_expert
        if self.experts > 1:
            matrices += self.layers * h * self.experts  # the router
        logits = h * self.vocabulary
        how_attention = f"{attention} x {self.layers} layers x {self.query_width:,} wide x {s:,} tokens x {count}"
        lines = [
            Line("matrices", passes * matrices * tokens, f"{passes} x {amount(matrices, 'weights')} x {count}"),
            Line("attention", attention * self.layers * self.query_width * s * tokens, how_attention),
            Line("logits", 6 * logits * tokens, f"6 x {amount(logits, 'weights')} x {count}"),
        ]
        return Breakdown(f"Operations of a training step, {batch} x {s:,} tokens", "FLOP", lines)

    def scores_of_a_layer(
        self, batch: int, policy: str = "mixed_bfloat16", tensor_parallel: int = 1, context_parallel: int = 1
    ) -> float:
        """Return the bytes that the backward pass of one block's attention needs for the scores, 5as²b in 16 bits.

        Of the 5, 4 are two numbers of 2 bytes, and 1 is a dropout mask (Korthikanti et al. 2022, section 4.1). Without
        dropout (``gated``) the softmax is the only one: 2as²b. Each device has a share of the heads, and with context
        parallelism of the rows.
        """
        each = BYTES_OF[one_of("policy", policy, BYTES_OF)]
        bytes_of_a_score = each if self.gated else 2 * each + 1
        scores = whole_number("batch", batch, 1) * self.heads * self.length**2
        return bytes_of_a_score * scores / tensor_parallel / context_parallel

    def activations_of_a_layer(
        self,
        batch: int,
        policy: str = "mixed_bfloat16",
        recompute: str = "none",
        tensor_parallel: int = 1,
        sequence_parallel: bool = False,
        context_parallel: int = 1,
        chunk_attention: int = 1,
    ) -> float:
        """Return the bytes that the backward pass needs of one block, on each of t ``tensor_parallel`` devices.

        As in GPT-3, in 16 bits, sbh(10 + 24/t + 5as/(ht)), which for one device is sbh(34 + 5as/h); with
        ``sequence_parallel`` a t-th of the latter (Korthikanti et al. 2022, equations 2, 1 and 4). Each device has the
        whole of what both normalizations and both parts after them read (4 numbers) and of two dropout masks (a byte
        each), and a share of 12 numbers within the parts: queries, keys, values and what the projection reads, and
        twice the hidden layer. With ``context_parallel`` each device has a share of the tokens, and of all this.

        With a gate there are no masks, and four hidden numbers in place of two: the gate, what comes of its activation,
        what it gates, and the product. With experts the hidden numbers are those of all experts that a token takes, and
        each of these has what it reads and what it gives, too.

        ``recompute="attention"``, or ``chunk_attention`` above 1, leaves out the scores, the term with s/h (their
        selective recomputation), "everything" keeps the block's input alone.
        """
        one_of("recompute", recompute, RECOMPUTE)
        chunks = whole_number("chunk_attention", chunk_attention, 1)
        whole_number("tensor_parallel", tensor_parallel, 1)
        whole_number("context_parallel", context_parallel, 1)
        each = BYTES_OF[one_of("policy", policy, BYTES_OF)]
        tokens = whole_number("batch", batch, 1) * self.length / context_parallel
        sharers = tensor_parallel if sequence_parallel else 1  # of what lies between the parts
        if recompute == "everything":
            return each * tokens * self.width / sharers
        between = 4 * each * self.width
        if not self.gated:
            between += 2 * self.width
        if self.experts > 1:
            between += 2 * each * self.experts_per_token * self.width
        hidden_layers = self.experts_per_token + self.shared_experts
        within = 2 * self.query_width + 2 * self.key_value_width
        within += (4 if self.gated else 2) * hidden_layers * self.hidden_width
        size = tokens * (between / sharers + each * within / tensor_parallel)
        if recompute == "none" and chunks == 1:
            size += self.scores_of_a_layer(batch, policy, tensor_parallel, context_parallel)
        return size

    def activations(
        self,
        batch: int,
        policy: str = "mixed_bfloat16",
        recompute: str = "none",
        tensor_parallel: int = 1,
        sequence_parallel: bool = False,
        blocks: float | None = None,
        context_parallel: int = 1,
        chunk_attention: int = 1,
    ) -> Breakdown:
        """Return a `Breakdown` of the activations of ``batch`` sequences on a device: of the blocks and of the logits.

        In bytes. ``blocks``: of how many blocks a device keeps them at a time, default: all. What is computed again is
        there for one block at a time, of the scores one of ``chunk_attention`` parts.
        """
        tokens = whole_number("batch", batch, 1) * self.length / whole_number("context_parallel", context_parallel, 1)
        shards = tensor_parallel, sequence_parallel, context_parallel
        block = self.activations_of_a_layer(batch, policy, recompute, *shards, chunk_attention)
        blocks = blocks or self.layers
        kept = blocks * block
        how = f"{blocks:g} blocks x {amount(block, 'bytes')} (Korthikanti et al. 2022)"
        if recompute == "everything":
            kept += self.activations_of_a_layer(batch, policy, "attention", *shards)
            how += ", and one block being recomputed"
        lines = [Line("blocks", kept, how)]
        if recompute != "none" or chunk_attention > 1:
            scores = self.scores_of_a_layer(batch, policy, tensor_parallel, context_parallel)
            how_scores = f"{amount(scores, 'bytes')} of the block whose attention is computed again"
            if chunk_attention > 1:
                how_scores += f" / {chunk_attention} chunks"
            lines.append(Line("scores", scores / chunk_attention, how_scores))
        how_logits = f"4 bytes x {amount(tokens, 'tokens')} x {self.vocabulary:,} words, in float32"
        if tensor_parallel > 1:
            how_logits += f" / {tensor_parallel}"
        lines.append(Line("logits", 4 * tokens * self.vocabulary / tensor_parallel, how_logits))
        return Breakdown(f"Activations of {batch} x {self.length:,} tokens", "bytes", lines)

    def states(self, policy: str = "mixed_bfloat16", optimizer: str = "adamw", stages: int = 1) -> Breakdown:
        """Return a `Breakdown` of the bytes that weights take in training, before any activation.

        With pipeline ``stages``: those of the fullest.

        Keras keeps weights, gradients and the optimizer's slots in float32, and under a mixed policy a 16-bit copy of
        the weights: 18 bytes a weight for AdamW. ZeRO (Rajbhandari et al. 2020) counts 16, with gradients in 16 bits.
        """
        weights = self.weights_of_a_stage(whole_number("stages", stages, 1))
        return training_state(weights, policy, optimizer)


def training_state(weights, policy="mixed_bfloat16", optimizer="adamw"):
    """Return a `Breakdown` of the bytes that so many weights take in training, as `Transformer.states` counts them."""
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
    "Llama 3 405 B": Transformer(
        126, 16_384, 128, 128_256, 8192, tied=False, hidden=53_248, gated=True, key_value_heads=8
    ),
    "Mixtral 8x7B": Transformer(
        *(32, 4096, 32, 32_000, 4096),
        tied=False,
        hidden=14_336,
        gated=True,
        key_value_heads=8,
        experts=8,
        experts_per_token=2,
    ),
}
"""Sizes to ask about. GPT-2: Radford et al. 2019; GPT-3: Brown et al. 2020; 1 T: Narayanan et al. 2021, table 1;
Llama 3: Grattafiori et al. 2024, table 3; Mixtral 8x7B, a mixture of experts: Jiang et al. 2024, table 1.

Example::

    for name, model in bt.SIZES.items():
        print(name, model.weights)
"""
