"""The Lab without a screen: its settings, its runs beside the baseline, and their export."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from labs import SECONDS, build, finish

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.lab import Lab
from bigtrain_nb.measure.results import Comparison, Ratio

quick = pytest.mark.usefixtures("quick")


def test_controls_start_at_the_first_choice():
    lab = Lab(lambda **anything: None, batch=[32, 64], cache=[None, "memory"], shuffle=True, workers=range(2, 9, 3))
    assert lab.settings() == {"batch": 32, "cache": None, "shuffle": True, "workers": 2}
    workers = lab.settings(workers=np.int64(5))["workers"]
    assert workers == 5 and type(workers) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 64}, "batch=64 is not among the choices: expected one of 4, 32, 320"),
        ({"workers": 9}, "workers=9 is not among the choices: expected a whole number from 1 to 4"),
        ({"prefetchh": 2}, "unknown setting 'prefetchh': expected one of batch, prefetch, cache"),
    ],
)
def test_other_settings_are_refused(lab, given, message):
    for call in (lab.run, lab.start):
        with pytest.raises(ValueError, match=message):
            call(**given)
    assert not lab.running and not lab.runs


@pytest.mark.parametrize("returned", [3.2, None, {"rate": 3}, "fast", np.float32(1)])
def test_a_function_that_returns_its_own_result_is_refused_with_what_to_return(returned):
    lab = Lab(lambda batch: returned, batch=[1, 2])
    with pytest.raises(TypeError, match="returned .*; a Lab measures what its function returns: an iterable") as caught:
        lab.run(batch=2)
    assert "with batch=2" in caught.value.__notes__[0]


@pytest.mark.parametrize("given", [64, []])
def test_what_is_no_choice_is_refused(given):
    with pytest.raises(TypeError, match="Lab takes a function that builds what is measured .*, not 64"):
        Lab(64, size=[1])
    with pytest.raises(ValueError, match="size=.*expected a list of choices, a range of whole numbers, True or False"):
        Lab(lambda size: None, size=given)
    with pytest.raises(ValueError, match="seconds=0 must be a positive, finite number of seconds"):
        Lab(build, seconds=0)


class TestMeasured:
    """With real measurements."""

    def test_the_first_run_is_the_baseline_and_later_ones_have_a_ratio_to_it(self, lab):
        first, second = lab.run(), lab.run(batch=320)
        assert lab.runs == [first, second] and lab.baseline is first
        assert first.ratio is None and first.result.unit == "examples/s"
        assert (second.ratio.a, second.ratio.b) == ("run 2", "run 1")
        assert second.ratio.verdict != "slower"  # ten times as fast; a busy machine may hide that, but not turn it
        assert second.settings == {"batch": 320, "prefetch": 0, "cache": False, "workers": 1}

    def test_without_a_notebook_it_needs_neither_widgets_nor_tensorflow(self):
        program = (
            "import sys, time, bigtrain_nb as bt\n"
            "lab = bt.Lab(lambda n: lambda: time.sleep(0.001) or n, seconds=0.05, n=[1, 2])\n"
            "print(lab.run(n=2))\n"
            "assert not {'ipywidgets', 'tensorflow', 'matplotlib.pyplot'} & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("run 1 (n=2): ")


@quick
class TestSweeps:
    def test_all_values_and_the_baseline_are_measured_together(self, lab):
        lab.run()
        swept = lab.sweep("batch", prefetch=2)
        assert [run.settings["batch"] for run in swept] == [4, 32, 320]
        assert {run.settings["prefetch"] for run in swept} == {2}
        for run in swept:
            assert run.comparison.names == ("run 1", "run 2", "run 3", "run 4")
            assert run.ratio.b == "run 1"

    def test_in_a_race_all_combinations_become_runs_and_the_best_are_named(self, lab):
        assert lab.sweep("workers")[0] is lab.runs[0] is lab.baseline and lab.runs[1].ratio.b == "run 1"
        found = lab.race()
        assert lab.settings(batch=320) in found.finalists and {one["batch"] for one in found.finalists} == {320}
        assert len(found.finalists) == 24 and len(found.left) == 48
        assert len(lab.runs) == 76 and lab.baseline is lab.runs[4] and lab.baseline.settings == found.finalists[0]
        assert lab.status.startswith("Cannot be told apart (24 of 72): run 53, run 54, ")
        assert "x), slower" in str(lab.table()) and lab.picture().data


@quick
class TestGoingOn:
    def test_after_a_first_run_and_after_a_race_there_is_nothing_to_go_on_with(self, lab):
        for measure in (lab.run, lab.race):
            measure()
            assert not lab.can_go_on
            for call in (lab.go_on, lab.start_to_go_on):
                with pytest.raises(RuntimeError, match="nothing to go on with"):
                    call()
            assert not lab.running

    @pytest.mark.parametrize("in_background", [False, True])
    def test_what_is_known_then_is_put_into_the_runs_of_the_comparison(self, lab, in_background):
        first, *swept = [lab.run(), *lab.sweep("batch")]
        before = swept[0].comparison
        assert lab.can_go_on and before.looks == 1
        if in_background:
            lab.start_to_go_on()
            finish(lab)
        else:
            assert lab.go_on() == swept
        comparison = swept[0].comparison
        assert comparison is not before and comparison.looks == 2
        for run in swept:
            assert run.comparison is comparison and run.result is comparison.results[run.name]
        assert lab.runs == [first, *swept] and first.comparison is None
        assert lab.can_go_on and lab.status.startswith("run 4 ")

    @pytest.mark.parametrize(("asked", "times"), [(None, 1), (0.5, 1), (3, 3), (50, 10)])
    def test_it_takes_from_once_to_ten_times_as_long_as_the_run_unless_told(self, lab, monkeypatch, asked, times):
        usual, taken = 2 * SECONDS, []
        unclear = {"median": 1.0, "low": 0.9, "high": 1.1, "seconds_more": asked and asked * usual}
        monkeypatch.setattr(Comparison, "ratio", lambda self, a, b: Ratio(a, b, **unclear))
        monkeypatch.setattr(Comparison, "go_on", lambda self, seconds, progress: taken.append(seconds) or self)
        lab.run()
        lab.run(batch=320)
        lab.go_on()
        lab.go_on(seconds=70)
        assert taken == [pytest.approx(times * usual), 70]


@quick
class TestShown:
    def test_runs_that_never_met_were_measured_apart(self, lab):
        first, second, third = lab.run(), lab.run(batch=320), lab.run(batch=4)
        assert runs.verdict(first, first) == "baseline"
        assert runs.verdict(second, first) == "80.0x, faster"
        assert runs.verdict(first, second).endswith("x), slower")
        assert runs.verdict(third, second) == "measured apart"
        lab.baseline = third
        assert lab.run(batch=32).ratio.b == "run 3"

    def test_another_baseline_during_a_run_does_not_add_the_old_one_again(self):
        def choosing(batch):
            if len(lab.runs) == 2:
                lab.baseline = lab.runs[1]
            return build(batch)

        lab = Lab(choosing, batch=[4, 32, 320])
        for batch in (4, 32, 320):
            found = lab.run(batch=batch)
        assert found.name == "run 3" and found.settings == {"batch": 320} and found.ratio.b == "run 1"
        assert [run.name for run in lab.runs] == ["run 1", "run 2", "run 3"] and lab.baseline is lab.runs[1]
        assert lab.status.startswith("run 3 ")

    def test_words_table_and_picture(self, lab):
        with pytest.raises(RuntimeError, match="run something first"):
            lab.picture()
        assert "none so far" in str(lab.table())
        lab.run()
        lab.run(batch=320)
        table, picture = lab.table(), lab.picture()
        assert "batch=320 prefetch=0" in str(table) and "examples/s" in str(table) and "x, faster" in str(table)
        assert table.html.count('scope="row"') == 2 and "<caption" in table.html
        assert picture.data.startswith(b"\x89PNG")
        assert "run 2 (batch=320 " in repr(picture) and "against run 1: 80.0x, faster" in repr(picture)


@quick
class TestExport:
    def test_csv_has_a_line_for_each_run(self, tmp_path):
        lab = Lab(lambda batch, crop: build(batch), batch=[4, 320], crop=[min, max])
        lab.run()
        lab.run(batch=320, crop=max)
        with open(lab.export(tmp_path / "runs.csv"), newline="") as stored:
            first, second = csv.DictReader(stored)
        assert first["crop"] == "min" and first["ratio"] == first["baseline"] == ""
        assert second["crop"] == "max" and second["baseline"] == "run 1" and second["verdict"] == "faster"
        assert float(second["median"]) == lab.runs[1].result.median
        assert float(second["ratio"]) == lab.runs[1].ratio.median

    def test_a_choice_that_is_called_as_another_column_is_refused(self, tmp_path):
        lab = Lab(lambda unit: build(unit), unit=[4, 320])
        lab.run()
        with pytest.raises(ValueError, match="a choice cannot be written under 'unit'"):
            lab.export(tmp_path / "runs.csv")
        assert not (tmp_path / "runs.csv").exists()
