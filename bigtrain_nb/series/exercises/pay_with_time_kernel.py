"""Exercise of notebook 07 about a custom CUDA kernel: the backward pass of a recurrence."""

import math
from dataclasses import replace

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def recurrence_backward(threads):
    text = """
    extern "C" __global__ void recurrence_backward(
        const float *a, const float *h, const float *upstream, float *to_a, float *to_x)
    {
        int channel = blockIdx.x * THREADS + threadIdx.x;
        if (channel >= CHANNELS) return;
        long long at = ((long long)blockIdx.y * TIME + TIME - 1) * CHANNELS + channel;
        float later = 0;
        for (int time = TIME - 1; time >= 0; time--, at -= CHANNELS) {
            float now = upstream[at] + later;
            to_x[at] = now;
            to_a[at] = time > 0 ? now * h[at - CHANNELS] : 0;
            later = now * a[at];
        }
    }
    """
    return bt.cuda_kernel(
        text,
        "recurrence_backward",
        grid=lambda a, *others: (-(-a.shape[2] // threads), a.shape[0]),
        block=threads,
        results=lambda a, *others: [tf.TensorSpec(a.shape), tf.TensorSpec(a.shape)],
        macros=lambda a, *others: {"TIME": a.shape[1], "CHANNELS": a.shape[2]},
    )


def _by_numpy(a, x, upstream):
    """Return h and the gradients of a and x, in float64."""
    a, x, upstream = (np.float64(one) for one in (a, x, upstream))
    h, to_a, to_x = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    now = later = 0
    for time in range(x.shape[1]):
        h[:, time] = now = a[:, time] * now + x[:, time]
    for time in reversed(range(x.shape[1])):
        to_x[:, time] = now = upstream[:, time] + later
        to_a[:, time] = now * h[:, time - 1] if time else 0
        later = now * a[:, time]
    return h, to_a, to_x


@exercise(
    recurrence_backward,
    takes="threads per block",
    returns="an operation of bt.cuda_kernel: a, h and the gradient of h in, the gradients of a and x out",
    minutes=25,
    difficulty=4,
)
def _check_recurrence_backward(answer):
    """Loop from the last time step to the first. The loss depends on h[t] directly, and through h[t+1] = a[t+1] h[t] +
    x[t+1], so keep the gradient that comes back from t+1 in one variable. The gradient of h[t] is also that of x[t].
    That of a[t] needs h[t-1], which does not exist at t = 0. The channels may not fill the last block.
    """
    random = np.random.default_rng(5)
    for threads, shape in ((4, (2, 5, 6)), (32, (3, 1, 33))):
        operation = answer(threads)
        if not hasattr(operation, "check_on_cpu"):
            raise Wrong(f"expected what bt.cuda_kernel returns, got {operation!r:.99}")
        a = random.uniform(0.2, 1, shape).astype("float32")
        x, upstream = random.normal(size=(2, *shape)).astype("float32")
        h, *expected = _by_numpy(a, x, upstream)
        told = f"with {threads} threads, for a of shape {shape}"
        try:
            found = operation.check_on_cpu(a, np.float32(h), upstream)
        except (ValueError, TypeError) as error:
            raise Wrong(f"{told}: {error}") from error
        expect(len(found), 2, f"results {told}")
        grid = operation.grid(a, h, upstream) if callable(operation.grid) else operation.grid
        blocks, enough = math.prod(np.ravel(grid)), shape[0] * math.ceil(shape[2] / threads)
        if blocks > enough:
            raise Wrong(f"{told}: {blocks} blocks are launched; {enough} are enough")
        for name, one, right in zip(("a", "x"), found, expected, strict=True):
            if one.shape != shape or not np.allclose(one, right, atol=1e-4):
                raise Wrong(f"the gradient of {name} {told} is {one.ravel()[:3]}..., expected {right.ravel()[:3]}...")


def _changed(threads, old, new):
    operation = recurrence_backward(threads)
    return replace(operation, source=operation.source.replace(old, new))


@_check_recurrence_backward.refuses("recurrence_backward writes outside its result to_a")
def _without_a_bound(threads):
    return _changed(threads, "if (channel >= CHANNELS) return;", "")


@_check_recurrence_backward.refuses("to_a depends on what memory held before")
def _reads_before_the_first_time(threads):
    return _changed(threads, "time > 0 ? now * h[at - CHANNELS] : 0", "now * h[at - CHANNELS]")


@_check_recurrence_backward.refuses("the gradient of a with 4 threads")
def _takes_h_of_the_same_time(threads):
    return _changed(threads, "time > 0 ? now * h[at - CHANNELS] : 0", "now * h[at]")


@_check_recurrence_backward.refuses("the gradient of a with 4 threads")
def _forgets_a_on_the_way_back(threads):
    return _changed(threads, "later = now * a[at]", "later = now")


@_check_recurrence_backward.refuses("12 blocks are launched; 4 are enough")
def _a_block_for_each_channel(threads):
    return replace(recurrence_backward(threads), grid=lambda a, h, upstream: (a.shape[2], a.shape[0]))


@_check_recurrence_backward.refuses("does not compile: kernel.cu")
def _without_a_semicolon(threads):
    return _changed(threads, "later = now * a[at];", "later = now * a[at]")
