"""Exercises of notebook 03, "Many workers"."""

import base64
import inspect
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import cloudpickle
import numpy as np
from scripts.forgetful import BATCH, EPOCHS, EXAMPLES, examples, new_model

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

BESIDE_NOTEBOOK = Path(inspect.getfile(new_model)).parents[1]


def reads(policy, files, batch, worker, workers):
    if policy == "FILE":
        files = files[worker::workers]
    examples = []
    for file in files:
        examples += file
    if policy != "DATA":
        return examples

    share = batch // workers
    own = []
    for start in range(worker * share, len(examples), workers * share):
        own += examples[start : start + share]
    return own


@exercise(
    reads,
    takes='"OFF", "FILE" or "DATA"; a list of lists of examples; the global batch; a worker from 0; workers',
    returns="a list of examples",
    minutes=7,
    difficulty=3,
)
def _check_reads(answer):
    """Draw this worker's squares as in the picture. FILE: which files does it read? A slice with a step selects them.
    DATA: how many examples of each batch does it keep, and at which example of the batch do they start?"""
    files = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    told = "files of 4 examples, batches of 4"
    expect(answer("OFF", files, 4, 1, 2), list(range(16)), f"OFF, worker 1 of 2, 4 {told}")
    expect(answer("FILE", files, 4, 1, 2), [4, 5, 6, 7, 12, 13, 14, 15], f"FILE, worker 1 of 2, 4 {told}")
    expect(answer("FILE", files[:3], 4, 0, 3), [0, 1, 2, 3], f"FILE, worker 0 of 3, 3 {told}")
    expect(answer("DATA", files, 4, 1, 2), [2, 3, 6, 7, 10, 11, 14, 15], f"DATA, worker 1 of 2, 4 {told}")
    expect(answer("DATA", files[:3], 6, 0, 3), [0, 1, 6, 7], "DATA, worker 0 of 3, 3 files of 4 examples, batches of 6")


@_check_reads.refuses("FILE, worker 1 of 2, 4 files of 4 examples, batches of 4: expected [4, 5, 6, 7, 12")
def _everyone_reads_all(policy, files, batch, worker, workers):
    return reads("OFF", files, batch, worker, workers)


@_check_reads.refuses("got [8, 9, 10, 11, 12, 13, 14, 15]")
def _files_in_a_row(policy, files, batch, worker, workers):
    if policy != "FILE":
        return reads(policy, files, batch, worker, workers)
    each = len(files) // workers
    own = files[worker * each : (worker + 1) * each]
    return reads("OFF", own, batch, worker, workers)


@_check_reads.refuses("expected [2, 3, 6, 7, 10, 11, 14, 15], got [1, 3, 5, 7, 9, 11, 13, 15]")
def _deals_single_examples(policy, files, batch, worker, workers):
    if policy != "DATA":
        return reads(policy, files, batch, worker, workers)
    return reads("OFF", files, batch, worker, workers)[worker::workers]


def all_reduce(rank, workers, gradient, exchange):
    total = gradient.copy()
    first, last = 0, len(total)
    way = []
    distance = workers // 2
    while distance:
        partner = rank ^ distance
        middle = (first + last) // 2
        lower, upper = slice(first, middle), slice(middle, last)
        mine, theirs = (lower, upper) if rank < partner else (upper, lower)
        total[mine] += exchange(partner, total[theirs])
        way.append((partner, mine, theirs))
        first, last = mine.start, mine.stop
        distance //= 2

    for partner, mine, theirs in reversed(way):
        total[theirs] = exchange(partner, total[mine])
    return total


class _Network:
    """Workers in threads, with an `exchange` that swaps arrays and stops all workers on a deadlock."""

    def __init__(self, workers):
        self.workers = workers
        self.messages = [0] * workers
        self.numbers = [0] * workers
        self._under_way = {(one, other): [] for one in range(workers) for other in range(workers)}
        self._waits_for = {}
        self._running = set(range(workers))
        self._changed = threading.Condition()

    def run(self, answer, gradients):
        """Return each worker's result; raise the function's own error, or `Wrong` if the workers deadlock."""
        with ThreadPoolExecutor(self.workers) as threads:
            running = [threads.submit(self._work, answer, rank, own.copy()) for rank, own in enumerate(gradients)]
        errors = [each.exception() for each in running if each.exception() is not None]
        for error in sorted(errors, key=lambda each: isinstance(each, _Stuck)):  # causes before consequences
            raise error
        return [each.result() for each in running]

    def _work(self, answer, rank, gradient):
        try:
            return answer(rank, self.workers, gradient, partial(self._exchange, rank))
        finally:
            with self._changed:
                self._running.discard(rank)
                self._changed.notify_all()

    def _exchange(self, rank, partner, numbers):
        if partner not in range(self.workers) or partner == rank:
            raise Wrong(f"worker {rank} of {self.workers} asks for an exchange with {partner!r}: no such partner")
        numbers = np.array(numbers)  # a copy: the sender may reuse its array
        with self._changed:
            self.messages[rank] += 1
            self.numbers[rank] += numbers.size
            self._under_way[rank, partner].append(numbers)
            self._waits_for[rank] = partner
            self._changed.notify_all()
            while not self._under_way[partner, rank]:
                if self._are_stuck():
                    self._changed.notify_all()
                    raise _Stuck(
                        f"{self.workers} workers: worker {rank} exchanges with {partner}, which sends it nothing."
                        " Both must name each other at the same time"
                    )
                self._changed.wait()
            del self._waits_for[rank]
            return self._under_way[partner, rank].pop(0)

    def _are_stuck(self):
        return all(
            rank in self._waits_for and not self._under_way[self._waits_for[rank], rank] for rank in self._running
        )


class _Stuck(Wrong):
    """Raised in a worker that would wait forever."""


@exercise(
    all_reduce,
    takes=(
        "rank; workers, a power of two; an array [numbers], its own; exchange(partner, array) -> the partner's array"
    ),
    returns="an array [numbers], the sum",
    minutes=35,
    difficulty=5,
)
def _check_all_reduce(answer):
    """Let the first partner be half of all workers away, the next a quarter, then an eighth. `rank ^ distance` is its
    rank, and leads it back to you. Which of the two keeps the lower half? Record each partner and both halves. To
    double, use the partners in reverse order: send the half that you kept, and receive the one that you gave away."""
    for workers, length in ((2, 4), (4, 12), (8, 24), (1, 3)):
        gradients = np.random.default_rng(workers).normal(size=(workers, length))
        network = _Network(workers)
        for rank, found in enumerate(network.run(answer, gradients)):
            whose = f"worker {rank} of {workers}, with {length} values"
            expect(found, gradients.sum(axis=0), f"{whose}: the sum of all gradients")
            expect(network.messages[rank], 2 * int(np.log2(workers)), f"{whose}: messages sent")
            expect(network.numbers[rank], 2 * (workers - 1) * length // workers, f"{whose}: values sent")


@_check_all_reduce.refuses("worker 0 of 4, with 12 values: values sent: expected 18, got 24")
def _doubles_the_whole(rank, workers, gradient, exchange):
    total = gradient.copy()
    distance = workers // 2
    while distance:
        total += exchange(rank ^ distance, total)
        exchange(rank ^ distance, total[:0])  # to send the expected number of messages
        distance //= 2
    return total


@_check_all_reduce.refuses("worker 0 of 2, with 4 values: the sum of all gradients: expected")
def _halves_only(rank, workers, gradient, exchange):
    total = gradient.copy()
    first, last = 0, len(total)
    distance = workers // 2
    while distance:
        middle = (first + last) // 2
        lower, upper = slice(first, middle), slice(middle, last)
        mine, theirs = (lower, upper) if rank < rank ^ distance else (upper, lower)
        total[mine] += exchange(rank ^ distance, total[theirs])
        first, last = mine.start, mine.stop
        distance //= 2
    return total


@_check_all_reduce.refuses("worker 0 of 4, with 12 values: messages sent: expected 4, got 6")
def _everyone_with_everyone(rank, workers, gradient, exchange):
    share = len(gradient) // workers
    total = gradient.copy()
    own = slice(rank * share, (rank + 1) * share)
    for distance in range(1, workers):
        partner = rank ^ distance
        total[own] += exchange(partner, gradient[partner * share : (partner + 1) * share])
    for distance in range(1, workers):
        partner = rank ^ distance
        total[partner * share : (partner + 1) * share] = exchange(partner, total[own])
    return total


@_check_all_reduce.refuses("4 workers: worker 0 exchanges with 1, which sends it nothing")
def _partner_in_one_direction(rank, workers, gradient, exchange):
    total = gradient.copy()
    half = len(total) // 2
    lower, upper = slice(0, half), slice(half, None)
    distance = 1
    while distance < workers:
        partner = (rank + distance) % workers
        mine, theirs = (lower, upper) if rank < partner else (upper, lower)
        total[mine] += exchange(partner, total[theirs])
        total[theirs] = exchange(partner, total[mine])
        distance *= 2
    return total


def train(folder, tell):
    keras.utils.set_random_seed(1)
    model, optimizer = new_model()
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)

    steps_an_epoch = -(-EXAMPLES // BATCH)
    for epoch in range(int(step) // steps_an_epoch, EPOCHS):
        data = tf.data.Dataset.from_tensor_slices(examples()).shuffle(EXAMPLES, seed=epoch).batch(BATCH)
        for x, y in data.skip(int(step) - epoch * steps_an_epoch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            step.assign_add(1)
            tell(int(step), float(loss))
            if int(step) % 5 == 0:
                manager.save()


STEPS_AN_EPOCH = -(-EXAMPLES // BATCH)
STEPS = EPOCHS * STEPS_AN_EPOCH


@exercise(
    train,
    takes="a folder to keep things in; tell(step, loss), steps from 1",
    returns="nothing; it can be started again with the same folder, in another process",
    minutes=25,
    difficulty=5,
    seconds=300,
)
def _check_train(answer):
    """For everything that determines a step, ask: would it be the same in a new process? The initial weights, the order
    of the examples in this epoch, the current weights, the momentum, and the step number. What no seed reproduces must
    be in a checkpoint (`tf.train.Checkpoint` accepts variables too). The rest can be recomputed or skipped."""
    with TemporaryDirectory() as folder:
        whole = {}

        def tell(step, loss):
            whole[step if step is None else int(step)] = float(loss)

        with tf.device("CPU:0"):  # the order of sums on a GPU is nondeterministic
            answer(os.path.join(folder, "whole"), tell)
        if list(whole) != list(range(1, STEPS + 1)):
            raise Wrong(f"expected tell(1, loss), tell(2, loss), ... tell({STEPS}, loss), got the steps {list(whole)}")
        _expect_training(whole)
        kill_at = random.randrange(STEPS // 3, STEPS - 8)
        killed = _told(answer, os.path.join(folder, "killed"), kill_at)
        _expect_equal(killed, whole, "started with an empty folder in another process: seed the weights, and the order")
        resumed = _told(answer, os.path.join(folder, "killed"), 0)
    where = f"killed after step {kill_at}, started again"
    if not resumed or min(resumed) == 1:
        raise Wrong(f"{where}: expected to continue after the last checkpoint, got step 1 (or none) as the first")
    if min(resumed) > kill_at + 1 or sorted(resumed) != list(range(min(resumed), STEPS + 1)):
        raise Wrong(f"{where}: expected all steps up to {STEPS}, got {sorted(resumed)}")
    _expect_equal(resumed, whole, where)


def _expect_training(whole):
    """Raise `Wrong` if a loss is negative, or if the mean loss is the same in every epoch."""
    if min(whole.values()) < 0:
        raise Wrong(f"expected the mean of squares as the loss, got a negative one: {min(whole.values())!r}")
    short = EXAMPLES - BATCH * (STEPS_AN_EPOCH - 1)
    sizes = [BATCH] * (STEPS_AN_EPOCH - 1) + [short]
    losses = np.reshape(list(whole.values()), (EPOCHS, STEPS_AN_EPOCH)) @ sizes / EXAMPLES
    if np.allclose(losses, losses[0], rtol=1e-4):
        raise Wrong(f"expected weights that change, got a mean loss of {losses[0]:.6g} in each epoch")


def _told(answer, folder, kill_at):
    """Run an answer in a separate process; return the losses that it reported, by step."""
    command = [sys.executable, "-m", "scripts.forgetful", folder, str(kill_at)]
    packed = base64.b64encode(cloudpickle.dumps(answer)).decode()
    cpu = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(command, input=packed, cwd=BESIDE_NOTEBOOK, env=cpu, capture_output=True, text=True)
    if done.returncode not in (0, -9):
        raise Wrong(f"in a separate process: {done.stderr.strip().splitlines()[-1]}")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("told")]
    return {int(step): float.fromhex(loss) for _, step, loss in lines}


def _expect_equal(told, whole, how):
    """Raise `Wrong` unless the losses are bitwise identical to those of the undisturbed run."""
    first = min(told)
    for step, loss in told.items():
        if loss != whole[step]:
            why = "the steps before it were right: what else is state?"
            if step == first:
                why = "other weights, or another batch"
            raise Wrong(f"{how}: at step {step} expected a loss of {whole[step]!r}, got {loss!r} ({why})")


@_check_train.refuses("expected weights that change, got a mean loss of")
def _updates_nothing(folder, tell):
    keras.utils.set_random_seed(1)
    model, _ = new_model()
    data = tf.data.Dataset.from_tensor_slices(examples()).batch(BATCH).repeat(EPOCHS)
    for number, (x, y) in enumerate(data):
        tell(number + 1, float(tf.reduce_mean((model(x) - y) ** 2)))


@_check_train.refuses("seed the weights, and the order")
def _shuffles_without_a_seed(folder, tell):
    model, optimizer = new_model()
    for number in range(STEPS):
        tell(number + 1, number + float(tf.reduce_sum(model.weights[0] ** 2)))


@_check_train.refuses("started again: expected to continue after the last checkpoint, got step 1")
def _only_seeds(folder, tell):
    keras.utils.set_random_seed(1)
    model, optimizer = new_model()
    for number in range(STEPS):
        tell(number + 1, number + float(tf.reduce_sum(model.weights[0] ** 2)))


def _trains(folder, tell, saved, skips):
    """Train like the solution, but checkpoint only the ``saved`` parts, or do not skip trained examples."""
    keras.utils.set_random_seed(1)
    model, optimizer = new_model()
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    parts = {"model": model, "optimizer": optimizer, "step": step}
    checkpoint = tf.train.Checkpoint(**{name: parts[name] for name in saved})
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    checkpoint.restore(manager.latest_checkpoint)
    for epoch in range(int(step) // STEPS_AN_EPOCH, EPOCHS):
        data = tf.data.Dataset.from_tensor_slices(examples()).shuffle(EXAMPLES, seed=epoch).batch(BATCH)
        done = int(step) - epoch * STEPS_AN_EPOCH
        rest = data.skip(done) if skips else data
        for x, y in rest.take(STEPS_AN_EPOCH - done):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            step.assign_add(1)
            tell(int(step), float(loss))
            if int(step) % 5 == 0:
                manager.save()


@_check_train.refuses("the steps before it were right: what else is state?")
def _forgets_the_momentum(folder, tell):
    _trains(folder, tell, saved=("model", "step"), skips=True)


@_check_train.refuses("other weights, or another batch")
def _begins_the_epoch_again(folder, tell):
    _trains(folder, tell, saved=("model", "optimizer", "step"), skips=False)
