"""Runs in the background: stopping them, and what happens when they fail."""

import threading
import time

import numpy as np
import pytest
from labs import SECONDS, background_threads, build, finish, shown, until

from bigtrain_nb.lab import lab as lab_module
from bigtrain_nb.lab.lab import Lab
from bigtrain_nb.measure import benchmark as measure
from bigtrain_nb.measure.results import Result


class TestBackground:
    def test_start_returns_at_once_and_the_run_arrives(self, lab):
        lab.start(batch=4)
        assert lab.running
        with pytest.raises(RuntimeError, match="a run is going on"):
            lab.start()
        with pytest.raises(RuntimeError, match="a run is going on"):
            lab.run()
        finish(lab)
        assert [run.settings["batch"] for run in lab.runs] == [4] and "Run 1" in lab.status

    def test_start_of_a_sweep(self, lab):
        lab.start("batch")
        finish(lab)
        assert len(lab.runs) == 3

    def test_stop_answers_at_once_though_the_source_blocks(self, gate):
        lab = Lab(gate, seconds=SECONDS)
        lab.start()
        assert gate.reached.wait(10)
        began = time.monotonic()
        lab.stop()
        assert time.monotonic() - began < 0.5
        assert not lab.running and lab.status == "Stopped; nothing of that run was kept."
        gate.opened.set()
        until(lambda: not background_threads())
        assert lab.runs == [] and lab.status.startswith("Stopped")

    def test_a_result_that_comes_after_stop_is_dropped(self, monkeypatch):
        held, reached = threading.Event(), threading.Event()

        def late(source, **_):
            reached.set()
            held.wait(30)
            return Result("late", (1.0,) * 6, "steps/s", 0.1, 6, 1.0)

        monkeypatch.setattr(measure, "throughput", late)
        lab = Lab(build, seconds=SECONDS)
        lab.start()
        assert reached.wait(10)
        lab.stop()
        held.set()
        until(lambda: not background_threads())
        assert lab.runs == [] and lab.error is None and lab.status.startswith("Stopped")

    def test_a_new_run_waits_until_the_stopped_one_has_let_go(self, gate):
        lab = Lab(gate, seconds=SECONDS)
        lab.start()
        assert gate.reached.wait(10)
        lab.stop()
        lab.start()
        until(lambda: lab.status.startswith("Waiting for an earlier run"))
        assert gate.calls == 1
        gate.opened.set()
        finish(lab)
        assert gate.calls == 2 and [run.number for run in lab.runs] == [1]

    def test_the_wait_is_bounded(self, gate, monkeypatch):
        monkeypatch.setattr(lab_module, "PATIENCE", 0.2)
        lab = Lab(gate, seconds=SECONDS)
        lab.start()
        assert gate.reached.wait(10)
        lab.stop()
        with pytest.raises(TimeoutError, match="an earlier run has not ended after"):
            lab.run()
        assert not lab.running and "TimeoutError" in lab.status
        gate.opened.set()
        assert lab.run().number == 1

    def test_a_run_that_waits_can_be_stopped(self, gate):
        lab = Lab(gate, seconds=SECONDS)
        for _ in range(5):
            lab.start()
            assert gate.reached.wait(10)
            lab.stop()
        gate.opened.set()
        until(lambda: not background_threads())
        assert gate.calls == 1 and lab.runs == []

    def test_labs_measure_one_at_a_time(self, lab, gate):
        other = Lab(gate, seconds=SECONDS)
        other.start()
        assert gate.reached.wait(10)
        lab.start()
        until(lambda: lab.status.startswith("Waiting for an earlier run"))
        gate.opened.set()
        finish(lab)
        assert not other.running and len(lab.runs) == len(other.runs) == 1

    def test_stop_without_a_run_does_nothing(self, lab):
        before = lab.status
        lab.stop()
        assert lab.status == before

    def test_a_run_in_a_cell_can_be_stopped_from_another_thread(self, lab):
        threading.Timer(0.2, lab.stop).start()
        lab.seconds = 20
        began = time.monotonic()
        with pytest.raises(lab_module.Stopped):
            lab.run()
        assert time.monotonic() - began < 10 and lab.runs == []
        lab.seconds = SECONDS
        assert lab.run().number == 1


class TestErrors:
    @staticmethod
    def fails(batch=1):
        if batch == 2:
            raise ValueError("batch is <too> large")
        return build(batch)

    def test_headless_the_error_comes_through_with_the_settings(self):
        lab = Lab(self.fails, seconds=SECONDS, batch=[1, 2])
        with pytest.raises(ValueError, match="too> large") as caught:
            lab.run(batch=2)
        assert "fails with batch=2" in caught.value.__notes__[0]
        assert not lab.running and lab.error is caught.value
        assert lab.run(batch=1).number == 1 and lab.error is None

    def test_on_screen_the_error_is_shown_and_the_lab_stays_usable(self):
        lab = Lab(self.fails, seconds=SECONDS, batch=[1, 2])
        view = shown(lab)
        lab.start()
        finish(lab)
        lab.start(batch=2)
        finish(lab)
        assert "fails with batch=2. ValueError: batch is <too> large" in lab.status
        assert "batch is &lt;too&gt; large" in view.status.value
        assert isinstance(lab.error, ValueError) and not view.run.disabled and view.stop.disabled
        lab.start()
        finish(lab)
        assert len(lab.runs) == 2

    def test_a_source_that_fails_in_the_middle_names_the_settings_under_way(self):
        def breaks(batch):
            yield np.zeros(batch)
            raise OSError("disk on fire")

        lab = Lab(breaks, seconds=SECONDS, batch=[3])
        lab.start()
        finish(lab)
        assert "while measuring batch=3. OSError: disk on fire" in lab.status

    @pytest.mark.parametrize(("source", "error"), [(None, TypeError), ([], ValueError), ([1.0], ValueError)])
    def test_what_cannot_be_measured_is_an_error(self, source, error):
        lab = Lab(lambda: source, seconds=SECONDS)
        with pytest.raises(error):
            lab.run()
        assert not lab.running

    def test_a_build_that_exits_leaves_the_lab_usable(self):
        def leaves():
            raise SystemExit(3)

        lab = Lab(leaves, seconds=SECONDS)
        lab.start()
        finish(lab)
        assert "SystemExit: 3" in lab.status

    def test_a_kernel_interrupt_comes_through_and_the_lab_stays_usable(self):
        interrupts = [True]

        def interrupted():
            def step():
                if interrupts:
                    interrupts.pop()
                    raise KeyboardInterrupt
                return 1

            return step

        lab = Lab(interrupted, seconds=SECONDS)
        with pytest.raises(KeyboardInterrupt):
            lab.run()
        assert not lab.running and lab.status == "Interrupted; nothing of that run was kept."
        assert lab.run().number == 1

    def test_long_messages_are_cut(self):
        def wordy():
            raise RuntimeError("x" * 100_000)

        lab = Lab(wordy)
        with pytest.raises(RuntimeError):
            lab.run()
        assert len(lab.status) < 1000
