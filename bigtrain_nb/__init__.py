"""Helpers for training large models with TensorFlow 2: measure, feed, compare, explain.

In notebooks: ``import bigtrain_nb as bt``. Names load what they need on first use, so the import itself is instant.
"""

from importlib import import_module
from sys import modules

_HOME = {
    "measure": ("compare", "throughput"),
    "results": ("Comparison", "Ratio", "Result", "load"),
    "hardware": ("cores", "machine"),
    "datasets": ("image_folder", "photo_crops"),
    "text": ("source_text", "text_folder"),
    "pipelines": ("Pipeline",),
    "quiet": ("tf",),
    "diagnosis": ("diagnose",),
    "lab": ("Lab",),
    "models": ("Model",),
    "small_models": ("conv_net", "gpt"),
    "replicas": ("devices", "mirrored"),
    "cluster.jobs": ("run_workers",),
    "cluster.strategies": ("strategy",),
    "checkpoints.preemption": ("PREEMPTED",),
    "checkpoints.resume": ("Resume",),
    "schedules": ("scaled_rate", "warmup_cosine"),
    "loss_scale": ("LossScaleHistory",),
    "memory": ("peak_memory",),
    "budget.plans": ("plan_step",),
    "budget.clusters": ("plan_cluster",),
    "budget.transformer": ("SIZES", "Transformer"),
    "budget.accelerators": ("ACCELERATORS",),
    "budget.formulas": ("all_reduce_seconds", "pipeline_ceiling"),
    "panel.planner": ("Planner",),
    "workbook": ("check", "hint", "predict", "reveal", "score", "solution"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"bigtrain_nb has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"bigtrain_nb.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell):
    """Make ``%%workers`` known, for ``%load_ext bigtrain_nb``; an import in a notebook has done so already."""
    from bigtrain_nb.cluster import magic

    magic.register(shell)


if "IPython" in modules and (shell := modules["IPython"].get_ipython()):
    load_ipython_extension(shell)
