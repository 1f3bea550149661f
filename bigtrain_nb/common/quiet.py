"""TensorFlow and Keras without their start-up messages: ``from bigtrain_nb.common.quiet import keras, tf``.

TensorFlow writes them to file descriptor 2 before any log level applies, so they are caught there, and shown after all
if the import fails. Python's own warnings and whatever comes later are not touched.

Example::

    from bigtrain_nb import tf

    print(tf.reduce_sum(tf.ones([3])))
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

from bigtrain_nb.common.hardware import (
    CUDA_LIBRARIES,
    core_limit,
    cores,
    missing_cuda_libraries,
    nvidia_gpus,
    usable_cores,
)


@contextmanager
def quiet_start():
    """Catch what is written to file descriptor 2; write it out if the block raises."""
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
    """Do not look for garbage among what the block makes: not in it, not later, and not when the process ends.

    Python would go through TensorFlow's half a million objects again and again, which is a third of what it takes a
    worker process to start and to end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def load_cusolver():
    """Load a library of CUDA that TensorFlow 2.21 does not find where pip puts it, and without which it uses no GPU.

    The RUNPATH of its libtensorflow_framework has the folders of all others; that of 2.20 has this one too.
    """
    nvidia = find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia else None
    for folder in folders or ():
        for library in Path(folder).glob("cusolver/lib/libcusolver.so.*"):
            with suppress(OSError):  # then TensorFlow sees no GPU, of which a warning tells below
                ctypes.CDLL(str(library))


if nvidia_gpus():
    load_cusolver()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # leaves some to other processes
if core_limit() < len(usable_cores()):  # a container's, which TensorFlow does not look at; `tf.config.threading` wins
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cores()))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(cores()))
with quiet_start(), kept_for_good():
    import keras
    import tensorflow as tf

    tf.config.list_physical_devices()  # the drivers speak here; logical devices can still be set afterwards
tf.get_logger().setLevel("WARNING")  # MirroredStrategy tells at INFO, in the notebook, what it reduces where


# One message among those that are caught matters to the reader: it comes back as a warning.

if nvidia_gpus() and not tf.config.list_physical_devices("GPU"):
    _is_12 = tf.sysconfig.get_build_info().get("cuda_version", "").startswith("12")
    _missing = [f"{library} ({CUDA_LIBRARIES[library]})" for library in missing_cuda_libraries()] if _is_12 else []
    _why = f" {', '.join(_missing)} cannot be loaded." if _missing else ""
    warnings.warn(
        "NVIDIA GPUs are here, or named in CUDA_VISIBLE_DEVICES, but TensorFlow can use none, most often for want"
        f" of CUDA's libraries.{_why} pip install 'tensorflow[and-cuda]' brings all but the driver. Where they are"
        " installed, LD_LIBRARY_PATH can name their folders. CUDA_VISIBLE_DEVICES=-1 asks for the CPU.",
        stacklevel=2,
    )

# Another one is hidden by the log level, and explains minutes of waiting. "compute_90" stands for machine code of 9.0,
# with which an H100 starts at once, and for code that newer GPUs compile.

_build = tf.sysconfig.get_build_info()
for _gpu in tf.config.list_physical_devices("GPU"):
    _major, _minor = tf.config.experimental.get_device_details(_gpu).get("compute_capability", (0, 0))
    _fitting = {f"{kind}_{_major}{least}" for kind in ("sm", "compute") for least in range(_minor + 1)}
    if not _fitting & set(_build.get("cuda_compute_capabilities", ())):
        warnings.warn(
            f"TensorFlow {tf.__version__} brings no kernels for {_gpu.name} (compute capability {_major}.{_minor}):"
            " they are compiled when they are first used, which can take many minutes, once for each TensorFlow. Let a"
            " first step end before you judge. CUDA_CACHE_MAXSIZE=4294967296 keeps them all.",
            stacklevel=2,
        )
        break

# One message comes later than the start: oneDNN's, with the first operation on a 16-bit type.


@cache
def hear_of_16_bits():
    """Let TensorFlow say, unheard, for which 16-bit types oneDNN has no instructions on this CPU; it says so once.

    TensorFlow must have been started: this runs operations.
    """
    with quiet_start():
        for kind in ("bfloat16", "float16"):
            tf.zeros([], kind)


__all__ = ["hear_of_16_bits", "keras", "tf"]
