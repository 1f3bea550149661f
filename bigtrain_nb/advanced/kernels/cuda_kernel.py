"""A CUDA kernel, written as a string, as a TensorFlow operation that XLA compiles: no nvcc, no library to build.

NVRTC compiles the source to PTX, and XLA's custom call ``__gpu$xla.gpu.ptx`` launches it on the program's stream
(xla/service/gpu/kernel_call.cc). On a machine without a GPU, `host` compiles the same source with g++.
"""

import ctypes
import functools
import math
import re
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigtrain_nb.advanced.kernels import host
from bigtrain_nb.advanced.shared.custom_calls import compiled_custom_call
from bigtrain_nb.common.checks import integer, of_kind
from bigtrain_nb.common.quiet import tf

TARGET = "__gpu$xla.gpu.ptx"
NEWEST = (8, 0)  # compute capability: drivers assemble its PTX for newer GPUs too
TYPES = {"float": tf.float32, "bfloat16": tf.bfloat16, "int": tf.int32}

PRELUDE = """
typedef unsigned short bfloat16;  // NVRTC has no headers: the upper half of a float
__device__ inline float load(const float *at) { return *at; }
__device__ inline float load(const bfloat16 *at) { return __uint_as_float((unsigned)*at << 16); }
__device__ inline void store(float *at, float value) { *at = value; }
__device__ inline void store(bfloat16 *at, float value)
{
    unsigned bits = __float_as_uint(value);
    *at = value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to nearest, ties to even
}
#line 1 "kernel.cu"
"""

Launch = namedtuple("Launch", "text name parameters macros grid block results")  # for operands of known shapes

_BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
_KERNEL = re.compile(rf'extern\s*"C"\s*{_BOUNDS}__global__\s+void\s+{_BOUNDS}(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def cuda_kernel(
    source: str,
    name: str,
    grid: int | Sequence[int] | Callable,
    block: int | Sequence[int] | Callable,
    results: Sequence | Callable,
    macros: Mapping[str, Any] | Callable | None = None,
) -> "CudaKernel":
    """Return an operation, tensors in and a list of tensors out, computed by a kernel written in CUDA C.

    ``source`` contains ``extern "C" __global__ void name(...)``, whose parameters are pointers only: to the operands,
    then to the results, all row-major, without overlap; the results are uninitialized. They point to ``float``, ``int``
    or ``bfloat16``, which ``float load(pointer)`` reads and ``store(pointer, float)`` rounds. ``results`` is a list of
    `tf.TensorSpec`; ``grid`` and ``block`` are up to three integers each. ``macros`` defines other names in the source,
    such as sizes; ``THREADS``, the threads per block, is always defined. Each of the four may be a function of the
    operands: the kernel is compiled once per shape.

    It runs eagerly, in functions and in `fit`, compiled by XLA or not. Shapes must be known: use ``batch(...,
    drop_remainder=True)`` or a `bigtrain_nb.Model`, and give a layer ``compute_output_shape``. TensorFlow cannot
    differentiate it: wrap it in `tf.custom_gradient`, with a second kernel inside; second gradients are not supported.

    NVIDIA GPUs need the package nvidia-cuda-nvrtc-cu12, which tensorflow[and-cuda] installs. The launch on a GPU has
    not been tested. Where TensorFlow sees no GPU, g++ compiles the same source and one core runs the threads one by
    one, for tests and not for speed; it supports ``__syncthreads``, ``atomicAdd`` of floats, ``rsqrtf``, C's functions.

    An invalid address crashes the process. So first run ``operation.check_on_cpu(*arrays)``, which needs g++: it
    returns the results as arrays, or raises ValueError for a kernel that writes up to 1 MiB outside its tensors, whose
    results depend on what it reads there, that leaves elements unwritten, or that depends on the order of threads, as
    it does if a barrier is missing.

    Raises ValueError or TypeError for source that does not compile, unknown shapes, parameters that do not match the
    tensors, and more than one replica; ImportError without NVRTC or g++.

    Example::

        text = 'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
        twice = bt.cuda_kernel(text, "twice", grid=1, block=4, results=[tf.TensorSpec([4], tf.float32)])
        print(twice.check_on_cpu(tf.ones([4])), twice(tf.ones([4])))
    """
    for key, value in (("source", source), ("name", name)):
        of_kind(key, value, str, "a string")
    return CudaKernel(source, name, grid, block, results, macros)


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """The operation that `cuda_kernel` returns."""

    source: str
    name: str
    grid: Any
    block: Any
    results: Any
    macros: Any

    def __call__(self, *operands) -> list:
        operands = [tf.convert_to_tensor(one) for one in operands]
        launch = self._launch(operands)
        if (replicas := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
            raise ValueError(f"{self.name} runs on one replica, and the strategy has {replicas}: several are untested")
        if tf.config.get_visible_devices("GPU"):
            target, config = TARGET, backend_config(launch, to_ptx(launch))
        else:
            target, config = host.target(launch), ""
        run = compiled_custom_call(target, launch.results, config)

        def gradient(*upstream):
            raise ValueError(
                f"{self.name} has no gradient: wrap it with tf.custom_gradient and another kernel for the backward"
                " pass. Second-order gradients are not supported"
            )

        without_gradient = tf.custom_gradient(lambda *given: (run(*map(tf.stop_gradient, given)), gradient))
        return list(without_gradient(*operands))

    def check_on_cpu(self, *operands) -> list[np.ndarray]:
        """Run the kernel three times on the CPU and return its results; raise ValueError for mistakes found."""
        operands = [tf.convert_to_tensor(one) for one in operands]
        return host.check(self._launch(operands), [one.numpy() for one in operands])

    def _launch(self, operands):
        def now(setting):
            return setting(*operands) if callable(setting) else setting

        shapes = [one.shape for one in operands if not one.shape.is_fully_defined()]
        if shapes:
            raise ValueError(
                f"{self.name} got a tensor of shape {shapes[0]}, but all shapes must be known: use batch(...,"
                " drop_remainder=True) or a bt.Model, and define compute_output_shape in a layer"
            )
        results = of_kind("results", now(self.results), list | tuple, "a list of tf.TensorSpec")
        results = tuple(of_kind("results", one, tf.TensorSpec, "a list of tf.TensorSpec") for one in results)
        integer("number of results", len(results), 1)
        grid = _three("grid", now(self.grid), (2**31 - 1, 65535, 65535))
        block = _three("block", now(self.block), (1024, 1024, 64))
        threads = integer("threads of a block", math.prod(block), 1, 1024)
        macros = {**of_kind("macros", now(self.macros) or {}, Mapping, "a dictionary"), "THREADS": threads}
        parameters = _parameters(self.source, self.name, macros, [*operands, *results])
        macros = tuple(sorted((key, str(value)) for key, value in macros.items()))
        return Launch(PRELUDE + self.source, self.name, parameters, macros, grid, block, results)


def _three(name, value, most):
    value = value if isinstance(value, tuple | list) else (value,)
    integer(f"length of {name}", len(value), 1, 3)
    return tuple(integer(name, one, 1, limit) for one, limit in zip((*value, 1, 1), most, strict=False))


def _parameters(source, name, macros, tensors):
    """Return the names of the kernel's parameters; refuse those that are not pointers to these tensors."""
    kernels = {found["name"]: found["parameters"] for found in _KERNEL.finditer(_COMMENT.sub(" ", source))}
    if name not in kernels:
        raise ValueError(
            f"source has no kernel {name}, only {', '.join(kernels) or 'none'}: declare it as"
            f' extern "C" __global__ void {name}(...)'
        )
    written = [one.strip() for one in kernels[name].split(",") if one.strip()]
    if len(written) != len(tensors):
        raise TypeError(f"{name} has {len(written)} parameters for {len(tensors)} operands and results")
    for parameter, tensor in zip(written, tensors, strict=True):
        kind, *others = (word for word in re.findall(r"\w+|\*", parameter) if word != "const")
        kind = macros.get(kind, kind)
        if kind not in TYPES or others[:1] != ["*"]:
            raise TypeError(f"{parameter} of {name} must be a pointer to one of {', '.join(TYPES)}, or a macro for one")
        if TYPES[kind] != tensor.dtype:
            raise TypeError(f"{parameter} of {name} points to {kind}, but the tensor is {tensor.dtype.name}")
    return tuple(re.findall(r"\w+", parameter)[-1] for parameter in written)


def backend_config(launch, ptx):
    """Return the settings of the custom call as the text of an MLIR dictionary."""
    settings = {"name": launch.name, "kernel_type": "ptx", "kernel_data": ptx}
    words = [f"{key} = {_quoted(value)}" for key, value in settings.items()]
    for kind, sizes in (("grid", launch.grid), ("block", launch.block)):
        words += [f"{kind}_{axis} = {size} : i32" for axis, size in zip("xyz", sizes, strict=True)]
    return "{" + ", ".join([*words, "shared_mem_bytes = 0 : i32"]) + "}"


def _quoted(text):
    """Return an MLIR string: special characters become a backslash and two hexadecimal digits."""
    plain = [chr(one) if 32 <= one < 127 and chr(one) not in '"\\' else f"\\{one:02X}" for one in text.encode()]
    return '"' + "".join(plain) + '"'


# The compiler for GPUs


@functools.cache
def to_ptx(launch, capability=None):
    """Compile with NVRTC for the first GPU, or for ``capability``, which needs no GPU."""
    if capability is None:
        details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
        capability = details.get("compute_capability", NEWEST)
    major, minor = min(capability, NEWEST)
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), launch.text.encode(), None, 0, None, None)
    options = [f"--gpu-architecture=compute_{major}{minor}", *(f"-D{key}={value}" for key, value in launch.macros)]
    given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    what, size = "ProgramLog" if failed else "PTX", ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise host.does_not_compile(launch, text.value.decode())
    return text.value.decode()


def _nvrtc():
    found = [path for one in sys.path if (path := Path(one, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")).exists()]
    try:
        return ctypes.CDLL(str(found[0]) if found else "libnvrtc.so.12")
    except OSError:
        raise ImportError("bt.cuda_kernel needs NVRTC for GPUs: pip install nvidia-cuda-nvrtc-cu12") from None
