"""Exercises of notebook 02, "Mirror it": noise scale and logs of scaling; see also `mirror_it_step`, `_loops`."""

from functools import partial

import numpy as np

from bigtrain_nb.workbook.exercises import exercise, expect


def noise_scale(steps, examples):
    batch = steps.shape[1] * examples
    small = np.sum(steps**2, axis=-1).mean()
    large = np.sum(steps.mean(axis=1) ** 2, axis=-1).mean()
    noise = (small - large) / (1 / examples - 1 / batch)
    square = large - noise / batch
    return noise / square


@exercise(noise_scale, minutes=15, difficulty=4)
def _check_noise_scale(answer):
    """The squared length of a gradient of b examples is |G|² + tr(Σ) / b on average. You have gradients of two sizes:
    that of a micro-batch, and their mean, which is the gradient of the whole batch. That makes two equations. Take the
    mean of the squared lengths over all steps first, solve then, divide last.
    """
    random = np.random.default_rng(5)
    cases = (
        ("1 step of 2 micro-batches of 1 example", 1, 2, 1, 2.0),
        ("200 steps of 4 micro-batches of 8 examples", 200, 4, 8, 0.6),
        ("50 steps of 3 micro-batches of 5 examples", 50, 3, 5, 0.4),
    )
    for what, count, pieces, examples, truth in cases:
        noise = random.normal(0, 1, (count, pieces, 20)) / np.sqrt(examples)
        steps = truth * (1 + np.arange(20) / 10) + noise
        got = answer(steps.copy(), examples)
        slip = partial(_slip, got, steps, examples)
        expect(got, noise_scale(steps, examples), what, rel=1e-4, why=slip)


def _slip(got, steps, examples):
    """Return what may be wrong with an answer, or nothing."""
    for slip, words in _SLIPS.items():
        try:
            is_this = abs(got / slip(steps, examples) - 1) < 1e-6
        except (TypeError, ValueError, ZeroDivisionError):
            is_this = False
        if is_this:
            return f". {words}"
    return ""


@_check_noise_scale.refuses("The gradient of the batch is noisy too")
def _takes_the_mean_for_the_truth(steps, examples):
    batch = steps.shape[1] * examples
    small = np.sum(steps**2, axis=-1).mean()
    large = np.sum(steps.mean(axis=1) ** 2, axis=-1).mean()
    return (small - large) / (1 / examples - 1 / batch) / large


@_check_noise_scale.refuses("Divide by one less than the number of micro-batches")
def _variance_of_all(steps, examples):
    noise = examples * steps.var(axis=1).sum(axis=-1).mean()
    square = np.sum(steps.mean(axis=1) ** 2, axis=-1).mean() - noise / steps.shape[1] / examples
    return noise / square


@_check_noise_scale.refuses("This counts micro-batches")
def _in_micro_batches(steps, examples):
    return noise_scale(steps, 1)


@_check_noise_scale.refuses("A mean of quotients is not the quotient of the means")
def _a_quotient_for_each_step(steps, examples):
    return np.mean([noise_scale(step[None], examples) for step in steps])


@_check_noise_scale.refuses("1 step of 2 micro-batches of 1 example: expected about")
def _squares_the_mean_length(steps, examples):
    batch = steps.shape[1] * examples
    small = np.linalg.norm(steps, axis=-1).mean() ** 2
    large = np.linalg.norm(steps.mean(axis=1), axis=-1).mean() ** 2
    noise = (small - large) / (1 / examples - 1 / batch)
    return noise / (large - noise / batch)


_SLIPS = {
    _takes_the_mean_for_the_truth: "The gradient of the batch is noisy too: its square is |G|² + tr(Σ) / B, not |G|²",
    _variance_of_all: "Divide by one less than the number of micro-batches: their mean was made of them",
    _in_micro_batches: "This counts micro-batches, and the noise scale is a number of examples",
    _a_quotient_for_each_step: "A mean of quotients is not the quotient of the means: |G|² of one step can be near 0",
}
"""Answers that have slipped, and in what."""


def scaling_log(rows, rate_of_one, size, bandwidth):
    found = []
    for devices, batch, seconds, rate in rows:
        computing = batch / devices / rate_of_one
        sending = 2 * (devices - 1) / devices * size / bandwidth
        if abs(rate * seconds / batch - 1) > 0.02:
            found.append("count")
        elif seconds < 0.98 * computing:
            found.append("devices")
        elif seconds < 0.98 * sending:
            found.append("link")
        else:
            found.append("possible")
    return found


@exercise(scaling_log, minutes=12, difficulty=3)
def _check_scaling_log(answer):
    """How long does one device need for its share of the batch, and how long does a ring need for the message? Sending
    may hide behind computing, so a step takes at least the longer of the two, not their sum.
    """
    told = "one device makes 400 images/s, gradients have 0.1 GB, the link 10 GB/s"
    for what, row, expected in _ROWS:
        got = answer([row], 400.0, 0.1e9, 10e9)
        expect(got, [expected], f"{told}: {what}")
    rows = [row for _, row, _ in _ROWS]
    expect(answer(rows, 400.0, 0.1e9, 10e9), [kind for _, _, kind in _ROWS], "all of these rows together")
    row = (4, 64, 0.045, 64 / 0.045)
    step = "64 on 4 devices in 45 ms"
    expect(answer([row], 400.0, 0.1e9, 10e9), ["possible"], f"{told}: {step}")
    expect(answer([row], 400.0, 0.4e9, 10e9), ["link"], f"{step}, with gradients of 0.4 GB")
    expect(answer([row], 300.0, 0.1e9, 10e9), ["devices"], f"{step}, and one device makes 300 images/s")
    expect(answer([row], 400.0, 0.1e9, 3e9), ["link"], f"{step}, over a link of 3 GB/s")


_ROWS = (
    ("64 on 1 device in 160 ms, 400 images/s", (1, 64, 0.160, 400.0), "possible"),
    ("512 on 8 devices in 180 ms, 2,844 images/s", (8, 512, 0.180, 512 / 0.180), "possible"),
    ("512 on 8 devices in 160 ms, all sending hidden", (8, 512, 0.160, 3200.0), "possible"),
    ("512 on 8 devices in 158 ms, 1.2 % less than computing takes", (8, 512, 0.158, 512 / 0.158), "possible"),
    ("512 on 8 devices in 150 ms", (8, 512, 0.150, 512 / 0.150), "devices"),
    ("512 on 8 devices in 170 ms, 3,200 images/s", (8, 512, 0.170, 3200.0), "count"),
    ("512 on 8 devices in 170 ms, 2,850 images/s", (8, 512, 0.170, 2850.0), "count"),
    ("512 on 8 devices in 170 ms, 3 % too many images/s", (8, 512, 0.170, 1.03 * 512 / 0.170), "count"),
    ("60 on 8 devices in 18 ms", (8, 60, 0.018, 60 / 0.018), "devices"),
    ("512 on 8 devices in 170 ms, 1.5 % too many images/s", (8, 512, 0.170, 1.015 * 512 / 0.170), "possible"),
    ("32 on 8 devices in 12 ms", (8, 32, 0.012, 32 / 0.012), "link"),
    ("32 on 8 devices in 17.3 ms, 1.1 % less than a ring takes", (8, 32, 0.0173, 32 / 0.0173), "possible"),
    ("32 on 8 devices in 20 ms", (8, 32, 0.020, 32 / 0.020), "possible"),
    ("16 on 2 devices in 19 ms", (2, 16, 0.019, 16 / 0.019), "devices"),
    ("4 on 2 devices in 9 ms", (2, 4, 0.009, 4 / 0.009), "link"),
    ("512 on 8 devices in 100 ms, 3,200 images/s", (8, 512, 0.100, 3200.0), "count"),
    ("8 on 8 devices in 2 ms", (8, 8, 0.002, 4000.0), "devices"),
)
"""What is said of a row, the row, and what is wrong with it."""


@_check_scaling_log.refuses("512 on 8 devices in 160 ms, all sending hidden: expected ['possible'], got ['devices']")
def _adds_both(rows, rate_of_one, size, bandwidth):
    found = []
    for devices, batch, seconds, rate in rows:
        ring = 2 * (devices - 1) / devices * size / bandwidth
        is_short = seconds < 0.98 * (batch / devices / rate_of_one + ring)
        is_counted = abs(rate * seconds / batch - 1) <= 0.02
        found.append(("devices" if is_short else "possible") if is_counted else "count")
    return found


@_check_scaling_log.refuses("8 devices in 150 ms: expected ['devices'], got ['possible']")
def _believes_the_devices(rows, rate_of_one, size, bandwidth):
    found = scaling_log(rows, rate_of_one, size, bandwidth)
    return ["possible" if one == "devices" else one for one in found]


@_check_scaling_log.refuses("expected ['link'], got ['possible']")
def _forgets_the_message(rows, rate_of_one, size, bandwidth):
    return scaling_log(rows, rate_of_one, 0.0, bandwidth)


@_check_scaling_log.refuses("got ['devices']")
def _the_whole_batch_on_each(rows, rate_of_one, size, bandwidth):
    return scaling_log(rows, rate_of_one / 8, size, bandwidth)
