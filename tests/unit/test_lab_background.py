"""Background runs: stopping them, and their failures."""

import threading
import time

import pytest
from labs import SECONDS, background_threads, build, finish, shown, until

from bigtrain_nb.lab.lab import Lab, Stopped
from bigtrain_nb.lab.runs import ALL


@pytest.mark.usefixtures("quick")
class TestBackground:
    @pytest.mark.parametrize("what", [None, ALL])
    def test_stop_answers_at_once_though_the_source_blocks_and_the_next_run_waits_for_its_end(self, gate, what):
        lab = Lab(gate)
        lab.start(what)
        assert lab.running and gate.reached.wait(10)
        for call in (lab.start, lab.run):
            with pytest.raises(RuntimeError, match="a run is going on"):
                call()
        began = time.monotonic()
        lab.stop()
        assert time.monotonic() - began < 5
        assert not lab.running and lab.status == "Stopped; the runs are unchanged."
        lab.start()
        until(lambda: lab.status.startswith("Waiting for another run"))
        assert gate.calls == 1
        gate.opened.set()
        until(lambda: not background_threads())
        assert gate.calls == 1 and [run.name for run in lab.runs] == ["run 1"]

    def test_labs_measure_one_at_a_time(self, lab, gate):
        other = Lab(gate)
        other.start()
        assert gate.reached.wait(10)
        lab.start()
        until(lambda: lab.status.startswith("Waiting for another run"))
        gate.opened.set()
        finish(lab)
        assert not other.running and len(lab.runs) == len(other.runs) == 1


def test_a_long_measurement_ends_when_it_is_stopped(lab):
    def stop_while_it_measures():
        until(lambda: lab.status.startswith("Measuring"))
        lab.stop()

    lab.seconds = 20
    threading.Thread(target=stop_while_it_measures).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        lab.run()
    assert time.monotonic() - began < 10 and lab.runs == []
    lab.seconds = SECONDS
    assert lab.run().name == "run 1"


@pytest.mark.usefixtures("quick")
class TestErrors:
    @staticmethod
    def fails(batch=1):
        if batch == 2:
            raise ValueError("batch is <too> large")
        return build(batch)

    def test_in_a_cell_the_error_comes_through_with_the_settings(self):
        lab = Lab(self.fails, batch=[1, 2])
        with pytest.raises(ValueError, match="too> large") as caught:
            lab.run(batch=2)
        assert "fails with batch=2" in caught.value.__notes__[0]
        assert not lab.running
        assert lab.run(batch=1).name == "run 1"

    def test_on_screen_the_error_is_shown_and_the_lab_stays_usable(self, capfd):
        lab = Lab(self.fails, batch=[1, 2])
        view = shown(lab)
        lab.start()
        finish(lab)
        lab.start("batch")
        finish(lab)
        assert "This run failed, raised by fails with batch=2. ValueError: batch is <too> large" in lab.status
        assert "batch is &lt;too&gt; large" in view.status.value
        assert not view.run.disabled and view.stop.disabled
        lab.start()
        finish(lab)
        assert len(lab.runs) == 2 and capfd.readouterr() == ("", "")

    def test_of_a_long_error_both_ends_are_shown_line_by_line(self):
        def fails():
            raise RuntimeError("the first line\n" + "more\n" * 1000 + "the last line")

        lab = Lab(fails)
        view = shown(lab)
        lab.start()
        finish(lab)
        assert "RuntimeError: the first line\n" in lab.status and lab.status.endswith("more\nthe last line")
        assert len(lab.status) < 700 and "white-space: pre-line" in view.status.value

    def test_after_an_interrupt_the_lab_is_usable(self):
        errors = [KeyboardInterrupt]

        def step():
            if errors:
                raise errors.pop()
            return 1

        lab = Lab(lambda: step)
        with pytest.raises(KeyboardInterrupt):
            lab.run()
        assert not lab.running and "KeyboardInterrupt" in lab.status
        assert lab.run().name == "run 1"
