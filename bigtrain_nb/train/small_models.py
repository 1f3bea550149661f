"""Two small models that behave like large ones: a residual network for images, a transformer for text bytes."""

from functools import partial

from bigtrain_nb.common.checks import integer, one_of, share, switch
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.train.model import Model

GROUPS = 8
"""Number of channel groups for GroupNormalization; the width is a multiple of it."""

_layers = keras.layers


def conv_net(
    classes: int = 8,
    image_size: int = 64,
    width: int = 16,
    blocks: int = 3,
    norm: str = "group",
    nested_blocks: bool = False,
    micro_batches: int = 1,
) -> Model:
    """Return an untrained ResNet: float32 images [batch, s, s, 3] in -1..1 -> float32 logits [batch, classes].

    A convolution to ``width`` channels, then ``blocks`` residual blocks, each of which halves height and width; from
    the second on, each doubles the channels. Pre-activation as in He et al. 2016, "Identity Mappings in Deep Residual
    Networks", with average pooling on the shortcut as in He et al. 2019, "Bag of Tricks". ``norm``: "group" (Wu & He
    2018), the same for every split of a batch, or "batch", with statistics of a micro-batch or a replica's share.
    ``nested_blocks=True`` makes each block a layer, "block_0" and so on, for `bigtrain_nb.recompute`.

    The default has 77,976 weights. Raises ValueError for invalid settings and, from Keras, for a ``width`` that is not
    a multiple of 8 with "group".

    Example::

        model = bt.conv_net(classes=10, image_size=32)
        print(model(tf.zeros([4, 32, 32, 3])).shape)  # (4, 10)
    """
    sizes = {"classes": classes, "image_size": image_size, "width": width, "blocks": blocks}
    for name, value in sizes.items():
        integer(name, value, 1)
    switch("nested_blocks", nested_blocks)
    one_of("norm", norm, ("group", "batch"))
    images = keras.Input((image_size, image_size, 3), name="image")
    x = _conv(width)(images)
    for block in range(blocks):
        residual_block = partial(_residual_block, channels=width * 2**block, norm=norm)
        x = _nested(residual_block, f"block_{block}", x) if nested_blocks else residual_block(x)
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
    nested_blocks: bool = False,
    micro_batches: int = 1,
    packed: bool = False,
) -> Model:
    """Return an untrained language model: int32 tokens [batch, length] -> float32 logits [batch, length, vocabulary].

    The logits at position i see tokens 0 to i and predict token i + 1; by default tokens are bytes. A pre-norm causal
    transformer with learned positions: GPT-2, Radford et al. 2019, "Language Models are Unsupervised Multitask
    Learners", but with an untied output projection and, as in Chowdhery et al. 2022, "PaLM", no biases. Weight matrices
    are initialized from a normal distribution with standard deviation 0.02. ``nested_blocks=True`` makes each block a
    layer, "block_0" and so on, for `bigtrain_nb.recompute` and ``fully_shard=`` of `Model`.

    ``packed=True`` takes rows of several documents from `bigtrain_nb.TokenRows`, {"tokens", "segments", "positions"},
    int32 [batch, length] each: a token attends to itself and earlier tokens of its own segment, and its position is
    within the document. So a document's logits are the same as without packing.

    The default has 475,776 weights. The head dimension is ``width // heads``. Raises ValueError for invalid settings.

    Example::

        model = bt.gpt(length=16, width=32, layers=1)
        print(model(tf.zeros([4, 16], "int32")).shape)  # (4, 16, 256)
    """
    sizes = {"vocabulary": vocabulary, "length": length, "width": width, "layers": layers}
    for name, value in sizes.items():
        integer(name, value, 1)
    integer("heads", heads, 1, width)
    share("dropout", dropout)
    switch("nested_blocks", nested_blocks)
    switch("packed", packed)
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
    x = _layers.Dropout(dropout)(x)
    transformer_block = partial(_transformer_block, width=width, heads=heads, dropout=dropout)
    given = [same_segment] if packed else []
    for block in range(layers):
        x = _nested(transformer_block, f"block_{block}", x, *given) if nested_blocks else transformer_block(x, *given)
    x = _normalized(x)
    logits = _matrix(vocabulary, dtype=_at_least_float32(), name="logits")(x)
    return Model(inputs, logits, name="gpt", micro_batches=micro_batches)


@keras.saving.register_keras_serializable("bigtrain_nb")
class Positions(_layers.Layer):
    """Adds a learned position embedding to each token: [batch, length, width] -> the same shape.

    ``places`` are positions, int32 [batch, length]; by default they are 0, 1, ... in each row.
    """

    def build(self, shape):
        self.table = self.add_weight(shape[1:], initializer=_normal(), name="positions")

    def call(self, x, places=None):
        return x + (self.table if places is None else keras.ops.take(self.table, places, axis=0))


def _nested(block, name, *tensors):
    """Return a block's output for tensors, with the block as one layer of this name."""
    inputs = [keras.Input(each.shape[1:], dtype=each.dtype) for each in tensors]
    return keras.Model(inputs, block(*inputs), name=name)(list(tensors))


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
    """Return the dtype of logits: 16 bits would round the loss; float64 is kept."""
    return keras.backend.result_type("float32", keras.config.dtype_policy().variable_dtype)


def _normal():
    return keras.initializers.RandomNormal(stddev=0.02)
