"""The Lab without a screen: its settings, its runs beside the baseline, and their export."""

import csv
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from labs import SECONDS, build

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.lab import Lab
from bigtrain_nb.measure.results import Result


class TestSettings:
    def test_defaults_are_the_functions_own_where_they_are_choices(self, lab):
        assert lab.settings() == {"batch": 32, "prefetch": 0, "cache": False, "workers": 2}
        assert Lab(lambda size=5: None, size=[1, 2]).settings() == {"size": 1}
        assert Lab(lambda size=9: None, size=(1, 4)).settings() == {"size": 1}
        assert Lab(lambda on=False: None, on=True).settings() == {"on": True}

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"batch": 64}, "batch=64 is not among the choices: expected one of 4, 32, 320"),
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

    @pytest.mark.parametrize(
        ("given", "value"), [((1, 8), np.int64(4)), ((np.int64(1), np.int64(8)), 4), ((1, 8), 4.0), ((0.0, 8.0), 4)]
    )
    def test_numbers_of_every_kind_become_plain_ones(self, given, value):
        accepted = Lab(lambda size: None, size=given).settings(size=value)["size"]
        assert accepted == 4 and type(accepted) is int
        assert type(Lab(lambda size: None, size=(0.0, 1.0)).settings(size=np.float32(0.5))["size"]) is float

    def test_arrays_can_be_choices(self):
        ways = [np.array([1, 2]), np.array([3, 4])]
        lab = Lab(lambda way=ways[1]: build(), seconds=SECONDS, baseline={"way": ways[0]}, way=ways)
        assert lab.settings()["way"] is ways[1] and lab.settings(way=ways[0])["way"] is ways[0]
        assert [run.settings["way"] for run in lab.sweep("way")] == ways
        with pytest.raises(ValueError, match="way=5 is not among the choices"):
            lab.settings(way=5)

    @pytest.mark.parametrize(
        "given",
        [64, "auto", [], (1,), (4, 1), (1, 8, 0), ("a", "b"), None, (True, False), (float("nan"), 1.0)]
        + [(1, float("inf"), 1), (0.0, 1.0, float("nan"))],
    )
    def test_what_is_no_choice_is_refused(self, given):
        with pytest.raises(ValueError, match="size="):
            Lab(lambda size: None, size=given)

    def test_choices_must_fit_the_function(self):
        with pytest.raises(ValueError, match="unexpected keyword argument 'size'"):
            Lab(lambda batch=1: None, size=[1])
        with pytest.raises(ValueError, match="unexpected keyword argument 'size'"):
            Lab(lambda: None, size=[1])
        with pytest.raises(ValueError, match="missing a required argument: 'batch'"):
            Lab(lambda batch, size: None, size=[1])
        with pytest.raises(TypeError, match="build: expected a function"):
            Lab([1, 2, 3])
        assert Lab(lambda **anything: None, size=[1]).settings() == {"size": 1}

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "4", None])
    def test_seconds_are_positive(self, seconds):
        with pytest.raises(ValueError, match=f"seconds={seconds!r} must be a positive, finite number of seconds"):
            Lab(build, seconds=seconds)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"baseline": 5}, "baseline=5 must be a dictionary of settings or None"),
            ({"baseline": {3: 1}}, "unknown setting 3: expected batch"),
            ({"title": 5}, "title=5 must be a string"),
        ],
    )
    def test_other_settings_of_its_own_are_checked(self, given, message):
        with pytest.raises(ValueError, match=message):
            Lab(build, batch=[1, 2], **given)

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
        assert [run.settings["batch"] for run in swept] == [4, 32, 320]
        assert {run.settings["prefetch"] for run in swept} == {2}
        assert all(run.comparison is swept[0].comparison and run.baseline == 1 for run in swept)
        assert set(swept[0].comparison.results) == {"run 1", "run 2", "run 3", "run 4"}

    def test_a_sweep_without_a_baseline_takes_its_first_value(self, lab):
        swept = lab.sweep("cache")
        assert lab.baseline is swept[0] and swept[0].settings["cache"] is False and swept[0].baseline is None
        assert swept[0].ratio is None and swept[1].ratio.b == "run 1"

    def test_a_sweep_of_a_range(self, lab):
        assert [run.settings["workers"] for run in lab.sweep("workers")] == [1, 2, 3, 4]

    def test_sweeps_that_cannot_be(self, lab):
        with pytest.raises(ValueError, match="unknown setting 'size'"):
            lab.sweep("size")
        with pytest.raises(ValueError, match="batch=4: the sweep itself varies batch"):
            lab.sweep("batch", batch=4)
        ranges = Lab(lambda x, n: None, x=(0.0, 1.0), n=(1, 1000))
        with pytest.raises(ValueError, match="x has no step"):
            ranges.sweep("x")
        with pytest.raises(ValueError, match="n has 1000 values; at most 24"):
            ranges.sweep("n")

    def test_a_given_baseline_is_measured_with_the_first_run(self):
        lab = Lab(build, seconds=SECONDS, baseline={"batch": 4}, batch=[4, 32, 320])
        run = lab.run(batch=320)
        assert [each.settings["batch"] for each in lab.runs] == [4, 320]
        assert lab.baseline.number == 1 and run.number == 2 and run.ratio.verdict == "faster"

    def test_a_given_baseline_that_is_run_first_is_measured_alone(self):
        lab = Lab(build, seconds=SECONDS, baseline={"batch": 4}, batch=[4, 32])
        assert lab.run(batch=4).comparison is None and len(lab.runs) == 1

    def test_runs_that_never_met_were_measured_apart(self, lab):
        first, second, third = lab.run(), lab.run(batch=4), lab.run(batch=320)
        assert runs.verdict(first, lab.baseline) == "baseline"
        assert runs.verdict(third, lab.baseline).startswith("faster, ")
        lab.baseline = second
        assert runs.verdict(third, lab.baseline) == "measured apart"
        assert runs.verdict(first, lab.baseline).startswith("faster, ")
        lab.baseline = 3
        assert lab.run(batch=4).ratio.b == "run 3"

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
        lab.run(batch=4)
        path = lab.export(tmp_path / "runs.json")
        stored = json.loads((tmp_path / "runs.json").read_text())
        assert path == str(tmp_path / "runs.json") and stored["baseline"] == 1 and "python" in stored["machine"]
        first, second = stored["runs"]
        assert first["ratio"] is None and second["settings"]["batch"] == 4
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


def test_no_kernel_no_widget_no_pyplot_is_needed():
    program = (
        "import sys, time, bigtrain_nb as bt\n"
        "lab = bt.Lab(lambda n: lambda: time.sleep(0.001) or n, seconds=0.05, n=[1, 2])\n"
        "print(lab.run(n=2))\n"
        "assert not {'ipywidgets', 'tensorflow', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Run 1 (n=2): ")
