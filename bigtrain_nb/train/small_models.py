"""Two small models that behave like large ones: a residual net for images and a transformer for bytes of text."""

from functools import partial

from bigtrain_nb.advanced.parallel.attention import chunk_attention as in_chunks
from bigtrain_nb.advanced.parallel.recompute import recompute as recomputed
from bigtrain_nb.common.checks import integer, one_of, share, switch
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.train.model import Model

GROUPS = 8
"""Groups of channels that GroupNormalization takes together; the width is a multiple of it."""

_layers = keras.layers


def conv_net(
    classes: int = 8,
    image_size: int = 64,
    width: int = 16,
    blocks: int = 3,
    norm: str = "group",
    recompute: bool = False,
    micro_batches: int = 1,
) -> Model:
    """Return an untrained residual net: float32 images [batch, s, s, 3] in -1..1 -> float32 logits [batch, classes].

    A convolution to ``width`` channels, then ``blocks`` residual blocks, each of which halves the sides; from the
    second on each doubles the channels. Pre-activation as in He et al. 2016, "Identity Mappings in Deep Residual
    Networks", with averages on the way past a block as in He et al. 2019, "Bag of Tricks". ``norm``: "group" (Wu & He
    2018), the same for every split of a batch, or "batch", whose statistics see a micro-batch or a replica's share.
    ``recompute`` lets each block be computed again in the backward pass.

    The default has 77,976 weights. Raises ValueError for settings that make no sense, and, from Keras, with "group" for
    a ``width`` that is no multiple of 8.

    Example::

        model = bt.conv_net(classes=10, image_size=32)
        print(model(tf.zeros([4, 32, 32, 3])).shape)  # (4, 10)
    """
    sizes = {"classes": classes, "image_size": image_size, "width": width, "blocks": blocks}
    for name, value in sizes.items():
        integer(name, value, 1)
    switch("recompute", recompute)
    one_of("norm", norm, ("group", "batch"))
    images = keras.Input((image_size, image_size, 3), name="image")
    x = _conv(width)(images)
    for block in range(blocks):
        residual_block = partial(_residual_block, channels=width * 2**block, norm=norm)
        x = _block(x, residual_block, recompute)
    x = _activated(x, norm)
    x = _layers.GlobalAveragePooling2D()(x)
    logits = _layers.Dense(classes, dtype="float32", name="logits")(x)
    return Model(images, logits, name="conv_net", micro_batches=micro_batches)


def gpt(
    vocabulary: int = 256,
    length: int = 128,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
    recompute: bool = False,
    chunk_attention: int = 1,
    micro_batches: int = 1,
    fully_shard: bool = False,
    packed: bool = False,
) -> Model:
    """Return an untrained language model: int32 tokens [batch, length] -> float32 logits [batch, length, vocabulary].

    The logits at place i see tokens 0 to i and are for token i + 1; by default tokens are bytes. A pre-norm causal
    transformer with learned positions: GPT-2, Radford et al. 2019, "Language Models are Unsupervised Multitask
    Learners", but for an output projection of its own, and without biases, as in Chowdhery et al. 2022, "PaLM".
    Matrices start normal with a deviation of 0.02. ``recompute`` lets each block be computed again, and
    ``chunk_attention=K`` each attention layer work in K chunks: see `bigtrain_nb.chunk_attention`.

    ``packed=True`` takes rows of several documents, {"tokens", "segments", "positions"}, int32 [batch, length] each, as
    `bigtrain_nb.TokenRows` gives them: a token sees those before it in its own segment, and its position is the place
    in the document. So a document's logits are those that it has alone.

    ``fully_shard=True`` shards all weights of the blocks over the replicas of the strategy in whose scope the model is
    made: see `Model`.

    The default has 475,776 weights. A head takes ``width // heads`` of the width. Raises ValueError for settings that
    make no sense.

    Example::

        model = bt.gpt(length=16, width=32, layers=1)
        print(model(tf.zeros([4, 16], "int32")).shape)  # (4, 16, 256)
    """
    sizes = {"vocabulary": vocabulary, "length": length, "width": width, "layers": layers}
    for name, value in sizes.items():
        integer(name, value, 1)
    integer("heads", heads, 1, width)
    share("dropout", dropout)
    switch("recompute", recompute)
    switch("fully_shard", fully_shard)
    switch("packed", packed)

    def build():
        tokens = keras.Input((length,), dtype="int32", name="tokens")
        x = _layers.Embedding(vocabulary, width, embeddings_initializer=_normal())(tokens)
        if packed:
            segments = keras.Input((length,), dtype="int32", name="segments")
            places = keras.Input((length,), dtype="int32", name="positions")
            inputs = {"tokens": tokens, "segments": segments, "positions": places}
            x = Positions(name="position_embedding")(x, places)
            same_segment = keras.ops.equal(segments[:, :, None], segments[:, None, :])
        else:
            inputs = tokens
            x = Positions()(x)
            same_segment = None
        x = _layers.Dropout(dropout)(x)
        transformer_block = partial(_transformer_block, width=width, heads=heads, dropout=dropout)
        for _ in range(layers):
            x = _block(x, transformer_block, recompute, fully_shard, same_segment)
        x = _normalized(x)
        logits = _matrix(vocabulary, dtype=_at_least_float32(), name="logits")(x)
        return keras.Model(inputs, logits, name="gpt")

    model = Model.of(
        build,
        micro_batches=micro_batches,
        fully_shard=_is_block if fully_shard else None,
    )
    return model if chunk_attention == 1 else in_chunks(model, chunks=chunk_attention)


@keras.saving.register_keras_serializable("bigtrain_nb")
class Positions(_layers.Layer):
    """Adds a learned vector for its place to each token: [batch, length, width] -> the same shape.

    ``places`` are int32 [batch, length]; without them the first token of a row has place 0, the next one 1.
    """

    def build(self, shape):
        self.table = self.add_weight(shape[1:], initializer=_normal(), name="positions")

    def call(self, x, places=None):
        return x + (self.table if places is None else keras.ops.take(self.table, places, axis=0))


def _block(x, make, recompute, fully_shard=False, mask=None):
    """Return what the layers that ``make`` puts on a tensor, and on a mask if there is one, give for ``x``."""
    given = [x] if mask is None else [x, mask]
    if not (recompute or fully_shard):
        return make(*given)
    inputs = [keras.Input(each.shape[1:], dtype=each.dtype) for each in given]
    block = keras.Model(inputs, make(*inputs))
    return recomputed(block)(given) if recompute else block(given)


def _is_block(layer):
    return isinstance(layer, keras.Model)


def _residual_block(x, channels, norm):
    entry = _activated(x, norm)
    skip = _layers.AveragePooling2D(2, padding="same")(entry)
    skip = _conv(channels, kernel=1)(skip)
    x = _conv(channels, strides=2)(entry)
    x = _activated(x, norm)
    x = _conv(channels)(x)
    return _layers.Add()([skip, x])


def _activated(x, norm):
    normalize = _layers.GroupNormalization(GROUPS) if norm == "group" else _layers.BatchNormalization()
    x = normalize(x)
    return _layers.ReLU()(x)


def _conv(channels, kernel=3, strides=1):
    return _layers.Conv2D(channels, kernel, strides, "same", use_bias=False, kernel_initializer="he_normal")


def _transformer_block(x, mask=None, *, width, heads, dropout):
    head_size = width // heads
    attend = _layers.MultiHeadAttention(heads, head_size, dropout=dropout, use_bias=False, kernel_initializer=_normal())
    entry = _normalized(x)
    attended = attend(entry, entry, attention_mask=mask, use_causal_mask=True)
    x = _layers.Add()([x, _layers.Dropout(dropout)(attended)])

    change = _normalized(x)
    change = _matrix(4 * width, activation="gelu")(change)
    change = _matrix(width)(change)
    return _layers.Add()([x, _layers.Dropout(dropout)(change)])


def _normalized(x):
    return _layers.LayerNormalization(center=False)(x)


def _matrix(width, **settings):
    return _layers.Dense(width, use_bias=False, kernel_initializer=_normal(), **settings)


def _at_least_float32():
    """The dtype of logits: half precision would round the loss; float64 stays what it is."""
    return keras.backend.result_type("float32", keras.config.dtype_policy().variable_dtype)


def _normal():
    return keras.initializers.RandomNormal(stddev=0.02)
