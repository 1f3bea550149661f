"""CUDA C source compiled by g++ for the CPU: to test a kernel and to train through it without a GPU.

The threads of a block are fibers on one core. Each runs up to its next barrier or its end, then the next one does.
"""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bigtrain_nb.common.quiet import tf

AROUND = 2**20  # bytes before and after a tensor that are checked

BEFORE = r"""
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <setjmp.h>
#include <ucontext.h>

struct Three { unsigned x, y, z; };
static Three threadIdx, blockIdx;
static const Three blockDim = {HOST_BLOCK}, gridDim = {HOST_GRID};

namespace host {
enum State { NEW, WAITING, DONE };
struct Fiber { ucontext_t context; jmp_buf place; State state; } fibers[THREADS], *current;
jmp_buf scheduler;
void **pointers;

void stop(State state)  // jumps, because switching contexts calls the system
{
    current->state = state;
    if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}
struct Pointer { int number; template <class T> operator T *() { return (T *)pointers[number]; } };
}

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __shared__ static __attribute__((section("of_a_block")))
extern char __start_of_a_block[] __attribute__((weak, visibility("hidden")));
extern char __stop_of_a_block[] __attribute__((weak, visibility("hidden")));
static inline void __syncthreads() { host::stop(host::WAITING); }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
static inline float atomicAdd(float *at, float value) { float old = *at; *at += value; return old; }
namespace {  // so that shared memory of inline functions goes to its section, too
"""

AFTER = r"""
}
namespace host {
void run() { HOST_KERNEL(HOST_ARGUMENTS); stop(DONE); }
void go_on()
{
    if (_setjmp(scheduler)) return;
    if (current->state == NEW) setcontext(&current->context);
    _longjmp(current->place, 1);
}
Three place(unsigned i, Three size) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

void block(bool backwards)
{
    const size_t stack = 1 << 20;  // a GPU thread has at most 512 KB; pages never touched take no memory
    static std::unique_ptr<char[]> stacks(new char[THREADS * stack]);
    for (unsigned i = 0; i < THREADS; i++) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = stacks.get() + i * stack;
        fibers[i].context.uc_stack.ss_size = stack;
        fibers[i].state = NEW;
        makecontext(&fibers[i].context, run, 0);
    }
    for (unsigned left = THREADS; left;)  // a turn: each thread up to its next barrier
        for (unsigned turn = 0; turn < THREADS; turn++) {
            unsigned i = backwards ? THREADS - 1 - turn : turn;
            current = fibers + i;
            if (current->state == DONE) continue;
            threadIdx = place(i, blockDim);
            go_on();
            left -= current->state == DONE;
        }
}
}
extern "C" void launch(void **pointers, int backwards, int fill)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    host::pointers = pointers;
    for (unsigned i = 0, blocks = gridDim.x * gridDim.y * gridDim.z; i < blocks; i++) {
        blockIdx = host::place(backwards ? blocks - 1 - i : i, gridDim);
        std::memset(__start_of_a_block, fill, __stop_of_a_block - __start_of_a_block);
        host::block(backwards);
    }
}
extern "C" void target(void *out, void **in, const char *, size_t, void *)  // called by XLA
{
    void *all[HOST_PARAMETERS], **first = all + HOST_PARAMETERS - HOST_RESULTS;
    std::memcpy(all, in, (HOST_PARAMETERS - HOST_RESULTS) * sizeof(void *));
    std::memcpy(first, HOST_RESULTS == 1 ? &out : (void **)out, HOST_RESULTS * sizeof(void *));
    launch(all, 0, 0xFF);
}
"""


def does_not_compile(launch, log):
    line = next((line for line in log.splitlines() if "error" in line), log)
    return ValueError(f"The source of {launch.name} does not compile: {line.strip()}")


@functools.cache
def _library(launch):
    compiler = shutil.which("g++") if sys.platform == "linux" else None
    if not compiler:
        raise ImportError("bt.cuda_kernel without a GPU needs Linux with g++, which was not found")
    count = len(launch.parameters)
    lists = {"GRID": launch.grid, "BLOCK": launch.block, "ARGUMENTS": [f"Pointer{{{one}}}" for one in range(count)]}
    macros = {key: ",".join(map(str, value)) for key, value in lists.items()}
    macros |= {"KERNEL": launch.name, "PARAMETERS": count, "RESULTS": len(launch.results)}
    command = [compiler, "-std=c++17", "-O2", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-x", "c++", "-"]
    command += [*(f"-DHOST_{key}={value}" for key, value in macros.items()), *(f"-D{k}={v}" for k, v in launch.macros)]
    with tempfile.TemporaryDirectory() as folder:
        file, text = f"{folder}/kernel.so", BEFORE + launch.text + AFTER
        done = subprocess.run([*command, "-o", file], input=text, text=True, capture_output=True)
        if done.returncode:
            raise does_not_compile(launch, done.stderr)
        return ctypes.CDLL(file)


@functools.cache
def target(launch):
    """Return the name of a custom call that runs the launch on the CPU."""
    name = f"bigtrain_nb.{launch.name}.{hashlib.sha256(repr(launch).encode()).hexdigest()[:16]}"
    _register(name, _library(launch).target)
    return name


def _register(name, function):
    """Call xla::CustomCallTargetRegistry::Global()->Register(name, function, "Host"), which TensorFlow exports."""
    library = ctypes.CDLL(str(Path(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2")))
    registry = "_ZN3xla24CustomCallTargetRegistry"
    try:
        find = library[f"{registry}6GlobalEv"]
        put = library[f"{registry}8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"]
    except AttributeError:
        raise ImportError(f"TensorFlow {tf.__version__} does not export XLA's registry of custom calls") from None
    find.restype, put.restype = ctypes.c_void_p, None
    letters = [ctypes.create_string_buffer(one.encode()) for one in (name, "Host")]
    # std::string: pointer, length, and buffer for short strings
    strings = [(ctypes.c_size_t * 4)(ctypes.addressof(one), len(one) - 1) for one in letters]
    put(ctypes.c_void_p(find()), strings[0], ctypes.cast(function, ctypes.c_void_p), strings[1])


def check(launch, operands):
    """Return the results, unless they depend on the order of threads or on the initial contents of memory."""
    results = _run(launch, operands, backwards=False, fill=0xA5)
    for backwards, fill, mistake in (
        (True, 0xA5, "the order of threads: is a barrier missing, or do two threads write to one element?"),
        (False, 0x5A, "what memory held before: does it read outside a tensor, or leave elements unwritten?"),
    ):
        others = _run(launch, operands, backwards, fill)
        for name, one, other in zip(launch.parameters[len(operands) :], results, others, strict=True):
            kind = one.dtype.name
            one, other = one.astype("float64"), other.astype("float64")
            share = {"int32": 0, "bfloat16": 1e-2}.get(kind, 1e-4)  # sums in another order
            tolerance = share * np.abs(one[np.isfinite(one)]).max(initial=0)
            if not np.allclose(one, other, 0, tolerance, equal_nan=True):
                raise ValueError(f"{launch.name}: {name} depends on {mistake}")
    return results


def _run(launch, operands, backwards, fill):
    """Return the results of one launch; refuse writes anywhere else. ``fill``: the initial contents of memory."""
    arrays = [*operands, *(np.empty(one.shape, one.dtype.as_numpy_dtype) for one in launch.results)]
    # Each with its own fill, so that copying from around one tensor to around another is detected
    buffers = [np.full(one.nbytes + 2 * AROUND, fill ^ number, np.uint8) for number, one in enumerate(arrays)]
    for buffer, one in zip(buffers, operands, strict=False):
        buffer[AROUND:-AROUND] = np.frombuffer(one.tobytes(), np.uint8)
    before = [buffer.copy() for buffer in buffers]
    pointers = (ctypes.c_void_p * len(buffers))(*(buffer.ctypes.data + AROUND for buffer in buffers))
    _library(launch).launch(pointers, backwards, fill)
    for number, (name, old, new) in enumerate(zip(launch.parameters, before, buffers, strict=True)):
        if number >= len(operands):
            old[AROUND:-AROUND] = new[AROUND:-AROUND]
        if not np.array_equal(old, new):
            where = "to or around its operand" if number < len(operands) else "outside its result"
            raise ValueError(f"{launch.name} writes {where} {name}")
    pairs = list(zip(buffers, arrays, strict=True))[len(operands) :]
    return [buffer[AROUND:-AROUND].view(one.dtype).reshape(one.shape) for buffer, one in pairs]
