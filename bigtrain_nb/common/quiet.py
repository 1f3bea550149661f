"""TensorFlow and Keras without their start-up messages: ``from bigtrain_nb.common.quiet import keras, tf``.

TensorFlow writes them to file descriptor 2 before any log level applies, so they are captured there, and shown if the
import fails. Python warnings and later messages are unaffected.
"""

import ctypes
import gc
import os
import sys
import tempfile
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bigtrain_nb.common.hardware import core_limit, cores, missing_cuda_libraries, nvidia_gpus, usable_cores


@contextmanager
def quiet_start():
    """Capture output to file descriptor 2; write it out if the block raises."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except BaseException:
            caught.seek(0)
            os.write(kept, caught.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextmanager
def kept_for_good():
    """Exclude all objects up to the end of the block from garbage collection, unless TensorFlow was loaded before.

    Python would scan TensorFlow's half a million objects repeatedly, which is a third of the time that a worker process
    takes to start and to exit. If it was loaded before, there may be models, which must be freed later.
    """
    was_loaded = "tensorflow" in sys.modules
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if not was_loaded:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def load_cusolver():
    """Load a CUDA library that TensorFlow 2.21 needs for GPUs but does not find in pip's folder.

    The RUNPATH of its libtensorflow_framework has the folders of all others; that of 2.20 has this one too.
    """
    nvidia = find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia else None
    for folder in folders or ():
        for library in Path(folder).glob("cusolver/lib/libcusolver.so.*"):
            with suppress(OSError):  # TensorFlow then sees no GPU; a warning below says so
                ctypes.CDLL(str(library))


if nvidia_gpus():
    load_cusolver()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # leaves memory to other processes
if core_limit() < len(usable_cores()):  # TensorFlow ignores container limits; `tf.config.threading` takes precedence
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores()))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(cores()))
with quiet_start(), kept_for_good():
    import keras
    import tensorflow as tf

    tf.config.list_physical_devices()  # triggers driver messages; logical devices can still be set afterwards
tf.get_logger().setLevel("WARNING")  # at INFO, MirroredStrategy logs its reductions in the notebook


# One captured message matters to the user: it is shown as a warning.

if nvidia_gpus() and not tf.config.list_physical_devices("GPU"):
    _is_12 = tf.sysconfig.get_build_info().get("cuda_version", "").startswith("12")
    _missing = [f"{library} ({source})" for library, source in missing_cuda_libraries().items()] if _is_12 else []
    _why = f" {', '.join(_missing)} cannot be loaded." if _missing else ""
    warnings.warn(
        "NVIDIA GPUs were found, or named in CUDA_VISIBLE_DEVICES, but TensorFlow can use none, usually because CUDA"
        f" libraries are missing.{_why} pip install 'tensorflow[and-cuda]' installs all but the driver. If they are"
        " installed, add their folders to LD_LIBRARY_PATH. To use the CPU, set CUDA_VISIBLE_DEVICES=-1.",
        stacklevel=2,
    )

# Another one, hidden by the log level, explains minutes of waiting. "compute_90" means machine code for 9.0, with which
# an H100 starts immediately, and PTX that newer GPUs compile.

_build = tf.sysconfig.get_build_info()
for _gpu in tf.config.list_physical_devices("GPU"):
    _major, _minor = tf.config.experimental.get_device_details(_gpu).get("compute_capability", (0, 0))
    _fitting = {f"{kind}_{_major}{least}" for kind in ("sm", "compute") for least in range(_minor + 1)}
    if not _fitting & set(_build.get("cuda_compute_capabilities", ())):
        warnings.warn(
            f"TensorFlow {tf.__version__} has no precompiled kernels for {_gpu.name} (compute capability"
            f" {_major}.{_minor}): they are compiled at first use, which can take many minutes, once per TensorFlow."
            " Let the first step end before you judge the speed. CUDA_CACHE_MAXSIZE=4294967296 caches them all.",
            stacklevel=2,
        )
        break


@cache
def discard_onednn_message():
    """Trigger and discard TensorFlow's single message on the types that oneDNN cannot use on this CPU.

    TensorFlow must have been started: this runs operations.
    """
    with quiet_start():
        for kind in ("bfloat16", "float16", "int32"):
            tf.transpose(tf.zeros([1, 1], kind))


__all__ = ["discard_onednn_message", "keras", "tf"]
