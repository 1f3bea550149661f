"""Splits the CPU into eight logical devices; `conftest.py` imports this before any test can make TensorFlow run."""

from bigtrain_nb.common.keras_gaps import mirrored_with_groups_of_its_own
from bigtrain_nb.common.quiet import tf

CPUS = [f"CPU:{i}" for i in range(8)]
GPUS = [f"GPU:{i}" for i in range(len(tf.config.list_physical_devices("GPU")))]
cpu = tf.config.list_physical_devices("CPU")[0]
if tf.config.get_logical_device_configuration(cpu) is None:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(CPUS))


def mirrored(count):
    """Return a MirroredStrategy over ``count`` CPUs; several sizes can live in one process."""
    return tf.distribute.MirroredStrategy(CPUS[:count], tf.distribute.ReductionToOneDevice())


def mirrored_by_collectives(count):
    """Return one that sums as GPUs and workers do: over GPUs if there are enough, with NCCL; else over CPUs."""
    if len(GPUS) < count:
        return mirrored_with_groups_of_its_own(CPUS[:count])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # which is compared with CPUs
    return mirrored_with_groups_of_its_own(GPUS[:count])
