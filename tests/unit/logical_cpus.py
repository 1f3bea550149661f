"""Splits the CPU into eight logical devices; `conftest.py` imports this before any test can make TensorFlow run.

These tests are of the CPU, on machines with GPUs too, so that they say the same everywhere. What is promised of GPUs is
asked by tests/gpu and by the notebooks.
"""

import os
from unittest import mock

NO_GPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
with mock.patch.dict(os.environ, NO_GPUS):  # TensorFlow looks once; notebooks that are tested after these see theirs
    from bigtrain_nb.common.quiet import tf
    from bigtrain_nb.train.devices import mirrored_with_groups_of_its_own

CPUS = [f"CPU:{i}" for i in range(8)]
cpu = tf.config.list_physical_devices("CPU")[0]
if tf.config.get_logical_device_configuration(cpu) is None:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(CPUS))


def mirrored(count):
    """Return a MirroredStrategy over ``count`` CPUs; several sizes can live in one process."""
    return tf.distribute.MirroredStrategy(CPUS[:count], tf.distribute.ReductionToOneDevice())


def mirrored_by_collectives(count):
    """Return one that sums as GPUs and workers do, over CPUs."""
    return mirrored_with_groups_of_its_own(CPUS[:count])
