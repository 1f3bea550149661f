"""Exercises of notebook 06, "All of it"."""

import math

from bigtrain_nb.workbook.exercises import exercise, expect


def days(weights, tokens, devices, flops, reached):
    work = 6 * weights * tokens
    seconds = work / (devices * flops * reached)
    return seconds / 86_400


@exercise(days, minutes=4, difficulty=2)
def _check_days(answer):
    """A weight takes 2 FLOPs a token forward and 4 backward. Divide by what all devices do in a second, then by the
    seconds of a day.
    """
    expect(answer(1e9, 1.44e10, 1, 1e15, 1.0), 1.0, "days for 1 B weights, 14.4 B tokens at 1 PFLOP/s, all of it")
    expect(answer(1e9, 1.44e10, 1, 1e15, 0.5), 2.0, "days for 1 B weights, 14.4 B tokens at half of 1 PFLOP/s")
    expect(answer(7e9, 1.44e11, 8, 1e15, 0.5), 17.5, "days for 7 B weights, 144 B tokens, 8 devices, half of 1 PFLOP/s")


@_check_days.refuses("at 1 PFLOP/s, all of it: expected about 1, got 0.333333")
def _forward_only(weights, tokens, devices, flops, reached):
    return days(weights, tokens, devices, flops, reached) / 3


@_check_days.refuses("at 1 PFLOP/s, all of it: expected about 1, got 24")
def _in_hours(weights, tokens, devices, flops, reached):
    return days(weights, tokens, devices, flops, reached) * 24


@_check_days.refuses("at half of 1 PFLOP/s: expected about 2, got 1")
def _reached_in_full(weights, tokens, devices, flops, reached):
    return days(weights, tokens, devices, flops, 1.0)


def rate(batch, at_8, at_512):
    each = (512 / at_512 - 8 / at_8) / (512 - 8)
    overhead = 8 / at_8 - 8 * each
    return batch / (overhead + batch * each)


@exercise(rate, minutes=6, difficulty=3)
def _check_rate(answer):
    """A step of n examples takes overhead + n * each seconds, and n / rate is that time. Two measurements give both
    unknowns.
    """
    # steps of 10 ms + 1 ms an example: 8 take 18 ms, 512 take 522 ms
    at_8 = 8 / 0.018
    at_512 = 512 / 0.522
    expect(answer(8, at_8, at_512), at_8, "examples/s at 8, where 444 were measured")
    expect(answer(512, at_8, at_512), at_512, "examples/s at 512, where 981 were measured")
    expect(answer(1, at_8, at_512), 1 / 0.011, "examples/s at 1, with 444 at 8 and 981 at 512")
    expect(answer(64, at_8, at_512), 64 / 0.074, "examples/s at 64, with 444 at 8 and 981 at 512")


@_check_rate.refuses("examples/s at 1, with 444 at 8 and 981 at 512: expected about 90.9091, got 436.")
def _line_through_rates(batch, at_8, at_512):
    return at_8 + (at_512 - at_8) / (512 - 8) * (batch - 8)


@_check_rate.refuses("examples/s at 8, where 444 were measured: expected about 444.444, got 980.843")
def _no_overhead(batch, at_8, at_512):
    return at_512


@_check_rate.refuses("examples/s at 512, where 981 were measured: expected about 980.843, got 28444.4")
def _only_overhead(batch, at_8, at_512):
    return at_8 / 8 * batch


def slices(batch, constant, each, memory):
    largest = (memory - constant) // each
    return -(-batch // largest)  # rounded up


@exercise(slices, minutes=4, difficulty=2)
def _check_slices(answer):
    """How many whole examples fit beside the constant? So many go into a slice, and the last slice may be shorter."""
    expect(answer(64, 100, 2, 300), 1, "slices of 64 examples of 2 MiB beside 100 MiB, in 300 MiB")
    expect(answer(64, 100, 2, 164), 2, "slices of 64 examples of 2 MiB beside 100 MiB, in 164 MiB")
    expect(answer(64, 100, 2, 150), 3, "slices of 64 examples of 2 MiB beside 100 MiB, in 150 MiB")
    expect(answer(64, 100, 30, 150), 64, "slices of 64 examples of 30 MiB beside 100 MiB, in 150 MiB")


@_check_slices.refuses("in 164 MiB: expected 2, got 1")
def _forgets_the_constant(batch, constant, each, memory):
    return math.ceil(batch * each / memory)


@_check_slices.refuses("in 150 MiB: expected 3, got 2")
def _rounds_down(batch, constant, each, memory):
    return max(1, int(batch * each // (memory - constant)))


@_check_slices.refuses("30 MiB beside 100 MiB, in 150 MiB: expected 64, got 39")
def _parts_of_examples(batch, constant, each, memory):
    return math.ceil(batch * each / (memory - constant))
