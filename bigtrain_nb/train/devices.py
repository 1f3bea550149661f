"""Get several devices on any machine, GPUs or parts of one CPU, and a strategy that trains on them."""

from itertools import count

from bigtrain_nb.common.checks import integer
from bigtrain_nb.common.quiet import discard_onednn_message, tf

MOST = 256
"""Most parts of a CPU: each has its own threads and memory, and a thousand take minutes and many gigabytes."""

_devices = []


def devices(at_least: int = 2) -> list[str]:
    """Return the names of ``at_least`` devices or more: ["GPU:0", ...], or parts of the CPU, ["CPU:0", ...].

    All GPUs if there are enough; otherwise the CPU is split into ``at_least`` logical devices, which share its cores
    and memory: they show what several devices compute, not how fast. (With GPUs, but too few, a message is printed.)
    The first call decides for the process, so that comparisons of sizes use one kind of device: later calls for the
    same number or fewer return the same list.

    Raises RuntimeError if the CPU must be split after TensorFlow has run something: call this first. Raises ValueError
    for more than 256.

    Example::

        first, second, *others = bt.devices(at_least=2)
        with tf.device(second):
            print(tf.ones([3]).device)
    """
    at_least = integer("at_least", at_least, 1, MOST)
    if len(_devices) < at_least:
        _devices[:] = _choose(at_least)
    return list(_devices)


def mirrored(count: int | None = None) -> tf.distribute.MirroredStrategy:
    """Return a `tf.distribute.MirroredStrategy` over the first ``count`` of `devices`, by default over all of them.

    One process can use several sizes. Raises the errors of `devices`, and ValueError for a ``count`` below 1.

    Example::

        with bt.mirrored(2).scope():
            model = bt.Model.of(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)]))
            model.compile("sgd", "mse")
        model.fit(tf.ones([64, 8]), tf.ones([64, 1]), batch_size=32)
    """
    if count is not None:
        count = integer("count", count, 1, MOST)
    return mirrored_over(devices(max(2, count or 2))[:count])


def mirrored_over(chosen):
    """Return a `tf.distribute.MirroredStrategy` over devices, given by name, all GPUs or all parts of the CPU."""
    if not chosen[0].startswith("CPU"):
        return mirrored_with_own_groups(chosen)
    made = tf.distribute.MirroredStrategy(chosen, tf.distribute.ReductionToOneDevice())
    discard_onednn_message()
    return made


def _choose(at_least):
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) >= at_least:
        return [f"GPU:{i}" for i in range(len(gpus))]
    if gpus:
        here = "one GPU is" if len(gpus) == 1 else f"{len(gpus)} GPUs are"
        print(f"{at_least} devices are requested, but only {here} available: using parts of the CPU", flush=True)
    cpu = tf.config.get_visible_devices("CPU")[0]
    parts = len(tf.config.get_logical_device_configuration(cpu) or [None])
    if parts >= at_least:
        return [f"CPU:{i}" for i in range(parts)]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * at_least)
    except RuntimeError:
        raise RuntimeError(
            f"TensorFlow is already initialized, so the CPU can no longer be split into {at_least} devices: restart"
            f" the kernel and call bt.devices(at_least={at_least}) before anything else"
        ) from None
    return [f"CPU:{i}" for i in range(at_least)]


_groups = count(1)


def mirrored_with_own_groups(devices):  # private: Keras
    """Return a MirroredStrategy that shares no collective group with others.

    TensorFlow numbers every strategy's groups from the same start, so a second strategy of another size would abort
    (tensorflow issue 61314). There is no public way to set the start; TensorFlow's tests do it like this.
    """
    start = {"_collective_key_base": 100_000 * next(_groups)}
    return type("MirroredStrategy", (tf.distribute.MirroredStrategy,), start)(devices)
