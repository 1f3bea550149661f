"""Exercises of notebook 00, "Measure first"."""

from statistics import median

from bigtrain_nb.measure.intervals import median_interval
from bigtrain_nb.series.drifting import Machine
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

BUDGET = 30
MACHINES = 200
FAST = 0.3
"""Share of its speed that a machine loses per second in the test of the order."""


def rate(sizes, ready):
    made = sum(sizes[1:])
    seconds = ready[-1] - ready[0]
    return made / seconds


@exercise(
    rate,
    takes="the sizes of batches, a list of integers; the seconds at which they were ready, a list",
    returns="examples/s",
    minutes=4,
    difficulty=2,
)
def _check_rate(answer):
    """Draw a timeline, with a mark where each batch was ready. The start-up is before the first mark. How many examples
    were produced between the first mark and the last?"""
    told = "batches of {}, ready at {} s"
    for sizes, ready, expected in (
        ([32, 32, 32, 32, 32], [2.0, 2.5, 3.0, 3.5, 4.0], 64.0),
        ([64, 64, 17], [5.0, 5.1, 5.25], 324.0),
        ([8, 9], [0.5, 2.5], 4.5),
    ):
        what = "examples/s without the start-up; " + told.format(_listed(sizes), _listed(ready))
        expect(answer(list(sizes), list(ready)), expected, what)


def _listed(values):
    return ", ".join(f"{value:g}" for value in values)


@_check_rate.refuses("expected about 64, got 40")
def _with_the_start(sizes, ready):
    return sum(sizes) / ready[-1]


@_check_rate.refuses("expected about 64, got 80")
def _counts_the_first_batch(sizes, ready):
    return sum(sizes) / (ready[-1] - ready[0])


@_check_rate.refuses("expected about 64, got 2")
def _counts_batches(sizes, ready):
    return (len(sizes) - 1) / (ready[-1] - ready[0])


@_check_rate.refuses("ready at 5, 5.1, 5.25 s: expected about 324, got 512")
def _takes_all_batches_for_equal(sizes, ready):
    return sizes[0] * (len(sizes) - 1) / (ready[-1] - ready[0])


@_check_rate.refuses("ready at 5, 5.1, 5.25 s: expected about 324, got 376.667")
def _mean_of_rates(sizes, ready):
    rates = [size / (now - before) for size, before, now in zip(sizes[1:], ready, ready[1:], strict=False)]
    return sum(rates) / len(rates)


def honest_compare(measure):
    ratios = []
    for number in range(24):
        if number % 2 == 0:
            a = measure("a", 0.5)
            b = measure("b", 0.5)
        else:
            b = measure("b", 0.5)
            a = measure("a", 0.5)
        ratios.append(a / b)
    low, high = median_interval(ratios)
    if low > 1.02:
        return "a"
    if high < 1 / 1.02:
        return "b"
    return "unclear"


@exercise(
    honest_compare,
    takes='measure(name, seconds) -> examples/s of "a" or "b", 30 s in all',
    returns='"a", "b" or "unclear"',
    minutes=20,
    difficulty=4,
)
def _check_honest_compare(answer):
    """Many short rounds show more than a few long ones. Each round needs a run of a and a run of b, in an order that
    favors neither. Plan how many fit into the budget. Decide by an interval of the ratios, checked only once."""
    verdicts = {}
    turns = []
    for kind, advantages in {"alike": (1.0, 1.0), "different": (1.2, 1 / 1.2)}.items():
        right = 0
        for seed in range(MACHINES):
            advantage = advantages[seed % 2]
            machine = Machine(f"{kind} {seed}", advantage, BUDGET)
            truth = "unclear" if advantage == 1 else ("a" if advantage > 1 else "b")
            verdict = answer(machine.measure)
            if verdict not in ("a", "b", "unclear"):
                raise Wrong(f'expected "a", "b" or "unclear", got {verdict!r:.50}')
            right += verdict == truth
            turns.append("".join(machine.turns))
        verdicts[kind] = right / MACHINES
    alarms = 1 - verdicts["alike"]
    found = verdicts["different"]
    if alarms > 0.05 or found < 0.9:
        raise Wrong(
            f"of {MACHINES} equal pairs, {100 * alarms:.3g} % got a winner (at most 5 %); of"
            f" {MACHINES} true differences of 1.2x, {100 * found:.3g} % were found (at least 90 %)."
            f" {_reason(turns, alarms)}"
        )
    _expect_no_favour(answer)
    _expect_an_interval(answer)


def _expect_an_interval(answer):
    """Raise `Wrong` if noise three times as large often gives one of two equal sources the win."""
    machines = [Machine(f"noisy {seed}", 1.0, BUDGET, noise=3) for seed in range(MACHINES)]
    alarms = sum(answer(machine.measure) != "unclear" for machine in machines) / MACHINES
    if alarms > 0.05:
        raise Wrong(
            f"of {MACHINES} equal pairs, on machines with three times the noise, {100 * alarms:.3g} % got a winner (at"
            " most 5 %). A fixed margin fits one machine only: decide by an interval, which widens with the noise."
        )


def _expect_no_favour(answer):
    """Raise `Wrong` if one of two equal sources often wins on machines that slow down quickly: the source measured
    first, or in an earlier round, then looks faster."""
    winners = []
    for seed in range(MACHINES // 2):
        machine = Machine(f"slowing {seed}", 1.0, BUDGET, slowing=FAST)
        winners.append(answer(machine.measure))
    for source in ("a", "b"):
        share = winners.count(source) / len(winners)
        if share > 0.1:
            raise Wrong(
                f"of {len(winners)} equal pairs, on machines that lose {FAST:.0%} of their speed per second,"
                f" {source} won in {100 * share:.3g} % (at most 10 %). Neither source may always go first,"
                " and both rates of a ratio must be from the same round."
            )


def _reason(turns, alarms):
    """Return the likely mistake of an answer, from the order of its runs on all machines."""
    first = turns[0]
    half = len(first) // 2
    if len(first) <= 2:
        return "One run of each does not show the variance: split the time into rounds."
    if len(set(first[:half])) == 1:
        return "One source ran after the other: by then the machine had drifted. Interleave them."
    if len({len(order) for order in turns}) > 1 and alarms > 0.05:
        return (
            "You stopped when the difference looked real. Each interim check can give another false positive:"
            " decide on the rounds beforehand, and check once."
        )
    if half < 10:
        return f"{half} rounds of each are too few: one of them decides. Shorter rounds leave time for more."
    if alarms > 0.05:
        return (
            "Noise was taken for a difference. The full confidence interval of the ratios, taken in pairs, must be more"
            " than 2 % away from 1, and neither source may always go first."
        )
    return (
        "The confidence interval is too wide. Use that of the median ratio, not the range of the rounds, and ratios of"
        f" adjacent runs. If you do: {half} rounds of each may be too few, and shorter ones leave time for more."
    )


def _in_turns(measure, rounds, seconds):
    """Return the ratios of interleaved pairs: a b, b a, ..."""
    ratios = []
    for number in range(rounds):
        rates = {}
        for name in ("ab", "ba")[number % 2]:
            rates[name] = measure(name, seconds)
        ratios.append(rates["a"] / rates["b"])
    return ratios


def _by_interval(low, high):
    return "a" if low > 1.02 else "b" if high < 1 / 1.02 else "unclear"


@_check_honest_compare.refuses("A fixed margin fits one machine only")
def _by_a_fixed_margin(measure):
    ratio = median(_in_turns(measure, 24, 0.5))
    return "a" if ratio > 1.08 else "b" if ratio < 1 / 1.08 else "unclear"


@_check_honest_compare.refuses("One source ran after the other")
def _one_after_the_other(measure):
    a = [measure("a", 0.5) for _ in range(24)]
    b = [measure("b", 0.5) for _ in range(24)]
    return _by_interval(*median_interval([one / other for one, other in zip(a, b, strict=True)]))


@_check_honest_compare.refuses("One run of each does not show the variance")
def _one_run_each(measure):
    ratio = measure("a", 14.9) / measure("b", 14.9)
    return _by_interval(ratio, ratio)


@_check_honest_compare.refuses("Noise was taken for a difference")
def _no_interval(measure):
    ratios = _in_turns(measure, 24, 0.5)
    centre = sum(ratios) / len(ratios)
    return _by_interval(centre, centre)


@_check_honest_compare.refuses("5 rounds of each are too few")
def _range_of_few_rounds(measure):
    ratios = _in_turns(measure, 5, 2.9)
    return _by_interval(min(ratios), max(ratios))


@_check_honest_compare.refuses("not the range of the rounds")
def _range_of_many_rounds(measure):
    ratios = _in_turns(measure, 24, 0.5)
    return _by_interval(min(ratios), max(ratios))


@_check_honest_compare.refuses("You stopped when the difference looked real")
def _peeks(measure):
    ratios = []
    for _ in range(24):
        ratios += _in_turns(measure, 1, 0.5)
        low, high = median_interval(ratios)
        if len(ratios) >= 5 and not low <= 1 <= high:
            return "a" if low > 1 else "b"
    return "unclear"


@_check_honest_compare.refuses("50 runs took 30.0 s, and the next one does not fit into 30 s")
def _spends_too_much(measure):
    return _by_interval(*median_interval(_in_turns(measure, 30, 0.5)))
