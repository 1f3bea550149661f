"""Splits the CPU into four logical devices; `conftest.py` imports this before any test can make TensorFlow run."""

from bigtrain_nb.common.quiet import tf

CPUS = [f"CPU:{i}" for i in range(4)]
cpu = tf.config.list_physical_devices("CPU")[0]
if tf.config.get_logical_device_configuration(cpu) is None:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(CPUS))


def mirrored(count):
    """Return a MirroredStrategy over ``count`` CPUs; several sizes can live in one process."""
    return tf.distribute.MirroredStrategy(CPUS[:count], tf.distribute.ReductionToOneDevice())
