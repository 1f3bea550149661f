"""The Lab without a screen: its settings, comparison of runs with the previous one, and export."""

import csv
import gc
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
from labs import SECONDS, build, finish

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.lab import Clock, Lab
from bigtrain_nb.measure.results import Comparison, Race, Result
from bigtrain_nb.plots.canvas import alternative

quick = pytest.mark.usefixtures("quick")


def test_controls_start_at_the_first_choice():
    lab = Lab(lambda **anything: None, batch=[32, 64], cache=[None, "memory"], shuffle=True, workers=range(2, 9, 3))
    assert lab.settings() == {"batch": 32, "cache": None, "shuffle": True, "workers": 2}
    workers = lab.settings(workers=np.int64(5))["workers"]
    assert workers == 5 and type(workers) is int


@quick
def test_choices_with_dollar_signs_are_drawn_as_they_are():
    lab = Lab(lambda layers: lambda: 8, seconds=SECONDS, layers=[r"\d+$", r"\w+$|\s$"])
    lab.run()
    lab.run(layers=r"\w+$|\s$")
    assert r"layers=\w+$|\s$" in alternative(runs.figure(lab.runs))
    assert lab.picture().data


@quick
def test_a_baseline_must_be_a_run_of_this_lab(lab):
    lab.run()
    lab.baseline = "run 1"
    with pytest.raises(ValueError, match="baseline='run 1' is not a run of this Lab: use one of lab.runs, or None"):
        lab.run()
    lab.baseline = lab.runs[0]
    assert lab.run(batch=320).against.name == "run 1"


def test_other_settings_are_refused_before_a_run_begins_in_the_background(lab):
    with pytest.raises(ValueError, match="workers=9 is not among the choices: expected an integer from 1 to 4"):
        lab.start(workers=9)
    assert not lab.running and not lab.runs


def test_only_the_last_comparison_and_four_steps_stay_in_memory_and_these_are_not_built_again():
    class Step:
        def __call__(self):
            time.sleep(0.001)
            return 1

    made = []

    def build(n):
        step = Step()
        made.append(weakref.ref(step))
        return step

    lab = Lab(build, seconds=0.01, n=range(6))
    for n in range(6):
        lab.run(n=n)
    lab.run(n=4)
    assert lab.can_extend and lab.runs[-1].against is lab.runs[-2] and len(made) == 6
    gc.collect()
    assert sum(one() is not None for one in made) <= 4


@quick
class TestSweeps:
    def test_all_values_are_measured_together_and_compared_with_the_first(self, lab):
        lab.run()
        swept = lab.sweep("batch", prefetch=2)
        assert [run.settings["batch"] for run in swept] == [4, 32, 320]
        assert {run.settings["prefetch"] for run in swept} == {2}
        assert swept[0].ratio is None and [run.ratio.b for run in swept[1:]] == ["run 2", "run 2"]
        assert swept[0].comparison.names == ("run 2", "run 3", "run 4")

    def test_of_more_than_fit_into_a_picture_the_first_and_the_last_are_shown(self):
        lab = Lab(lambda n: lambda: 100 - n, seconds=SECONDS, n=range(30))
        lab.sweep("n")
        drawn = shown_in(lab)
        assert "run 1, the baseline: n=0;" in drawn and "run 30, 0.71x: slower: n=29;" in drawn
        assert "n=6;" not in drawn and "n=7;" in drawn
        first, *_, last = lab.runs
        assert last.against is first and len(lab.runs) == 30

    def test_a_baseline_is_measured_with_them(self, lab):
        lab.baseline = lab.run()
        for run in lab.sweep("batch"):
            assert run.comparison.names == ("run 1", "run 2", "run 3", "run 4")
            assert run.ratio.b == "run 1"

    def test_in_a_race_all_combinations_become_runs_and_the_best_are_named(self, lab):
        lab.sweep("workers")
        found = lab.race()
        assert lab.settings(batch=320) in found.finalists and {one["batch"] for one in found.finalists} == {320}
        assert len(found.finalists) == 24 and len(found.eliminated) == 48
        assert len(lab.runs) == 76 and lab.runs[-1].settings == found.finalists[0]
        assert lab.status.startswith(
            "The fastest of 72: run 53, 320 examples/s. Cannot be told apart from it: run 54, run 55, "
        )
        assert "run 53: 320" in str(lab.table()) and lab.picture().data
        assert lab.run(batch=32).ratio.b == lab.runs[-2].name


def test_only_what_overlaps_with_the_fastest_cannot_be_told_apart_from_it():
    rates = {"run 1": (390, 400, 410), "run 2": (385, 395, 405), "run 3": (190, 196, 199), "run 4": (10, 11, 12)}
    results = {name: Result(name, rounds, "examples/s", 0.1, 99, 1.0) for name, rounds in rates.items()}
    race = Race(results, settings=dict.fromkeys(rates, {}), eliminated={"run 4": 4})
    assert runs.answer(race) == (
        "The fastest of 4: run 1, 400 examples/s. Cannot be told apart from it: run 2."
        " Slower so far, but not conclusively: run 3."
    )


class TestClock:
    """The Lab's estimates of a job's duration."""

    def test_it_is_right_on_the_wall_with_building_and_warming_up(self):
        def build(batch):
            time.sleep(0.5)
            return lambda: time.sleep(0.001) or batch

        lab = Lab(build, seconds=1.0, batch=range(1, 9))
        said = []
        lab.say = lambda status: said.append((time.perf_counter(), status, lab._clock and lab._clock.total))
        for batch, known in ((1, False), (5, True)):
            began = time.perf_counter()
            lab.run(batch=batch)
            took = time.perf_counter() - began
            [(_, first, total), *later] = [each for each in said if each[1].startswith("Measuring")]
            assert ("plus building and warming up" in first) is not known
            expected = later[-1][2] if later else total
            assert took / 1.5 < expected < took * 1.5, said
            assert later or known, "it is said once it is known"
            said.clear()

    def test_it_learns_from_the_first_round(self):
        clock = Clock(None, 0.5, 2.0)
        assert clock.words == "about 0.5 s, up to 2 s where it is close, plus building and warming up"
        time.sleep(0.3)
        assert not clock.hear("warming up run 1")
        clock.hear("round 1 of about 3, about 0.50 s")
        time.sleep(0.4)
        assert clock.hear("round 2 of about 3: run 1 17 examples/s"), "three rounds take 1.2 s"
        assert 1.4 < clock.total < 2.4 and clock.words.startswith("about 1.") and "building" not in clock.words
        assert not clock.hear("round 2 of about 3: run 1 17 examples/s")
        before = clock.total
        clock.hear("round 9 of about 9: run 1 17 examples/s")
        assert clock.total < before, "the first round was slow"


@quick
class TestGoingOn:
    def test_after_a_first_run_there_is_nothing_to_extend(self, lab):
        lab.run()
        assert not lab.can_extend
        for call in (lab.extend, lab.start_to_extend):
            with pytest.raises(RuntimeError, match="nothing to extend"):
                call()
        assert not lab.running

    def test_after_a_race_those_that_remain_are_compared_or_the_best_two(self, monkeypatch):
        lab = Lab(lambda n: lambda: n, seconds=SECONDS, n=[1, 7, 9])
        race = lab.race()
        assert race.remaining == ["run 3"] and lab.can_extend
        said = []
        lab.say = said.append
        monkeypatch.setattr("bigtrain_nb.lab.lab.scaled_seconds", lambda seconds: 2 * seconds)
        again = lab.extend()
        assert any("about 0.1 s, up to 0." in status for status in said), said
        assert [run.name for run in again] == ["run 2", "run 3"]
        assert lab.runs[0].comparison is race and {run.comparison.names for run in again} == {("run 3", "run 2")}
        assert again[0].against is again[1] and "0.78x" in str(lab.table()) and lab.picture().data
        assert lab.can_extend and lab.extend()[0].comparison.error == 0.005

    @pytest.mark.parametrize("in_background", [False, True])
    def test_what_is_known_then_is_put_into_the_runs_of_the_comparison(self, lab, in_background):
        first, *swept = [lab.run(), *lab.sweep("batch")]
        before = swept[0].comparison
        assert lab.can_extend and before.error == 0.05
        if in_background:
            lab.start_to_extend()
            finish(lab)
        else:
            assert lab.extend() == swept
        comparison = swept[0].comparison
        assert comparison is not before and comparison.error == 0.005
        for run in swept:
            assert run.comparison is comparison and run.result is comparison.results[run.name]
        assert lab.runs == [first, *swept] and first.comparison is None
        assert lab.can_extend and lab.status.startswith("run 4, ")

    def test_it_takes_as_long_again_unless_told(self, lab, monkeypatch):
        taken = []
        monkeypatch.setattr(Comparison, "extend", lambda self, seconds, progress: taken.append(seconds) or self)
        lab.run()
        lab.run(batch=320)
        lab.extend()
        lab.extend(seconds=70)
        assert taken == [pytest.approx(SECONDS), 70]


def shown_in(lab):
    return alternative(runs.figure(lab.runs, *runs.headline(lab.runs)))


@quick
class TestShown:
    def test_only_what_differs_is_said(self, lab):
        lab.run()
        second = lab.run(batch=320, prefetch=2)
        assert repr(second).startswith("run 2, batch=320 prefetch=2 (run 1: 4, 0): 320 (317 to 323) examples/s;")
        assert repr(lab.run(batch=320, prefetch=2)).startswith("run 3, as run 2: ")
        assert repr(lab.runs[0]).startswith("run 1, batch=4 prefetch=0 cache=False workers=1: ")

    def test_another_baseline_during_a_run_does_not_add_the_old_one_again(self):
        def choosing(batch):
            if len(lab.runs) == 2:
                lab.baseline = lab.runs[0]
            return build(batch)

        lab = Lab(choosing, batch=[4, 32, 320])
        for batch in (4, 32, 320):
            found = lab.run(batch=batch)
        assert found.name == "run 3" and found.settings == {"batch": 320} and found.ratio.b == "run 2"
        assert [run.name for run in lab.runs] == ["run 1", "run 2", "run 3"] and lab.baseline is lab.runs[0]
        assert lab.status.startswith("run 3, ")

    def test_words_table_and_picture(self, lab):
        with pytest.raises(RuntimeError, match="run something first"):
            lab.picture()
        assert "none so far" in str(lab.table())
        lab.run()
        lab.run(batch=320)
        table, picture = lab.table(), lab.picture()
        assert "All with prefetch=0 cache=False workers=1." in str(table) and "2 runs" in str(table)
        assert table.html.count('scope="row"') == 2 and "<caption" in table.html
        assert "run    batch  examples/s  verdict       against" in str(table)
        assert "run 2  320    320         80.0x faster  run 1: 4.00" in str(table)
        assert picture.data.startswith(b"\x89PNG")
        assert "batch=320 (run 1: 4)" in repr(picture) and "against run 1: 80.0x (" in repr(picture)

    def test_the_table_counts_its_runs(self, lab):
        lab.run()
        assert str(lab.table()).startswith("1 run\n")
        lab.runs = lab.runs * 30
        assert str(lab.table()).startswith("The last 24 of 30 runs\n")

    def test_a_line_of_the_table_has_both_rates_that_its_verdict_rests_on(self):
        """A run keeps its first rate; the machine's speed may differ when it is measured again."""
        speed = [1.0]
        lab = Lab(lambda batch: lambda: int(batch * speed[0]), batch=[100, 300])
        lab.run()
        speed[0] = 0.1
        lab.run(batch=300)
        _, first, second, *_ = str(lab.table()).splitlines()[1:]
        assert first.split() == ["run", "1", "100", "100"]
        assert second.split() == "run 2 300 30.0 3.0x faster run 1: 10.0".split()

    def test_the_verdict_stands_in_large_type_and_at_every_bar(self, lab):
        lab.run()
        assert runs.headline(lab.runs) == ("4.00 examples/s", "run 1, batch=4 prefetch=0 cache=False workers=1")
        lab.run(batch=320)
        large, below = runs.headline(lab.runs)
        assert large == "80.0x faster" and below.startswith("80.0x (")
        assert below.endswith("x), 320 examples/s against 4.00: run 2, batch=320 (run 1: 4)")
        up = shown_in(lab)
        assert "run 1, the baseline: batch=4; 4.00 (3.96 to 4.04)" in up and "run 2, 80.0x faster: batch=320;" in up
        lab.run(batch=32)
        assert runs.headline(lab.runs)[0] == "0.10x: slower"

    def test_of_a_sweep_the_best_is_told_also_where_it_is_the_first(self, lab):
        lab.sweep("batch", prefetch=2)
        assert runs.headline(lab.runs)[0] == "80.0x faster"
        assert runs.headline(lab.runs)[1].endswith("320 examples/s against 4.00: run 3, batch=320 (run 1: 4)")
        lab = Lab(lambda n: lambda: 100 - n, n=[0, 30, 90])
        lab.sweep("n")
        assert runs.headline(lab.runs)[0] == "run 1 is the fastest"
        drawn = shown_in(lab)
        assert "run 1, the baseline: " in drawn and "run 2, 0.70x: slower: " in drawn and "run 3, 0.10x: " in drawn

    def test_that_other_programs_took_the_cores_is_told(self, lab, monkeypatch):
        note = "other programs took 44 % of the cores"
        monkeypatch.setattr("bigtrain_nb.lab.lab.notes_on", lambda share: (note,))
        assert repr(lab.run()).endswith(f"; {note}") and note in lab.status and f"run 1: {note}." in str(lab.table())
        second = lab.run(batch=320)
        second.comparison = replace(second.comparison, notes=(note,))
        assert note in repr(second) and f"run 2: {note}." in str(lab.table())


@quick
class TestNotes:
    """Additional columns returned by the reader's function."""

    def test_they_are_in_the_run_the_table_and_the_csv(self, tmp_path):
        asked = []

        def notes(source, batch, crop):
            asked.append((source(), batch, crop))
            return {"MiB": 312.25 * batch, "bottleneck": "input"}

        lab = Lab(lambda batch, crop: build(batch), notes=notes, batch=[4, 320], crop=[min])
        lab.run()
        lab.run(batch=320)
        assert asked == [(4, 4, min), (320, 320, min)], "once for each new run"
        assert lab.runs[0].notes == {"MiB": 1249.0, "bottleneck": "input"}
        assert "MiB" in str(lab.table()) and "99,900" in str(lab.table()) and "bottleneck" in lab.table().html
        with open(lab.export(tmp_path / "runs.csv"), newline="") as stored:
            first, second = csv.DictReader(stored)
        assert (first["MiB"], second["MiB"], second["bottleneck"]) == ("1249.0", "99920.0", "input")
        assert first["crop"] == "min" and first["ratio"] == first["baseline"] == ""
        assert second["baseline"] == "run 1" and second["verdict"] == "faster"
        assert float(second["median"]) == lab.runs[1].result.median
        assert float(second["ratio"]) == lab.runs[1].ratio.median
        assert lab._sources == [] and lab.extend()[0].notes["MiB"] == 99920

    def test_a_sweep_asks_for_each_and_a_race_too(self):
        lab = Lab(build, notes=lambda source, batch: {"twice": 2 * source()}, batch=[4, 32])
        lab.sweep("batch")
        lab.race()
        assert [run.notes["twice"] for run in lab.runs] == [8, 64, 8, 64]

    @pytest.mark.parametrize(
        ("notes", "kind", "message"),
        [
            ({"batch": 1}, ValueError, "the column 'batch', which is the name of a setting"),
            ({"verdict": 1}, ValueError, "the column 'verdict', which is the name of another column"),
            ({3: 1}, ValueError, "the column 3, which must be a string"),
            ({"MiB": [1]}, TypeError, r"notes returned MiB=\[1\], expected a number or a string"),
            (312, TypeError, "notes must return a dictionary, like {'MiB': 312}, not 312"),
        ],
    )
    def test_what_cannot_be_a_column_is_refused_by_name(self, notes, kind, message):
        lab = Lab(build, notes=lambda source, batch: notes, batch=[4, 32])
        with pytest.raises(kind, match=message):
            lab.run()
        assert lab.runs == [] and message[:20].replace("\\", "") in lab.status

    def test_a_choice_that_is_called_as_another_column_is_refused(self, tmp_path):
        lab = Lab(lambda unit: build(unit), unit=[4, 320])
        lab.run()
        with pytest.raises(ValueError, match="a choice cannot be exported as 'unit'"):
            lab.export(tmp_path / "runs.csv")
        assert not (tmp_path / "runs.csv").exists()
