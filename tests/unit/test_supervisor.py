"""A supervisor's next step, from a table of what it knows, without processes or a clock."""

import errno
import signal
from dataclasses import replace

import pytest

from bigtrain_nb.launch import supervisor
from bigtrain_nb.launch.supervisor import Known, State, Step, after_restart, free_ports, next_step

RUNS = State()
WELL = State(code=0, ended=10.0)
FAILED = State(code=3, ended=10.0)
WAIT, SUCCESS, STOPPED, TIMEOUT = Step("wait"), *(Step("end", cause=why) for why in ("success", "stopped", "timeout"))


def failure(worker):
    return Step("end", worker, "failure")


@pytest.mark.parametrize(
    ("workers", "now", "more", "step"),
    [
        ([RUNS, RUNS], 100, {}, WAIT),
        ([RUNS, WELL], 100, {}, WAIT),
        ([WELL, WELL], 10, {}, SUCCESS),
        # after a failure the others have two seconds, or less if all have ended
        ([RUNS, FAILED], 11.9, {}, WAIT),
        ([RUNS, FAILED], 12, {}, failure(1)),
        ([WELL, FAILED], 10, {}, failure(1)),
        ([RUNS, FAILED], 12, {"restarts_left": 3}, failure(1)),
        # the first event is the cause
        ([RUNS, RUNS], 20, {"deadline": 20}, TIMEOUT),
        ([RUNS, FAILED], 11, {"deadline": 11}, failure(1)),
        ([RUNS, RUNS], 5, {"stopped": True}, STOPPED),
        ([RUNS, FAILED], 10, {"stopped": True}, failure(1)),
    ],
)
def test_before_the_end(workers, now, more, step):
    assert next_step(Known(workers, now, **more)) == step


@pytest.mark.parametrize(
    ("workers", "now", "more", "step"),
    [
        ([RUNS, FAILED], 16.9, {}, "wait"),
        ([RUNS, FAILED], 17, {}, "kill"),
        ([FAILED, FAILED], 13, {}, "finish"),
        ([FAILED, FAILED], 13, {"restarts_left": 1}, "start all"),
        ([FAILED, FAILED], 13, {"restarts_left": 1, "stopped": True}, "finish"),
        ([FAILED, FAILED], 13, {"restarts_left": 1, "deadline": 13}, "finish"),
        ([RUNS, FAILED], 13, {"restarts_left": 1}, "wait"),
        # the pause begins when the last worker has ended
        ([State(code=-15, ended=15.0), FAILED], 15.9, {"restarts_left": 1, "restarts_in_a_row": 1}, "wait"),
        ([State(code=-15, ended=15.0), FAILED], 16, {"restarts_left": 1, "restarts_in_a_row": 1}, "start all"),
    ],
)
def test_after_the_end_has_begun(workers, now, more, step):
    assert next_step(Known(workers, now, end=failure(1), end_at=12.0, **more)) == Step(step)


@pytest.mark.parametrize("end", [SUCCESS, STOPPED, TIMEOUT])
def test_only_a_failure_is_followed_by_a_restart(end):
    assert next_step(Known([FAILED], 13, restarts_left=1, end=end, end_at=12.0)) == Step("finish")


@pytest.mark.parametrize(
    ("in_a_row", "ran", "seconds"),
    [(0, 5, 0), (1, 5, 1), (2, 5, 2), (5, 5, 16), (6, 5, 30), (5000, 5, 30), (3, 59, 4), (3, 60, 0)],
)
def test_the_pause_before_a_restart_grows_with_failures_in_quick_succession(in_a_row, ran, seconds):
    lost = State(code=1, began=100 - ran, ended=100)
    known = {"restarts_left": 9, "restarts_in_a_row": in_a_row, "end": failure(0), "end_at": 100.0}
    assert next_step(Known([lost], 100 + seconds, **known)) == Step("start all")
    assert next_step(Known([lost], 100 + seconds - 0.01, **known)) == WAIT


def test_restarts_are_counted_and_anew_after_one_that_ran_for_a_minute():
    known, counted = Known([], 0.0, restarts_left=9), []
    for ran in (5, 59, 60, 5):
        ended = [RUNS, State(code=1, began=10.0, ended=10.0 + ran)]
        known = after_restart(replace(known, workers=ended, end=failure(1)))
        counted.append((known.restarts_left, known.restarts_in_a_row, known.end))
    assert counted == [(8, 1, None), (7, 2, None), (6, 1, None), (5, 2, None)]


@pytest.mark.parametrize(
    ("workers", "first"),
    [
        ([State(code=1, ended=9.0), State(code=1, ended=10.0)], 0),
        # a recent traceback counts, an old one does not
        ([State(code=1, ended=9.0), State(code=1, ended=10.0, raised=8.0)], 1),
        ([State(code=1, ended=9.0), State(code=1, ended=10.0, raised=4.9)], 0),
        # a process killed by a signal is noticed late; TensorFlow aborts when a peer is gone
        ([State(code=1, ended=9.0), State(code=-9, ended=10.0)], 1),
        ([State(code=1, ended=9.0), State(code=-signal.SIGABRT, ended=10.0)], 0),
    ],
)
def test_the_first_to_fail(workers, first):
    assert next_step(Known(workers, 10.0)) == failure(first)


def test_ports_are_not_those_that_the_system_gives_to_clients(tmp_path, monkeypatch):
    clients = tmp_path / "range"
    monkeypatch.setattr(supervisor, "CLIENTS", clients)
    clients.write_text("10016\t65535\n")
    ports = free_ports(10)
    assert len(set(ports)) == 10 and set(ports) <= set(range(10_000, 10_016))
    clients.write_text("1024 65535\n")  # all ports: no better one is left
    assert 10_000 <= free_ports(1)[0] <= 65_535
    clients.unlink()
    assert 10_000 <= free_ports(1)[0] <= 65_535


def test_ports_that_cannot_be_had_are_an_error_and_no_search_for_ever(monkeypatch):
    def none_left(address):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(supervisor.socket, "create_server", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        free_ports(2)
