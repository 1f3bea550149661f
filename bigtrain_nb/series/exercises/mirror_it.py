"""An exercise of notebook 02, "Mirror it", the noise scale; see also `mirror_it_step`, `mirror_it_loops`."""

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


@exercise(
    noise_scale,
    takes="gradients, float64 [steps, micro-batches, weights]; examples in a micro-batch",
    returns="the noise scale, in examples",
    minutes=25,
    difficulty=5,
)
def _check_noise_scale(answer):
    """The squared norm of a gradient over b examples is |G|² + tr(Σ) / b on average. You have gradients for two batch
    sizes: those of the micro-batches, and their mean, the gradient of the full batch. That gives two equations. First
    average the squared norms over all steps, then solve, and divide last.
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
    """Return the likely mistake in an answer, or ""."""
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
    _variance_of_all: "Divide by one less than the number of micro-batches: their mean is computed from them",
    _in_micro_batches: "This counts micro-batches, and the noise scale is a number of examples",
    _a_quotient_for_each_step: "A mean of quotients is not the quotient of the means: |G|² of one step can be near 0",
}
"""{wrong answer: its mistake}"""
