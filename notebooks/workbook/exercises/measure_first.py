"""Exercises of notebook 00, "Measure first"."""

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def rate(batch_sizes, seconds):
    return sum(batch_sizes) / seconds


@exercise(rate, minutes=2, difficulty=1)
def _check_rate(answer):
    """Count examples, not batches: the last batch may be short. A rate is examples per second."""
    expect(answer([64, 64, 64], 2.0), 96.0, "three batches of 64 in 2 s, in examples/s")
    expect(answer([64, 64, 17], 0.5), 290.0, "batches of 64, 64 and 17 in 0.5 s, in examples/s")


@_check_rate.refuses("expected about 96, got 1.5")
def _counts_batches(batch_sizes, seconds):
    return len(batch_sizes) / seconds


@_check_rate.refuses("expected about 290, got 384")
def _ignores_the_short_batch(batch_sizes, seconds):
    return len(batch_sizes) * batch_sizes[0] / seconds


@_check_rate.refuses("expected about 96")
def _upside_down(batch_sizes, seconds):
    return seconds / sum(batch_sizes)


def middle(rounds):
    ordered = sorted(rounds)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


@exercise(middle, minutes=3, difficulty=1)
def _check_middle(answer):
    """Sort a copy (`sorted`). With an even number of rounds, the median is the mean of the two in the middle."""
    expect(answer([5.0, 1.0, 2.0]), 2.0, "the median of 5, 1, 2")
    expect(answer([1000.0, 990.0, 20.0, 1010.0]), 995.0, "the median of 1000, 990, 20, 1010")
    rounds = [3.0, 1.0, 2.0]
    answer(rounds)
    if rounds != [3.0, 1.0, 2.0]:
        raise Wrong(f"the list that was given in: expected it unchanged, got {rounds}")


@_check_middle.refuses("expected about 2, got 2.66667")
def _mean(rounds):
    return sum(rounds) / len(rounds)


@_check_middle.refuses("expected about 2, got 1")
def _forgets_to_sort(rounds):
    return rounds[len(rounds) // 2]


@_check_middle.refuses("expected it unchanged")
def _sorts_the_callers_list(rounds):
    rounds.sort()
    return (rounds[(len(rounds) - 1) // 2] + rounds[len(rounds) // 2]) / 2


def say(low, high, margin=0.02):
    if low > 1 + margin:
        return "faster"
    if high < 1 / (1 + margin):
        return "slower"
    return "same"


@exercise(say, minutes=4, difficulty=2)
def _check_say(answer):
    """Both ends of the interval must lie on the same side of 1, and further off than the margin."""
    expect(answer(1.30, 1.41), "faster", "the verdict on 1.30x to 1.41x")
    expect(answer(0.70, 0.82), "slower", "the verdict on 0.70x to 0.82x")
    expect(answer(0.96, 1.33), "same", "the verdict on 0.96x to 1.33x, which holds 1")
    expect(answer(1.005, 1.015), "same", "the verdict on 1.005x to 1.015x, within the margin of 2 %")


@_check_say.refuses("which holds 1: expected 'same', got 'faster'")
def _looks_at_the_middle(low, high, margin=0.02):
    centre = (low + high) / 2
    return "faster" if centre > 1 else "slower"


@_check_say.refuses("within the margin of 2 %: expected 'same', got 'faster'")
def _forgets_the_margin(low, high, margin=0.02):
    return say(low, high, margin=0.0)


@_check_say.refuses("which holds 1: expected 'same', got 'faster'")
def _mixes_up_the_ends(low, high, margin=0.02):
    return say(high, low, margin)


def schedule(names, passes):
    turns = []
    for number in range(passes):
        if number % 2 == 0:
            turns += names
        else:
            turns += names[::-1]
    return turns


@exercise(schedule, minutes=5, difficulty=2)
def _check_schedule(answer):
    """Turn the order round in every second pass: a b, b a, a b, ... `names[::-1]` is the list backwards."""
    turns = answer(["a", "b"], 4)
    if not isinstance(turns, list) or sorted(turns) != ["a"] * 4 + ["b"] * 4:
        raise Wrong(f"4 passes over a and b: expected a list with each of them four times, got {turns!r}")
    order = " ".join(turns)
    mean_of_a = sum(place for place in range(8) if turns[place] == "a") / 4
    mean_of_b = sum(place for place in range(8) if turns[place] == "b") / 4
    expect(mean_of_a, mean_of_b, f"the mean position of a in {order}, beside that of b")
    for start in range(0, 8, 2):
        if turns[start] == turns[start + 1]:
            raise Wrong(f"each pass visits both: expected no pass without a or b, got {order}")
    expect(answer(["a", "b", "c"], 2), list("abccba"), "2 passes over a, b and c")


@_check_schedule.refuses("the mean position of a in a a a a b b b b")
def _one_after_the_other(names, passes):
    return [name for name in names for _ in range(passes)]


@_check_schedule.refuses("the mean position of a in a b a b a b a b")
def _always_in_the_same_order(names, passes):
    return list(names) * passes


@_check_schedule.refuses("expected no pass without a or b, got a a b b b b a a")
def _mirrored_blocks(names, passes):
    first, *others = names
    outside = [first] * (passes // 2)
    inside = _one_after_the_other(others, passes)
    return outside + inside + outside
