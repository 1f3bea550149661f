"""Helpers for training large models with TensorFlow 2: measure, feed, compare, explain.

In notebooks: ``import bigtrain_nb as bt``. Names load what they need on first use, so the import itself is instant.
"""

import sys
from importlib import import_module

_HOME = {
    # the helper
    "measure.rounds": ("compare",),
    "measure.throughput": ("throughput",),
    "measure.results": ("Result", "load"),
    "common.hardware": ("cores", "machine"),
    "data.images": ("photo_crops",),
    "data.pipeline": ("Pipeline",),
    "common.quiet": ("tf",),
    "train.model": ("Model",),
    "train.files": ("load_model",),
    "train.small_models": ("conv_net", "gpt"),
    "train.devices": ("devices", "mirrored"),
    "launch.jobs": ("run_workers",),
    "launch.strategy": ("strategy",),
    "train.preemption": ("PREEMPTED",),
    "train.resume": ("Resume",),
    "train.schedules": ("warmup_cosine",),
    # the workbook
    "lab.lab": ("Lab",),
    "lab.race": ("race",),
    "workbook.workbook": ("check", "hint", "predict", "reveal", "score", "solution"),
    # advanced
    "advanced.text.text_data": ("source_text", "text_folder"),
    "advanced.text.token_rows": ("TokenRows",),
    "advanced.plan.plans": ("plan_step",),
    "advanced.plan.clusters": ("plan_cluster",),
    "advanced.plan.transformer": ("SIZES", "Transformer"),
    "advanced.plan.accelerators": ("ACCELERATORS",),
    "advanced.plan.communication": ("all_reduce_seconds",),
    "advanced.parallel.recompute": ("recompute",),
    "advanced.parallel.attention": ("chunk_attention",),
    "advanced.parallel.fused": ("fuse_attention",),
    "advanced.parallel.chunked_head": ("chunk_head",),
    "advanced.parallel.masks": ("segment_mask",),
    "advanced.kernels.cuda_kernel": ("cuda_kernel",),
    "advanced.watch.diagnose": ("diagnose",),
    "advanced.watch.profile": ("profile",),
    "advanced.watch.peak_memory": ("peak_memory",),
    "advanced.watch.meter": ("Meter",),
    "advanced.watch.loss_scale": ("LossScaleHistory",),
    "advanced.watch.overflow": ("find_overflow",),
    "advanced.preflight.preflight": ("preflight",),
}

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)
__version__ = "0.3.0"


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
    from bigtrain_nb.workbook import magic

    magic.register(shell)


if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
    load_ipython_extension(shell)
