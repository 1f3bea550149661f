"""The Lab without a kernel: settings, runs beside the baseline, background runs, errors, export, and its widgets."""

import csv
import json
import threading
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import ipywidgets
import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances as living_widgets

from bigtrain_nb import lab as lab_module
from bigtrain_nb import measure, runs
from bigtrain_nb.lab import Lab
from bigtrain_nb.results import Comparison, Result

SECONDS = 0.05


def build(batch=32, prefetch=0, cache=False, workers=2, mode=None):
    """A step function of about a millisecond a batch."""

    def step():
        time.sleep(0.001)
        return batch

    return step


@pytest.fixture
def lab():
    made = Lab(build, seconds=SECONDS, batch=[16, 32, 320], prefetch=[0, 2, "AUTOTUNE"], cache=False, workers=(1, 4))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_earlier_labs(monkeypatch):
    monkeypatch.setattr(lab_module, "_displayed", {})


def shown(lab):
    """Display the Lab as a notebook would, and return its widgets."""
    assert "application/vnd.jupyter.widget-view+json" in lab._repr_mimebundle_()
    return lab._view


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def finish(lab):
    until(lambda: not lab.running)


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name == "lab-run"]


class Gate:
    """A build whose source blocks in its step until the gate opens."""

    def __init__(self):
        self.opened, self.reached, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self):
        self.calls += 1

        def step():
            self.reached.set()
            self.opened.wait(30)
            time.sleep(0.001)
            return 1

        return step


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


class TestSettings:
    def test_defaults_are_the_functions_own_where_they_are_choices(self, lab):
        assert lab.settings() == {"batch": 32, "prefetch": 0, "cache": False, "workers": 2}
        assert Lab(lambda size=5: None, size=[1, 2]).settings() == {"size": 1}
        assert Lab(lambda size=9: None, size=(1, 4)).settings() == {"size": 1}
        assert Lab(lambda on=False: None, on=True).settings() == {"on": True}

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"batch": 64}, "batch=64 is not among the choices: expected one of 16, 32, 320"),
            ({"prefetch": False}, "prefetch=False is not among the choices"),
            ({"cache": 1}, "cache=1 is not among the choices: expected one of False, True"),
            ({"workers": 9}, "workers=9 is out of range: expected a whole number from 1 to 4"),
            ({"workers": 2.5}, "workers=2.5 is out of range"),
            ({"workers": "two"}, "workers=two is out of range"),
            ({"prefetchh": 2}, "unknown setting 'prefetchh': did you mean 'prefetch'"),
            ({"zzz": 2}, "unknown setting 'zzz': expected batch, prefetch, cache, workers"),
        ],
    )
    def test_other_values_are_refused(self, lab, given, message):
        for call in (lab.run, lab.start):
            with pytest.raises(ValueError, match=message):
                call(**given)
        assert not lab.running and not lab.runs

    def test_ranges_have_steps(self):
        lab = Lab(lambda a, b: None, a=(0, 8, 4), b=(0.0, 1.0, 0.25))
        assert lab.settings(a=4, b=0.75) == {"a": 4, "b": 0.75}
        with pytest.raises(ValueError, match="a=5 is out of range: expected a whole number from 0 to 8 in steps of 4"):
            lab.settings(a=5)
        assert lab.controls["a"].values == (0, 4, 8)
        assert lab.controls["b"].values == (0.0, 0.25, 0.5, 0.75, 1.0)

    @pytest.mark.parametrize("given", [64, "auto", [], (1,), (4, 1), (1, 8, 0), ("a", "b"), None, (True, False)])
    def test_what_is_no_choice_is_refused(self, given):
        with pytest.raises(ValueError, match="size="):
            Lab(lambda size: None, size=given)

    def test_choices_must_fit_the_function(self):
        with pytest.raises(ValueError, match="unexpected keyword argument 'size'"):
            Lab(lambda batch=1: None, size=[1])
        with pytest.raises(ValueError, match="missing a required argument: 'batch'"):
            Lab(lambda batch, size: None, size=[1])
        with pytest.raises(TypeError, match="build: expected a function"):
            Lab([1, 2, 3])
        assert Lab(lambda **anything: None, size=[1]).settings() == {"size": 1}

    @pytest.mark.parametrize("seconds", [0, -1, float("nan")])
    def test_seconds_are_positive(self, seconds):
        with pytest.raises(ValueError, match="seconds="):
            Lab(build, seconds=seconds)

    def test_baseline_settings_are_checked_at_once(self):
        with pytest.raises(ValueError, match="batch=3 is not among"):
            Lab(build, baseline={"batch": 3}, batch=[1, 2])


class TestRuns:
    def test_the_first_run_is_the_baseline_and_later_ones_have_a_ratio_to_it(self, lab):
        first, second = lab.run(), lab.run(batch=320)
        assert lab.runs == [first, second] and lab.baseline is first
        assert first.ratio is None and first.baseline is None and first.result.unit == "examples/s"
        assert second.baseline == 1 and second.ratio.a == "run 2" and second.ratio.b == "run 1"
        assert second.ratio.verdict == "faster"
        assert set(second.comparison.results) == {"run 1", "run 2"}
        assert second.settings == {"batch": 320, "prefetch": 0, "cache": False, "workers": 2}

    def test_labels_name_only_what_differs(self, lab):
        first = lab.run()
        assert first.label == "run 1"
        second = lab.run(prefetch=2)
        assert (first.label, second.label) == ("prefetch=0", "prefetch=2")
        third = lab.run(prefetch=2, cache=True)
        assert (second.label, third.label) == ("prefetch=2 cache=False", "prefetch=2 cache=True")

    def test_a_sweep_measures_all_values_and_the_baseline_together(self, lab):
        lab.run()
        swept = lab.sweep("batch", prefetch=2)
        assert [run.settings["batch"] for run in swept] == [16, 32, 320]
        assert {run.settings["prefetch"] for run in swept} == {2}
        assert all(run.comparison is swept[0].comparison and run.baseline == 1 for run in swept)
        assert set(swept[0].comparison.results) == {"run 1", "run 2", "run 3", "run 4"}

    def test_a_sweep_without_a_baseline_takes_its_first_value(self, lab):
        swept = lab.sweep("cache")
        assert lab.baseline is swept[0] and swept[0].settings["cache"] is False
        assert swept[0].ratio is None and swept[1].ratio.b == "run 1"

    def test_a_sweep_of_a_range(self, lab):
        assert [run.settings["workers"] for run in lab.sweep("workers")] == [1, 2, 3, 4]

    def test_sweeps_that_cannot_be(self, lab):
        with pytest.raises(ValueError, match="unknown setting 'size'"):
            lab.sweep("size")
        with pytest.raises(ValueError, match="batch=16: the sweep itself varies batch"):
            lab.sweep("batch", batch=16)
        ranges = Lab(lambda x, n: None, x=(0.0, 1.0), n=(1, 1000))
        with pytest.raises(ValueError, match="x has no step"):
            ranges.sweep("x")
        with pytest.raises(ValueError, match="n has 1000 values; at most 24"):
            ranges.sweep("n")

    def test_a_given_baseline_is_measured_with_the_first_run(self):
        lab = Lab(build, seconds=SECONDS, baseline={"batch": 16}, batch=[16, 32, 320])
        run = lab.run(batch=320)
        assert [each.settings["batch"] for each in lab.runs] == [16, 320]
        assert lab.baseline.number == 1 and run.number == 2 and run.ratio.verdict == "faster"

    def test_a_given_baseline_that_is_run_first_is_measured_alone(self):
        lab = Lab(build, seconds=SECONDS, baseline={"batch": 16}, batch=[16, 32])
        assert lab.run(batch=16).comparison is None and len(lab.runs) == 1

    def test_runs_that_never_met_were_measured_apart(self, lab):
        first, second, third = lab.run(), lab.run(batch=16), lab.run(batch=320)
        assert runs.verdict(first, lab.baseline) == "baseline"
        assert runs.verdict(third, lab.baseline).startswith("faster, ")
        lab.baseline = second
        assert runs.verdict(third, lab.baseline) == "measured apart"
        assert runs.verdict(first, lab.baseline).startswith("faster, ")
        lab.baseline = 3
        assert lab.run(batch=16).ratio.b == "run 3"

    def test_a_baseline_is_a_run_of_this_lab(self, lab):
        with pytest.raises(ValueError, match="baseline=1 is not a run of this Lab: expected one of none so far"):
            lab.baseline = 1
        lab.run()
        with pytest.raises(ValueError, match="baseline=7 .*expected one of 1"):
            lab.baseline = 7

    def test_a_build_may_return_batches_or_something_with_a_dataset(self):
        batches = [np.zeros((4, 2)), np.zeros((3, 2))]
        assert Lab(lambda: batches, seconds=SECONDS).run().result.unit == "examples/s"
        lab = Lab(lambda: SimpleNamespace(dataset=lambda: batches), seconds=SECONDS)
        assert lab.run().result.median > 0

    def test_words_table_and_picture(self, lab):
        with pytest.raises(RuntimeError, match="run something first"):
            lab.picture()
        assert "none so far" in str(lab.table())
        lab.run()
        lab.run(batch=320)
        table, picture = lab.table(), lab.picture()
        assert "batch=320 prefetch=0" in str(table) and "examples/s" in str(table) and "faster, " in str(table)
        assert table.html.count('scope="row"') == 2 and "<caption" in table.html
        assert picture.data.startswith(b"\x89PNG")
        assert "Run 2 (batch=320)" in repr(picture) and "against run 1: faster" in repr(picture)

    def test_only_the_last_runs_are_shown_and_the_baseline_always(self, lab, monkeypatch):
        monkeypatch.setattr(runs, "SHOWN", 3)
        for _ in range(5):
            lab.run()
        assert [run.number for run in runs.shown(lab.runs, lab.baseline)] == [1, 4, 5]
        assert "2 more are in the export" in str(lab.table())


class TestExport:
    def test_json_holds_everything(self, lab, tmp_path):
        lab.run()
        lab.run(batch=16)
        path = lab.export(tmp_path / "runs.json")
        stored = json.loads((tmp_path / "runs.json").read_text())
        assert path == str(tmp_path / "runs.json") and stored["baseline"] == 1 and "python" in stored["machine"]
        first, second = stored["runs"]
        assert first["ratio"] is None and second["settings"]["batch"] == 16
        assert Result.from_dict(second["result"]) == lab.runs[1].result
        assert second["ratio"]["verdict"] == "slower" and second["baseline_result"]["name"] == "run 1"

    def test_csv_has_a_line_for_each_run(self, lab, tmp_path):
        lab.run()
        lab.run(prefetch="AUTOTUNE")
        lab.export(tmp_path / "runs.csv")
        with open(tmp_path / "runs.csv", newline="") as file:
            first, second = csv.DictReader(file)
        assert first["prefetch"] == "0" and first["ratio"] == "" and second["prefetch"] == "AUTOTUNE"
        assert float(second["median"]) == lab.runs[1].result.median and second["baseline"] == "1"

    def test_functions_among_the_choices_are_written_by_name(self, tmp_path):
        lab = Lab(lambda crop: build(), seconds=SECONDS, crop=[min, max])
        lab.run(crop=max)
        lab.export(tmp_path / "runs.json")
        assert json.loads((tmp_path / "runs.json").read_text())["runs"][0]["settings"] == {"crop": "max"}

    def test_an_unknown_ending_or_folder_is_refused_and_leaves_nothing(self, lab, tmp_path):
        lab.run()
        with pytest.raises(ValueError, match="expected a name that ends in .json or .csv"):
            lab.export(tmp_path / "runs.xlsx")
        with pytest.raises(OSError, match="nowhere"):
            lab.export(tmp_path / "nowhere" / "runs.json")
        assert list(tmp_path.iterdir()) == []

    def test_nothing_to_export_is_an_empty_table(self, lab, tmp_path):
        lab.export(tmp_path / "runs.csv")
        assert (tmp_path / "runs.csv").read_text().startswith("run,unit,median")


class TestBackground:
    def test_start_returns_at_once_and_the_run_arrives(self, lab):
        lab.start(batch=16)
        assert lab.running
        with pytest.raises(RuntimeError, match="a run is going on"):
            lab.start()
        with pytest.raises(RuntimeError, match="a run is going on"):
            lab.run()
        finish(lab)
        assert [run.settings["batch"] for run in lab.runs] == [16] and "Run 1" in lab.status

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


class TestView:
    def test_every_kind_of_choice_has_its_native_control(self, lab):
        view = shown(lab)
        kinds = {name: type(field) for name, field in view.fields.items()}
        assert kinds == {
            "batch": ipywidgets.Dropdown,
            "prefetch": ipywidgets.Dropdown,
            "cache": ipywidgets.Checkbox,
            "workers": ipywidgets.BoundedIntText,
        }
        assert [field.description for field in view.fields.values()] == list(kinds)
        assert {field.style.description_width for field in view.fields.values()} == {"11em"}
        floats = shown(Lab(lambda rate: None, rate=(0.0, 1.0)))
        assert isinstance(floats.fields["rate"], ipywidgets.BoundedFloatText)

    def test_every_button_says_what_it_does(self, lab):
        view = shown(lab)
        assert all(button.tooltip for button in (view.run, view.stop, view.sweep, view.export))

    def test_buttons_follow_the_state(self, gate):
        lab = Lab(gate, seconds=SECONDS)
        view = shown(lab)
        assert not view.run.disabled and view.stop.disabled and view.export.disabled
        view.run.click()
        assert view.run.disabled and not view.stop.disabled
        assert gate.reached.wait(10)
        view.stop.click()
        assert not view.run.disabled and view.stop.disabled and "Stopped" in view.status.value
        gate.opened.set()
        view.run.click()
        finish(lab)
        assert not view.export.disabled and view.progress.value == 0

    def test_run_takes_the_controls(self, lab):
        view = shown(lab)
        view.fields["prefetch"].index = 2
        view.fields["cache"].value = True
        view.fields["workers"].value = 4
        view.run.click()
        finish(lab)
        assert lab.runs[0].settings == {"batch": 32, "prefetch": "AUTOTUNE", "cache": True, "workers": 4}

    def test_choices_that_look_alike_are_told_apart(self):
        lab = Lab(lambda size: build(), seconds=SECONDS, size=["2", 2, None])
        view = shown(lab)
        view.fields["size"].index = 1
        view.run.click()
        finish(lab)
        assert lab.runs[0].settings == {"size": 2}

    def test_try_all_takes_the_other_controls(self, lab):
        view = shown(lab)
        view.fields["prefetch"].index = 1
        view.swept.value = "batch"
        view.sweep.click()
        finish(lab)
        assert [(run.settings["batch"], run.settings["prefetch"]) for run in lab.runs] == [(16, 2), (32, 2), (320, 2)]

    def test_a_refused_setting_is_said_in_the_status(self):
        lab = Lab(lambda size: build(), size=(0, 8, 4))
        view = shown(lab)
        view.fields["size"].value = 5
        view.run.click()
        assert "size=5 is out of range" in view.status.value and not lab.running

    def test_the_picture_and_the_table_follow_the_runs(self, lab):
        view = shown(lab)
        lab.run()
        first = view.picture.value
        lab.run(batch=320)
        assert view.picture.value != first and view.table.value.count('scope="row"') == 2
        image = ElementTree.fromstring(view.picture.value).find("{http://www.w3.org/2000/svg}svg")
        assert image.get("role") == "img" and "Run 2 (batch=320): " in image.get("aria-label")
        assert "faster" in image.get("aria-label")
        assert 'aria-live="polite"' in view.status.value and "Run 2" in view.status.value
        assert "currentColor" in view.picture.value and "currentColor" in view.table.value

    def test_the_baseline_can_be_chosen(self, lab):
        view = shown(lab)
        lab.run()
        lab.run(batch=16)
        assert lab.baseline.number == view.baseline.value == 1
        before = view.picture.value
        view.baseline.value = 2
        assert lab.baseline.number == 2 and view.picture.value != before
        lab.run(batch=320)
        assert view.baseline.value == 2 and lab.baseline.number == 2
        lab.baseline = 1
        assert view.baseline.value == 1

    def test_export_says_where(self, lab, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        view = shown(lab)
        lab.run()
        view.export.click()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lab-runs.csv", "lab-runs.json"]
        assert str(tmp_path / "lab-runs.json") in view.status.value

    def test_export_that_fails_is_said_in_the_status(self, lab, monkeypatch):
        view = shown(lab)
        lab.run()
        monkeypatch.setattr(runs, "write", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
        view.export.click()
        assert "PermissionError: read-only" in view.status.value

    def test_progress_comes_at_most_ten_times_a_second(self, lab):
        view = shown(lab)
        seen = []
        view.progress.observe(lambda change: seen.append(change["new"]), "value")
        lab.seconds = 1.0
        began = time.monotonic()
        lab.run()
        assert 2 <= len(seen) <= 10 * (time.monotonic() - began) + 2
        assert 0 < max(seen) <= 1 and seen[-1] == 0

    def test_a_background_run_writes_nothing(self, lab, capfd):
        shown(lab)
        lab.start()
        finish(lab)
        assert capfd.readouterr() == ("", "")

    def test_running_the_cell_again_leaves_one_lab(self):
        def cell(title=""):
            made = Lab(build, seconds=SECONDS, title=title, batch=[1, 2])
            shown(made)
            return made

        before = set(living_widgets)
        first = cell()
        one = len(set(living_widgets) - before)
        first.start()
        second = cell()
        assert not first.running and first._view is None
        assert len(set(living_widgets) - before) == one
        other = cell("another")
        assert second._view is not None and other._view is not None
        second.close()
        other.close()
        assert set(living_widgets) == before

    def test_a_lab_shown_twice_has_one_set_of_widgets(self, lab):
        view = shown(lab)
        assert shown(lab) is view

    def test_a_closed_lab_keeps_its_runs_and_can_be_shown_again(self, lab):
        shown(lab)
        lab.run()
        lab.close()
        assert lab.run(batch=16).number == 2
        assert shown(lab).table.value.count('scope="row"') == 2

    def test_a_hundred_runs_leak_neither_threads_nor_widgets(self, lab, monkeypatch):
        monkeypatch.setattr(runs, "SHOWN", 2)
        monkeypatch.setattr(measure, "compare", _quick_compare)
        shown(lab)
        lab.run()
        threads, widgets = threading.active_count(), len(living_widgets)
        for number in range(100):
            lab.start(batch=16)
            if number % 4 == 0:
                lab.stop()
            finish(lab)
        until(lambda: threading.active_count() <= threads)
        assert len(lab.runs) >= 76
        assert len(living_widgets) == widgets


def _quick_compare(sources, *, seconds, progress):
    progress(0.5)
    return Comparison(
        {name: Result(name, (99.0, 101.0, 100.0) * 3, "steps/s", 0.1, 9, 0.1) for name in sources if sources[name]()}
    )


def test_no_kernel_no_widget_no_pyplot_is_needed():
    import subprocess
    import sys

    program = (
        "import sys, time, bigtrain_nb as bt\n"
        "lab = bt.Lab(lambda n: lambda: time.sleep(0.001) or n, seconds=0.05, n=[1, 2])\n"
        "print(lab.run(n=2))\n"
        "assert not {'ipywidgets', 'tensorflow', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Run 1 (n=2): ")
