"""Exercises of notebook 09, "Cut the model"."""

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.series.exercises._pipeline_clock import expect_each_once, simulate
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def operators(all_reduce):
    @tf.custom_gradient
    def copy(x):
        return tf.identity(x), all_reduce

    @tf.custom_gradient
    def add(x):
        return all_reduce(x), tf.identity

    return copy, add


class _Replicas:
    """Replicas computed one after the other, which need the sums of an all-reduce in advance.

    Each pass records all contributions and uses the sums of the previous pass. It is repeated once for each all-reduce
    that depends on another, and once more.
    """

    def __init__(self, count):
        self.count = count
        self.sums = {}

    def run(self, one_replica):
        for _ in range(6):
            self._noted = {}
            results = [self._one(one_replica, replica) for replica in range(self.count)]
            self.sums = self._noted
        return results

    def _one(self, one_replica, replica):
        self._calls = 0
        return one_replica(replica)

    def all_reduce(self, x):
        """Return the sum of ``x`` over replicas; as in TensorFlow, its gradient is summed over replicas too."""

        @tf.custom_gradient
        def sum_up(x):
            call = self._calls
            self._calls += 1
            known = self.sums.get(call, tf.zeros_like(x))
            self._noted[call] = self._noted.get(call, tf.zeros_like(x)) + x
            return known, self.all_reduce

        return sum_up(x)


def _block(x, columns, rows, copy, add):
    hidden = tf.tanh(copy(x) @ columns)
    return add(hidden @ rows)


@exercise(
    operators,
    takes="all_reduce(x) -> the sum over replicas",
    returns="two functions of a tensor: copy, add",
    minutes=15,
    difficulty=3,
)
def _check_operators(answer):
    """A function under `tf.custom_gradient` returns two things: its result, and a function that computes the gradient
    of its input from that of its result. The table shows both directions of each operator; where it does nothing, it
    returns its argument. Return `copy` first, then `add`.
    """
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(5, 4)), tf.float32)
    a = tf.constant(random.normal(size=(4, 6)), tf.float32)
    b = tf.constant(random.normal(size=(6, 4)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([x, a, b])
        y = tf.tanh(x @ a) @ b
        value = tf.reduce_sum(y**2)
    whole = tape.gradient(value, [x, a, b])

    replicas = _Replicas(2)
    given = answer(replicas.all_reduce)
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise Wrong(f"operators must return two functions, copy and add; got {given!r}")
    copy, add = given

    def one_replica(replica):
        columns, rows = tf.split(a, 2, axis=1)[replica], tf.split(b, 2, axis=0)[replica]
        with tf.GradientTape() as tape:
            tape.watch([x, columns, rows])
            out = _block(x, columns, rows, copy, add)
            value = tf.reduce_sum(out**2)
        return out, *tape.gradient(value, [x, columns, rows])

    results = replicas.run(one_replica)
    for replica, (out, dx, dcolumns, drows) in enumerate(results):
        told = f"replica {replica} of 2"
        expected = [tf.split(whole[1], 2, axis=1)[replica], tf.split(whole[2], 2, axis=0)[replica]]
        _expect_close(out, y, f"{told}: the output of the block")
        _expect_close(drows, expected[1], f"{told}: the gradient of its rows of the second matrix")
        _expect_close(dcolumns, expected[0], f"{told}: the gradient of its columns of the first matrix")
        _expect_close(dx, whole[0], f"{told}: the gradient of the input")


def _expect_close(got, right, what):
    if got is None:
        raise Wrong(f"{what} is None")
    size = float(tf.reduce_max(tf.abs(right)))
    far = float(tf.reduce_max(tf.abs(got - right))) / size
    if far > 1e-4:
        ratio = float(tf.reduce_sum(got * right) / tf.reduce_sum(right * right))
        raise Wrong(f"{what}: relative error {far:.2g}; on average {ratio:.2f} times the correct value")


@_check_operators.refuses("the gradient of the input")
def _copies_without_a_sum(all_reduce):
    _, add = operators(all_reduce)
    return tf.identity, add


@_check_operators.refuses("the output of the block")
def _adds_nothing(all_reduce):
    copy, _ = operators(all_reduce)
    return copy, tf.identity


@_check_operators.refuses("the gradient of its rows of the second matrix")
def _leaves_the_sum_as_it_is(all_reduce):
    copy, _ = operators(all_reduce)
    return copy, all_reduce


def order(stage, stages, micro_batches):
    ahead = min(stages - stage - 1, micro_batches)
    steps = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            steps.append(("forward", ahead + number))
        steps.append(("backward", number))
    return steps


@exercise(
    order,
    takes="a stage from 0; stages; micro-batches",
    returns='a list of ("forward" or "backward", micro-batch from 0)',
    minutes=20,
    difficulty=3,
)
def _check_order(answer):
    """A stage first runs as many forward passes as there are stages after it, so that the last stage can start a
    backward pass. Then it alternates one forward and one backward pass, until no forward passes are left. Do not forget
    the case of fewer micro-batches than stages.
    """
    for stages, micro_batches in [(2, 4), (4, 8), (4, 2), (3, 12)]:
        orders = []
        for stage in range(stages):
            got = answer(stage, stages, micro_batches)
            orders.append(got)
            told = f"stage {stage} of {stages} with {micro_batches} micro-batches"
            expect_each_once(got, ("forward", "backward"), micro_batches, told)
        end, most, _ = simulate(orders)
        told = f"{stages} stages, {micro_batches} micro-batches"
        expect(end, 3.0 * (micro_batches + stages - 1), f"{told}: the end of the step (1 forward, 2 backward)")
        for stage in range(stages):
            allowed = min(stages - stage, micro_batches)
            if most[stage] > allowed:
                raise Wrong(f"{told}: stage {stage} holds {most[stage]} micro-batches at once, {allowed} are enough")


@_check_order.refuses("2 stages, 4 micro-batches: stage 0 holds 4 micro-batches at once, 2 are enough")
def _gpipe(stage, stages, micro_batches):
    forwards = [("forward", number) for number in range(micro_batches)]
    return forwards + [("backward", number) for number in range(micro_batches)]


@_check_order.refuses("the end of the step")
def _one_at_a_time(stage, stages, micro_batches):
    steps = []
    for number in range(micro_batches):
        steps += [("forward", number), ("backward", number)]
    return steps


@_check_order.refuses("stage 1 of 2: the backward pass of 0 comes before its forward pass")
def _one_forward_too_few(stage, stages, micro_batches):
    ahead = min(stages - stage - 1, micro_batches)
    steps = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        steps.append(("backward", number))
        if ahead + number < micro_batches:
            steps.append(("forward", ahead + number))
    return steps


@_check_order.refuses("stage 0 of 4 with 2 micro-batches: ('forward', 2) is in the list, but no such pass exists")
def _forgets_that_there_may_be_few(stage, stages, micro_batches):
    ahead = stages - stage - 1
    steps = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            steps.append(("forward", ahead + number))
        steps.append(("backward", number))
    return steps
