"""SIGTERM on any worker: how often workers poll each other, and what each learns."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from bigtrain_nb.train import preemption
from bigtrain_nb.train.preemption import Preemption


class Workers:
    """Replies for two workers: this one, and another whose steps take ``seconds`` or which got SIGTERM."""

    def __init__(self, seconds=0.0, was_requested=False):
        self.other, self.asked_at = [was_requested, seconds], []

    def __call__(self, this):
        self.asked_at.append(self.step)
        return np.array([this, self.other], np.float32)


def run(workers, steps, clock, seconds):
    """Run ``steps`` of ``seconds`` each; return the step after which SIGTERM is known, or None."""
    noted = Preemption(workers)
    for workers.step in range(1, steps + 1):
        clock.now += seconds
        if noted.was_requested_by_now():
            return workers.step
    return None


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_they_ask_twice_as_rarely_until_a_quarter_of_a_second_is_between(clock):
    workers = Workers()
    assert preemption.ROUND_SECONDS == 0.5
    assert run(workers, 20, clock, 0.1) is None
    # 0.1 s and 0.2 s are too short: 2, then 4 steps. 0.4 s is not: 2 steps again, which are too short
    assert workers.asked_at == [1, 3, 7, 9, 13, 15, 19]


def test_they_ask_after_every_step_that_takes_long_enough_on_the_slowest(clock):
    here, there = Workers(), Workers(seconds=0.3)
    run(here, 5, clock, 0.3)
    run(there, 5, clock, 0.001)
    assert here.asked_at == there.asked_at == [1, 2, 3, 4, 5]


def test_what_came_to_another_worker_is_known_at_the_next_question(clock):
    workers = Workers()
    noted = Preemption(workers)
    known = []
    for workers.step in range(1, 8):
        clock.now += 0.1
        workers.other[0] = workers.step >= 4
        known.append(noted.was_requested_by_now())
    assert known == [False] * 6 + [True]


@pytest.mark.parametrize("ask", [None, Workers()], ids=["one worker", "two"])
def test_sigterm_is_noted_while_listening_only(ask):
    before = signal.getsignal(signal.SIGTERM)
    noted = Preemption(ask)
    if ask:
        ask.step = 1
    with noted.listening():
        assert not noted.was_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert noted.was_requested() and (ask or noted.was_requested_by_now())
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_leaves_the_signal_alone():
    handlers = []

    def listen():
        with Preemption().listening():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_ends_by_sigterm():
    noted = Preemption()
    with noted.listening():
        ours, its = os.pipe()
        child = os.fork()
        if not child:
            os.write(its, b"!")
            time.sleep(60)
            os._exit(0)
        os.read(ours, 1)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    assert not noted.was_requested()
