"""`bt.cuda_kernel` without a GPU: the emitted custom call, refused arguments, and the same source by g++."""

import ctypes
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from logical_cpus import mirrored
from recurrence import (
    COMPILED,
    TEXT,
    both_passes,
    by_doubling,
    everywhere,
    expected,
    far,
    kernel,
    numbers,
    recurrence,
    trained,
)
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.advanced.kernels import cuda_kernel as module
from bigtrain_nb.advanced.kernels import host
from bigtrain_nb.common.quiet import tf

PTX = '.version 7.0 "quoted" \\ \n\t\x7f é'
LINUX = sys.platform == "linux"
by_gpp = pytest.mark.skipif(not (LINUX and shutil.which("g++")), reason="needs g++ on Linux")


def launch_of(operation, *operands):
    return operation._launch([tf.convert_to_tensor(one) for one in operands])


@pytest.fixture
def emitted_for_a_gpu(monkeypatch):
    """The GPU call is emitted, with PTX that is never assembled; it cannot run."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    monkeypatch.setattr(module, "to_ptx", lambda launch: PTX)


# XLA's input


def test_the_program_has_one_call_for_each_pass(emitted_for_a_gpu):
    a, x, upstream = numbers((3, 5, 70))
    hlo = both_passes(recurrence).experimental_get_compiler_ir(a, x, upstream)(stage="hlo")
    calls = [line for line in hlo.splitlines() if "custom-call(" in line]
    shape = "f32[3,5,70]{2,1,0}"
    assert [re.search(r"= (.*?) custom-call", line)[1] for line in calls] == [shape, f"({shape}, {shape})"]
    for line in calls:
        assert 'custom_call_target="__gpu$xla.gpu.ptx"' in line
        assert "grid_x = 2 : i32, grid_y = 3 : i32" in line and "block_x = 64 : i32" in line


@pytest.mark.skipif(not LINUX, reason="reads a library of the wheel for Linux")
def test_xla_reads_the_settings_as_they_were_written():
    """If this fails with a new TensorFlow, look up the target and its settings in xla/service/gpu."""
    launch = launch_of(kernel(), *numbers((3, 5, 70))[:2])
    read = parsed_by_xla(module.backend_config(launch, PTX))
    assert read == {"name": "recurrence", "ptx": PTX, "grid": (2, 3, 1), "block": (64, 1, 1), "shared": 0}


def parsed_by_xla(text):
    """Return the settings as parsed by the wheel's ``xla::gpu::KernelCall::Parse``."""
    library = ctypes.CDLL(str(Path(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2")))
    make = library._ZN4mlir11MLIRContextC1ENS0_9ThreadingE
    read = library._ZN3xla3gpu10KernelCall5ParseESt17basic_string_viewIcSt11char_traitsIcEEPN4mlir11MLIRContextE
    make.restype = read.restype = None
    context, found = ctypes.create_string_buffer(256), ctypes.create_string_buffer(512)
    make(context, 0)
    written = text.encode()
    read(found, ctypes.c_size_t(len(written)), written, context)
    words = struct.unpack_from("<17Q", found)
    assert words[0] == 1, "the settings were refused"
    return {
        "name": ctypes.string_at(words[1], words[2]).decode(),
        "ptx": ctypes.string_at(words[5], words[6]).decode(),
        "grid": words[10:13],
        "block": words[13:16],
        "shared": words[16],
    }


def test_nvrtc_makes_ptx_of_the_text_and_says_where_it_is_wrong():
    try:
        module._nvrtc()
    except ImportError:
        pytest.skip("NVRTC is not installed")
    a, x, upstream = numbers((3, 5, 70))
    ptx = module.to_ptx(launch_of(kernel("recurrence_backward", 2), a, x, upstream), (9, 0))
    assert ".target sm_80" in ptx and ptx.count(".param .u64 recurrence_backward_param_") == 5
    assert ".target sm_75" in module.to_ptx(launch_of(kernel(), a, x), (7, 5))
    wrong = kernel(source=TEXT.replace("float now = 0", "float now = zero", 1))
    with pytest.raises(ValueError, match=r'kernel.cu\(8\): error: identifier "zero" is undefined'):
        module.to_ptx(launch_of(wrong, a, x), (8, 0))


# By g++


@by_gpp
@pytest.mark.parametrize("shape", [(3, 17, 70), (1, 1, 1), (2, 5, 64)])
def test_right_in_both_passes(shape):
    inputs = numbers(shape)
    errors = [far(*pair) for pair in zip(both_passes(recurrence)(*inputs), expected(*inputs), strict=True)]
    assert max(errors) < 1e-6
    (h,) = kernel().check_on_cpu(*inputs[:2])
    np.testing.assert_array_equal(h, kernel()(*inputs[:2])[0])


@by_gpp
def test_in_bfloat16_as_rounded_from_float32():
    inputs = numbers((3, 17, 70), "bfloat16")
    found = both_passes(recurrence)(*inputs)
    right = expected(*(tf.cast(one, "float32") for one in inputs))
    assert found[0].dtype == tf.bfloat16
    assert far(found[0], right[0]) < 2e-3 and far(found[2], right[2]) < 2e-3
    (h,) = kernel().check_on_cpu(*inputs[:2])
    assert h.dtype == tf.bfloat16.as_numpy_dtype


@by_gpp
def test_everywhere_in_a_program():
    for found, right in everywhere():
        assert far(found, right) < 1e-6
    a, x, _ = numbers((2, 9, 40))
    either = tf.function(lambda which: tf.cond(which, lambda: recurrence(a, x), lambda: x), **COMPILED)
    assert far(either(tf.constant(True)), expected(a, x, x)[0]) < 1e-6 and far(either(tf.constant(False)), x) == 0


WAYS = {
    "keras.Model": {"drop_remainder": True},
    "bt.Model, micro-batches": {"of": lambda model: bt.Model.of(model, micro_batches=2), "examples": 32},
    "bt.Model, three steps in one program": {"of": bt.Model.of, "examples": 30, "steps_per_execution": 3},
}
SHARPEST = ["keras.Model", "bt.Model, three steps in one program"]
EVERY_WAY = pytest.mark.more("every way in which fit runs a step")


@by_gpp
@pytest.mark.parametrize("way", in_two_tiers(WAYS, SHARPEST, EVERY_WAY))
def test_trains_as_plain_operations_do(way):
    np.testing.assert_allclose(trained(recurrence, **WAYS[way]), trained(by_doubling, **WAYS[way]), rtol=1e-4)


SUM = """
__device__ inline float sum_of_block(float value)
{
    __shared__ float part[THREADS];
    part[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    __syncthreads();
    return part[0];
}
extern "C" __global__ void sums(const float *x, float *y)
{
    float mine = 0;
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) mine += x[blockIdx.x * WIDTH + i];
    float sum = sum_of_block(mine);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
"""


def sums(source):
    results = [tf.TensorSpec([6], tf.float32)]
    return bt.cuda_kernel(source, "sums", grid=6, block=128, results=results, macros={"WIDTH": 333})


@by_gpp
def test_threads_wait_for_each_other_at_barriers():
    (x,) = numbers((6, 333))[:1]
    np.testing.assert_allclose(sums(SUM).check_on_cpu(x)[0], tf.reduce_sum(x, 1), rtol=1e-5)


@by_gpp
def test_a_thread_may_have_as_many_local_bytes_as_on_a_gpu():
    source = sums_of_local(numbers=100_000)
    found = module.cuda_kernel(source, "local", 1, 4, [tf.TensorSpec([4], tf.float32)]).check_on_cpu(tf.ones([4]))
    np.testing.assert_array_equal(found[0], [100_000.0] * 4)


def sums_of_local(numbers):
    return f"""extern "C" __launch_bounds__(4) __global__ void local(const float *x, float *y)
{{
    float kept[{numbers}], sum = 0;
    for (int i = 0; i < {numbers}; i++) kept[i] = x[threadIdx.x];
    for (int i = 0; i < {numbers}; i++) sum += kept[i * 7 % {numbers}];
    y[threadIdx.x] = sum;
}}"""


def test_atomic_sums_may_be_in_any_order():
    source = 'extern "C" __global__ void total(const float *x, float *y) {'
    source += "if (threadIdx.x == 0) y[0] = 0; __syncthreads(); atomicAdd(y, x[threadIdx.x]); }"
    total = bt.cuda_kernel(source, "total", grid=1, block=256, results=[tf.TensorSpec([1], tf.float32)])
    x = np.random.default_rng(0).normal(size=256).astype("float32")
    np.testing.assert_allclose(total.check_on_cpu(x)[0], x.sum(), rtol=1e-4)


COPY = 'extern "C" __global__ void copy(const float *x, float *y) { int i = threadIdx.x; %s }'
BOUND = "    if (channel >= CHANNELS) return;\n"


def copy(body):
    return bt.cuda_kernel(COPY % body, "copy", grid=1, block=8, results=[tf.TensorSpec([8], tf.float32)])


WRONG = {
    "no bound": (lambda: kernel(source=TEXT.replace(BOUND, "")), "recurrence writes outside its result h"),
    "no barrier": (lambda: sums(SUM.replace("        __syncthreads();\n", "")), "y depends on the order of threads"),
    "an element unwritten": (lambda: copy("if (i) y[i] = x[i];"), "y depends on what memory held before"),
    "reads outside": (lambda: copy("y[i] = x[i + 1];"), "y depends on what memory held before"),
    "writes before": (lambda: copy("y[i] = x[i]; y[-1] = 1;"), "copy writes outside its result y"),
    "writes to an operand": (lambda: copy("y[i] = x[i]; ((float *)x)[i] = 7;"), "to or around its operand x"),
    "one element, many threads": (lambda: copy("y[i] = x[i]; y[0] = i;"), "y depends on the order of threads"),
}


@by_gpp
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(name):
    make, message = WRONG[name]
    operands = {"no bound": numbers((3, 17, 70))[:2], "no barrier": numbers((6, 333))[:1]}
    with pytest.raises(ValueError, match=message):
        make().check_on_cpu(*operands.get(name, [np.arange(1, 9, dtype="float32")]))


# Refusals


def twice(source=None, **changed):
    source = source or 'extern "C" __global__ void twice(const float *x, float *y) { y[0] = 2 * x[0]; }'
    settings = {"grid": 1, "block": 1, "results": [tf.TensorSpec([1], tf.float32)], **changed}
    return bt.cuda_kernel(source, settings.pop("name", "twice"), **settings)


TEXT_OF = 'extern "C" __global__ void twice(%s) {}'
REFUSED = {
    "another name": (lambda: twice(name="thrice"), ValueError, 'only twice: declare it as extern "C"'),
    "C++ names": (lambda: twice("__global__ void twice(const float *x, float *y) {}"), ValueError, "only none"),
    "a scalar": (lambda: twice(TEXT_OF % "const float *x, float y"), TypeError, "float y of twice must be a pointer"),
    "half": (lambda: twice(TEXT_OF % "const half *x, float *y"), TypeError, "pointer to one of float, bfloat16, int"),
    "bfloat16": (lambda: twice(TEXT_OF % "const bfloat16 *x, float *y"), TypeError, "but the tensor is float32"),
    "three pointers": (lambda: twice(TEXT_OF % "float *x, float *y, float *z"), TypeError, "3 parameters for 2"),
    "a large block": (lambda: twice(block=(64, 32)), ValueError, "threads of a block=2048 must be .* at most 1024"),
    "a large grid": (lambda: twice(grid=(1, 70_000)), ValueError, "grid=70000 must be .* at most 65535"),
    "an empty grid": (lambda: twice(grid=0), ValueError, "grid=0 must be an integer of at least 1"),
    "four numbers": (lambda: twice(grid=(1, 1, 1, 1)), ValueError, "length of grid=4"),
    "no results": (lambda: twice(results=[]), ValueError, "number of results=0"),
    "a shape": (lambda: twice(results=[(1,)]), TypeError, "must be a list of tf.TensorSpec"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_compiled(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        make()(tf.ones([1]))


def test_comments_and_launch_bounds_are_read_over():
    source = (
        'extern "C" __global__ void __launch_bounds__(64) twice(const float *x, /* (in) */ float *__restrict__ y) {}'
    )
    assert launch_of(twice("// (\n" + source), tf.ones([1])).parameters == ("x", "y")


def test_unknown_shapes_are_refused():
    step = tf.function(recurrence, input_signature=[tf.TensorSpec([None, 3, 4])] * 2, autograph=False)
    with pytest.raises(ValueError, match=r"recurrence got a tensor of shape \(None, 3, 4\), but all shapes must"):
        step.get_concrete_function()


@by_gpp
def test_a_mistake_in_c_is_shown_by_its_line():
    wrong = kernel(source=TEXT.replace("float now = 0", "float now = zero", 1))
    with pytest.raises(ValueError, match=r"source of recurrence does not compile: kernel.cu:8:17: error: .*zero"):
        wrong(*numbers((1, 2, 3))[:2])


@by_gpp
def test_gradients_that_nobody_wrote_are_refused():
    a, x, _ = numbers((2, 3, 4))
    with tf.GradientTape() as tape:
        tape.watch(a)
        (h,) = kernel()(a, x)
    with pytest.raises(ValueError, match="recurrence has no gradient: wrap it with tf.custom_gradient"):
        tape.gradient(h, a)
    with tf.GradientTape() as outer:
        outer.watch(a)
        with tf.GradientTape() as tape:
            tape.watch(a)
            h = recurrence(a, x)
        first = tape.gradient(h, a)
    with pytest.raises(ValueError, match="Second-order gradients are not supported"):
        outer.gradient(first, a)


def test_more_than_one_replica_is_refused():
    with mirrored(2).scope():
        with pytest.raises(ValueError, match="twice runs on one replica, and the strategy has 2"):
            twice()(tf.ones([1]))


def test_without_a_compiler_a_sentence_says_so(monkeypatch):
    host._library.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ImportError, match="without a GPU needs Linux with g\\+\\+, which was not found"):
        twice().check_on_cpu(tf.ones([1]))


def test_without_nvrtc_a_sentence_says_so(monkeypatch):
    def nothing(name):
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", nothing)
    with pytest.raises(ImportError, match="pip install nvidia-cuda-nvrtc-cu12"):
        module._nvrtc()
