"""Helpers for training large models with TensorFlow 2: measure, feed, compare, explain.

In notebooks: ``import bigtrain_nb as bt``. Names load what they need on first use, so the import itself is instant.
"""

import sys
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from types import SimpleNamespace

_HOME = {
    "measure.benchmark": ("compare", "throughput"),
    "measure.race": ("race",),
    "measure.results": ("Comparison", "Ratio", "Result", "load"),
    "common.hardware": ("cores", "machine"),
    "data.images": ("image_folder", "photo_crops"),
    "data.text": ("source_text", "text_folder"),
    "data.pipeline": ("Pipeline",),
    "common.quiet": ("tf",),
    "data.diagnose": ("diagnose",),
    "lab.lab": ("Lab",),
    "train.model": ("Model",),
    "train.small_models": ("conv_net", "gpt"),
    "train.devices": ("devices", "mirrored"),
    "launch.jobs": ("run_workers",),
    "launch.strategy": ("strategy",),
    "launch.cluster_devices": ("cluster_devices",),
    "launch.data_service": ("run_data_service",),
    "launch.coordinator": ("Coordinator",),
    "train.preemption": ("PREEMPTED",),
    "train.resume": ("Resume",),
    "train.schedules": ("scaled_rate", "warmup_cosine"),
    "train.loss_scale": ("LossScaleHistory",),
    "plan.peak_memory": ("peak_memory",),
    "plan.plans": ("plan_step",),
    "plan.clusters": ("plan_cluster",),
    "plan.transformer": ("SIZES", "Transformer"),
    "plan.accelerators": ("ACCELERATORS",),
    "plan.parallelism": ("all_reduce_seconds",),
    "plan.pipeline_ceiling": ("pipeline_ceiling",),
    "parallel.recompute": ("Recompute",),
    "parallel.tensor": ("ColumnDense", "RowDense", "SplitAttention"),
    "parallel.pipelined": ("Pipelined",),
    "parallel.schedule": ("pipeline_schedule",),
    "watch.profile": ("profile",),
    "watch.overflow": ("find_overflow",),
    "lab.planner": ("Planner",),
    "workbook.workbook": ("check", "hint", "predict", "reveal", "score", "solution"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)
__version__ = "0.2.0"


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"bigtrain_nb has no {name!r}; it has {', '.join(__all__)}")
    value = _loaded(_MODULE_OF[name], name)
    globals()[name] = value
    return value


def _loaded(module, name):
    return getattr(import_module(f"bigtrain_nb.{module}"), name)


def __dir__():
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell):
    """Make ``%%workers`` known, for ``%load_ext bigtrain_nb``; an import in a notebook has done so already."""
    from bigtrain_nb.launch import magic

    magic.register(shell)


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
    load_ipython_extension(shell)


# Saved models name our classes, and Keras imports no module that a file names: it is told of them when it is imported

_SAVED = {
    "train.model": ("FunctionalModel", "WrappedModel"),
    "train.small_models": ("Positions",),
    "parallel.recompute": ("Recompute",),
    "parallel.tensor": ("ColumnDense", "RowDense", "SplitAttention"),
    "parallel.pipelined": ("Pipelined",),
    "parallel.sharded": ("ShardedOptimizer",),
}


def _from_config(module, name, config):
    return _loaded(module, name).from_config(config)


def _tell(keras):
    """Give Keras something that loads a class when it makes an object of it."""
    known = keras.saving.get_custom_objects()
    for module, names in _SAVED.items():
        for name in names:
            known[f"bigtrain_nb>{name}"] = SimpleNamespace(from_config=partial(_from_config, module, name))
    for name in _SAVED["train.model"]:
        known[name] = known[f"bigtrain_nb>{name}"]  # the legacy HDF5 format knows classes by their bare names


def _find_keras(name, path=None, target=None):
    """Find the module Keras, none but it, and tell it as soon as it has run."""
    spec = PathFinder.find_spec(name, path) if name == "keras" else None
    if spec:
        run_module = spec.loader.exec_module

        def run_and_tell(module):
            run_module(module)
            _tell(module)

        spec.loader.exec_module = run_and_tell
    return spec


if "keras" in sys.modules:
    _tell(sys.modules["keras"])
else:
    sys.meta_path.insert(0, SimpleNamespace(find_spec=_find_keras))
