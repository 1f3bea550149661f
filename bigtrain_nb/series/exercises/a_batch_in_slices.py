"""Exercises of notebook 05, "A batch that does not fit": three loops over micro-batches, each with one fault.

A loop trains ``model``, whose weights are one vector, with one update per four micro-batches and one for the rest.
"""

from itertools import combinations

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise

RATE = 0.3

SIZES = {
    "8 micro-batches of 6 examples": [6] * 8,
    "micro-batches of 9, 2, 6 and 7 examples, twice": [9, 2, 6, 7] * 2,
    "10 micro-batches of 6 examples, of which the last 2 are left over": [6] * 10,
    "micro-batches of 9, 2, 6, 7, 3 and 8 examples": [9, 2, 6, 7, 3, 8],
}


def loop_1(model, optimizer, slices, gradients):
    total, examples = 0, 0
    for number, (x, y) in enumerate(slices, start=1):
        total = total + len(x) * gradients(model, x, y)
        examples = examples + len(x)
        if number % 4 == 0 or number == len(slices):
            optimizer.step(model, total / examples)
            total, examples = 0, 0


@exercise(
    loop_1,
    takes=(
        "a model with `weights`, one vector; an optimizer with step(model, gradient); a list of micro-batches (x,"
        " y); gradients(model, x, y) -> gradient of the mean loss"
    ),
    returns="nothing; an update for every four micro-batches, and one for what is left",
    minutes=3,
    difficulty=2,
)
def _check_loop_1(answer):
    """Step through 10 micro-batches by hand: after which of them is there an update?"""
    _expect_big_batches(answer)


def loop_2(model, optimizer, slices, gradients):
    for start in range(0, len(slices), 4):
        total = 0
        group = slices[start : start + 4]
        examples = sum(len(x) for x, y in group)
        for x, y in group:
            total = total + len(x) / examples * gradients(model, x, y)
        optimizer.step(model, total)


@exercise(loop_2, takes="as loop_1", returns="as loop_1", minutes=4, difficulty=3)
def _check_loop_2(answer):
    """The first update is right, but the second is not. What is left over in a variable when the second one starts?"""
    _expect_big_batches(answer)


def loop_3(model, optimizer, slices, gradients, clip):
    for start in range(0, len(slices), 4):
        group = slices[start : start + 4]
        examples = sum(len(x) for x, y in group)
        total = 0
        for x, y in group:
            total = total + len(x) / examples * gradients(model, x, y)
        optimizer.step(model, clip(total))


@exercise(loop_3, takes="as loop_1; clip(gradient) -> gradient", returns="as loop_1", minutes=4, difficulty=3)
def _check_loop_3(answer):
    """When you train on full batches, which gradient is clipped, and how many times per update?"""
    _expect_big_batches(answer, clip=_clip)


def _expect_big_batches(answer, clip=None):
    """Raise Wrong unless the loop ends with the weights of full-batch training; `clip` is passed to it if given."""
    given = [clip] if clip else []
    for what, sizes in SIZES.items():
        slices = _slices(sizes)
        truth = _Network()
        start = truth.weights
        for update in range(-(-len(slices) // 4)):
            _update_with_a_whole_batch(truth, slices[4 * update : 4 * update + 4], clip)

        found = _trained(answer, slices, given)
        moved = np.linalg.norm(truth.weights - start)
        distance = np.linalg.norm(found - truth.weights) / moved
        if not distance < 1e-5:
            told = f"with {what}: expected the large batches' weights within 1e-05, got a difference of {distance:.2g}"
            raise Wrong(f"{told}{_fault(found, slices, clip)}")


def _trained(loop, slices, given):
    """Return the final weights of a loop."""
    model = _Network()
    try:
        loop(model, _Plain(RATE), slices, _gradients, *given)
    except Wrong as raised:
        if isinstance(raised.__cause__, ZeroDivisionError):
            raise Wrong(
                f"{raised}: {len(slices)} micro-batches end with an update, so there is no leftover to apply"
            ) from None
        raise
    return model.weights


def _fault(found, slices, clip):
    """Describe the one or two known faults that lead to these weights; "" if there are none."""
    for faults in (*combinations(FAULTS, 1), *combinations(FAULTS, 2)):
        options = {name: value for words in faults for name, value in FAULTS[words].items()}
        model = _Network()
        _train_wrongly(model, slices, clip, **options)
        if np.allclose(found, model.weights, rtol=0, atol=1e-6):
            return f": {'; and '.join(faults)}"
    return ""


FAULTS = {
    "the weights have not moved": {"updates": False},
    "all micro-batches have equal weight, whatever their size": {"weigh": "alike"},
    "the micro-batches of an update are summed, but not divided by their number": {"weigh": "not at all"},
    "a micro-batch is weighted by the examples of the first four micro-batches, not of its own update": {
        "weigh": "first"
    },
    "there is no update for the leftover micro-batches at the end": {"leftover": False},
    "there is one update per micro-batch": {"every": 1},
    "the sum still holds the gradients of earlier updates": {"empties": False},
    "each micro-batch is clipped separately, not the gradient of the update": {"clips": "slices"},
    "nothing is clipped": {"clips": "nothing"},
    "the sum is clipped after each micro-batch, not once for the update": {"clips": "sums"},
}
"""{fault: the arguments of `_train_wrongly` that reproduce it}"""


def _train_wrongly(
    model,
    slices,
    clip,
    weigh="share",
    every=4,
    leftover=True,
    updates=True,
    empties=True,
    clips="update",
):
    clip = clip or _as_it_is
    total = 0
    for start in range(0, len(slices), every):
        group = slices[start : start + every]
        if not updates or (len(group) < every and not leftover):
            continue
        if empties:
            total = 0
        for x, y in group:
            gradient = _gradients(model, x, y)
            if clips == "slices":
                gradient = clip(gradient)
            total = total + gradient * _weight(x, group, slices[:every], weigh)
            if clips == "sums":
                total = clip(total)
        model.weights = model.weights - RATE * (clip(total) if clips == "update" else total)


def _as_it_is(gradient):
    return gradient


def _weight(x, group, first_group, weigh):
    """Return the weight of a micro-batch in the sum."""
    if weigh == "alike":
        return 1 / len(group)
    if weigh == "not at all":
        return 1
    counted = first_group if weigh == "first" else group
    return len(x) / sum(len(one) for one, _ in counted)


def _update_with_a_whole_batch(model, group, clip):
    x = np.concatenate([x for x, y in group])
    y = np.concatenate([y for x, y in group])
    gradient = _gradients(model, x, y)
    if clip:
        gradient = clip(gradient)
    _Plain(RATE).step(model, gradient)


class _Plain:
    """Plain gradient descent on a network whose weights are one vector."""

    def __init__(self, rate):
        self.rate = rate

    def step(self, model, gradient):
        model.weights = model.weights - self.rate * np.asarray(gradient)


class _Network:
    """One neuron with five inputs: `weights` is one vector, and its gradients are exact."""

    def __init__(self):
        self.weights = np.random.default_rng(1).normal(size=5)


def _gradients(model, x, y):
    output = np.tanh(x @ model.weights)
    slope = 2 * (output - y) * (1 - output**2)
    return slope @ x / len(x)


def _clip(gradient):
    return gradient * min(1, 0.52 / np.linalg.norm(gradient))  # clips some, not all


def _slices(sizes):
    random = np.random.default_rng(0)
    made = []
    for number, size in enumerate(sizes):
        x = random.normal(size=(size, 5)) + number % 3
        made.append((x, np.sin(x.sum(1))))
    return made


@_check_loop_1.refuses("there is no update for the leftover micro-batches at the end")
def _forgets_the_leftover(model, optimizer, slices, gradients):
    whole = len(slices) - len(slices) % 4
    loop_1(model, optimizer, slices[:whole], gradients)


@_check_loop_1.refuses("there is one update per micro-batch")
def _updates_with_every_slice(model, optimizer, slices, gradients):
    for x, y in slices:
        optimizer.step(model, gradients(model, x, y))


@_check_loop_2.refuses("the sum still holds the gradients of earlier updates")
def _keeps_the_sums(model, optimizer, slices, gradients):
    total = 0
    for start in range(0, len(slices), 4):
        group = slices[start : start + 4]
        examples = sum(len(x) for x, y in group)
        for x, y in group:
            total = total + len(x) / examples * gradients(model, x, y)
        optimizer.step(model, total)


@_check_loop_2.refuses("all micro-batches have equal weight, whatever their size")
def _one_vote_each(model, optimizer, slices, gradients):
    for start in range(0, len(slices), 4):
        group = slices[start : start + 4]
        total = 0
        for x, y in group:
            total = total + gradients(model, x, y)
        optimizer.step(model, total / len(group))


@_check_loop_2.refuses("by the examples of the first four micro-batches")
def _divides_by_a_full_group(model, optimizer, slices, gradients):
    examples = sum(len(x) for x, y in slices[:4])
    for start in range(0, len(slices), 4):
        total = 0
        for x, y in slices[start : start + 4]:
            total = total + len(x) / examples * gradients(model, x, y)
        optimizer.step(model, total)


@_check_loop_3.refuses("each micro-batch is clipped separately")
def _clips_each_slice(model, optimizer, slices, gradients, clip):
    def clipped(model, x, y):
        return clip(gradients(model, x, y))

    loop_2(model, optimizer, slices, clipped)


@_check_loop_3.refuses("nothing is clipped")
def _clips_nothing(model, optimizer, slices, gradients, clip):
    loop_2(model, optimizer, slices, gradients)


@_check_loop_3.refuses("the sum is clipped after each micro-batch")
def _clips_the_running_sum(model, optimizer, slices, gradients, clip):
    for start in range(0, len(slices), 4):
        group = slices[start : start + 4]
        examples = sum(len(x) for x, y in group)
        total = 0
        for x, y in group:
            total = clip(total + len(x) / examples * gradients(model, x, y))
        optimizer.step(model, total)


@_check_loop_2.refuses("the micro-batches of an update are summed")
def _adds_up(model, optimizer, slices, gradients):
    for start in range(0, len(slices), 4):
        optimizer.step(model, sum(gradients(model, x, y) for x, y in slices[start : start + 4]))


@_check_loop_1.refuses("the weights have not moved")
def _returns_at_once(model, optimizer, slices, gradients):
    return


@_check_loop_1.refuses("so there is no leftover to apply")
def _always_updates_at_the_end(model, optimizer, slices, gradients):
    total, examples = 0, 0
    for number, (x, y) in enumerate(slices, start=1):
        total = total + len(x) * gradients(model, x, y)
        examples = examples + len(x)
        if number % 4 == 0:
            optimizer.step(model, total / examples)
            total, examples = 0, 0
    optimizer.step(model, total / examples)


@_check_loop_1.refuses("with micro-batches of 9, 2, 6, 7, 3 and 8 examples")
def _takes_the_leftover_for_alike(model, optimizer, slices, gradients):
    total, examples = 0, 0
    for number, (x, y) in enumerate(slices, start=1):
        total = total + len(x) * gradients(model, x, y)
        examples = examples + len(x)
        if number % 4 == 0 or number == len(slices):
            optimizer.step(model, total / (examples if number % 4 == 0 else len(x) * (number % 4)))
            total, examples = 0, 0


@_check_loop_3.refuses("not divided by their number; and nothing is clipped")
def _two_faults(model, optimizer, slices, gradients, clip):
    _adds_up(model, optimizer, slices, gradients)
