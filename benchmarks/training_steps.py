"""The contenders of training.py on one device: the same network, trained on the same examples in different ways.

Processes that measure memory import this file too.
"""

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

IMAGE_SIZE, LENGTH, COUNT = 64, 128, 512
BYTES = "conv net, fed bytes"
AHEAD = "conv net, read ahead"


def fed_bytes():
    """Return the conv net with input scaling inside, so that a batch takes a quarter of the memory."""
    pixels = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), dtype="uint8")
    return bt.Model(pixels, bt.conv_net()(keras.layers.Rescaling(1 / 127.5, -1.0)(pixels)))


NETWORKS = {
    "conv net": bt.conv_net,
    "GPT": bt.gpt,
    BYTES: fed_bytes,
    AHEAD: bt.conv_net,
}


def write_examples(folder):
    """Write ``COUNT`` photo crops with labels and as many pieces of source text, for `examples` to read."""
    images, labels = next(iter(bt.Pipeline(data=bt.photo_crops(), image_size=IMAGE_SIZE, batch=COUNT).dataset()))
    pixels = np.rint((images.numpy() + 1) * 127.5).astype(np.uint8)
    np.savez(f"{folder}/conv net.npz", x=pixels, y=labels)
    text = bt.source_text(megabytes=1).array()[: COUNT * (LENGTH + 1)].reshape(COUNT, LENGTH + 1)
    np.savez(f"{folder}/GPT.npz", x=text[:, :-1], y=text[:, 1:])


def examples(folder, network, batch):
    """Return infinite batches: float32 images in -1..1 (or uint8) and int64 labels, or int32 bytes and the next ones.

    By default tf.data would prefetch one or two batches, and a full batch is as large as K micro-batches. Here it
    prefetches none, except for `AHEAD`.
    """
    kind = network.split(",")[0]
    arrays = np.load(f"{folder}/{kind}.npz")
    options = tf.data.Options()
    options.autotune.enabled = network == AHEAD
    dataset = tf.data.Dataset.from_tensor_slices((arrays["x"], arrays["y"])).repeat().batch(batch)
    dataset = dataset.with_options(options)
    if network == BYTES:
        return dataset
    if kind == "conv net":
        return dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 127.5 - 1.0, y))
    return dataset.map(lambda x, y: (tf.cast(x, tf.int32), tf.cast(y, tf.int32)))


def updates(folder, network, way, batch, micro_batches=1, clip=None):
    """Return a step function: one update of ``network`` from ``batch`` examples; it returns ``batch``.

    ``way``: "bt.Model" splits the batch itself; "Keras" uses gradient_accumulation_steps, one micro-batch per call, or
    with "one call" all of them in one steps_per_execution; "by hand" is the usual hand-written loop. ``clip`` is the
    global norm to clip to.
    """
    model = NETWORKS[network]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    settings = {"learning_rate": 1e-3, "global_clipnorm": clip}
    if way == "by hand":
        optimizer = keras.optimizers.AdamW(**settings)
        return by_hand(model, optimizer, loss, iter(examples(folder, network, batch // micro_batches)), micro_batches)
    parts = 1
    if way == "bt.Model":
        model.micro_batches = micro_batches
    else:
        model, parts = keras.Model(model.input, model.output), micro_batches
        settings["gradient_accumulation_steps"] = parts if parts > 1 else None
    together = parts if way == "Keras, one call" else 1
    model.compile(optimizer=keras.optimizers.AdamW(**settings), loss=loss, steps_per_execution=together)
    model.make_train_function()
    iterator = iter(examples(folder, network, batch // parts))

    def update():
        for _ in range(parts // together):
            logs = model.train_function(iterator)  # which fit calls
        float(logs["loss"])  # waits for a GPU
        return batch

    return update


def by_hand(model, optimizer, loss, iterator, micro_batches):
    """Return a step function that accumulates the gradients of micro-batches in variables, then applies them."""
    variables = model.trainable_variables
    sums = [tf.Variable(tf.zeros_like(variable.value), trainable=False) for variable in variables]
    optimizer.build(variables)

    @tf.function(jit_compile=bool(tf.config.list_physical_devices("GPU")))  # as in compile()
    def add(x, y):
        with tf.GradientTape() as tape:
            mean = loss(y, model(x, training=True)) / micro_batches
        for total, gradient in zip(sums, tape.gradient(mean, variables), strict=True):
            total.assign_add(tf.convert_to_tensor(gradient))
        return mean

    @tf.function
    def apply():
        optimizer.apply_gradients(zip(sums, variables, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    def update():
        examples, means = 0, []
        for _ in range(micro_batches):
            x, y = next(iterator)
            means.append(add(x, y))
            examples += len(x)
        apply()
        float(sum(means))  # waits for a GPU
        return examples

    return update
