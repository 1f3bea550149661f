"""Split the CPU into eight logical devices; `conftest.py` imports this before any test can initialize TensorFlow.

These tests use the CPU even on machines with GPUs, so that results are the same everywhere. GPUs are tested by
tests/gpu and by the notebooks.
"""

import os
from unittest import mock

NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
with mock.patch.dict(os.environ, NO_GPUS):  # TensorFlow checks once; notebooks tested later see theirs
    from bigtrain_nb.common.quiet import tf
    from bigtrain_nb.train.devices import mirrored_with_own_groups

CPUS = [f"CPU:{i}" for i in range(8)]
cpu = tf.config.list_physical_devices("CPU")[0]
if tf.config.get_logical_device_configuration(cpu) is None:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(CPUS))


def mirrored(count):
    """Return a MirroredStrategy over ``count`` CPUs; several sizes can coexist in one process."""
    return tf.distribute.MirroredStrategy(CPUS[:count], tf.distribute.ReductionToOneDevice())


def mirrored_by_collectives(count):
    """Return a strategy over CPUs that reduces as GPUs and workers do."""
    return mirrored_with_own_groups(CPUS[:count])
