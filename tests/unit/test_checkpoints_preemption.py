"""A value from each replica, and how often workers ask each other whether SIGTERM came."""

import os
import signal
import threading

import numpy as np
import pytest
from logical_cpus import mirrored

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train import preemption
from bigtrain_nb.train.all_gather import all_gather
from bigtrain_nb.train.preemption import Preemption


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_value_from_each_replica(replicas):
    strategy = mirrored(replicas) if replicas > 1 else tf.distribute.get_strategy()

    def own(factor):
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
        return factor * tf.stack([[7, 10 + replica]])

    gathered = all_gather(strategy, own)(tf.constant(2**40, tf.int64))
    assert gathered.tolist() == [[[2**40 * 7, 2**40 * (10 + replica)]] for replica in range(replicas)]


class Workers:
    """Asks in place of other workers: one of them took ``seconds`` for a round, and may have heard SIGTERM."""

    def __init__(self, seconds):
        self.seconds, self.came, self.asked = seconds, 0.0, 0

    def __call__(self, own):
        self.asked += 1
        return np.maximum([own.numpy()], [[self.came, self.seconds]])


@pytest.mark.parametrize(("seconds", "asked"), [(0.0, 6), (preemption.ROUND_SECONDS * 2, 63)])
def test_workers_ask_each_other_seldom_after_fast_steps_and_always_after_slow_ones(seconds, asked):
    workers = Workers(seconds)
    watch = Preemption(workers)
    assert not any(watch.came_by_now() for _ in range(63))
    assert workers.asked == asked


def test_all_hear_what_one_has_heard():
    workers = Workers(1.0)
    watch = Preemption(workers)
    assert not watch.came()
    workers.came = 1.0
    assert watch.came_by_now()
    alone = Preemption()
    with alone.listening():
        assert not alone.came_by_now()
        os.kill(os.getpid(), signal.SIGTERM)
        assert alone.came_by_now()
        assert alone.came()


def test_other_threads_hear_no_signals_and_leave_them_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def listen():
        with Preemption().listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [before]
