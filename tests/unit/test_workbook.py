"""Predictions and their score; exercises and the messages of checks."""

import contextlib
import math
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.measure.results import Ratio, Result
from bigtrain_nb.unpack import unpack
from bigtrain_nb.workbook import exercises, workbook
from bigtrain_nb.workbook.exercises import Exercise, Wrong, expect

THREE = Ratio("a", "b", 3.0, 2.8, 3.2)
RATE = Result("r", (99.0, 100.0, 101.0) * 4, "examples/s", 0.1, 12, 1.0)


def middle(rates):
    return sorted(rates)[len(rates) // 2]


def check_middle(answer):
    expect(answer([1.0, 2.0, 9.0]), 2.0, "the median of 1, 2, 9")


MIDDLE = Exercise(
    "fake.middle", middle, "numbers", "a number", check_middle, "Sort first.\nThen look in the middle.", 3, difficulty=1
)


pytestmark = pytest.mark.usefixtures("fresh_notes")


class TestPredictions:
    def test_a_blank_one_shows_what_was_measured_and_no_more(self):
        card = str(workbook.predict("speedup", ..., "x"))
        words = "no prediction yet; replace ... with a ratio, such as 1.5 for 1.50x"
        assert card == f"Your prediction: speedup: {words}"
        assert str(workbook.reveal("speedup", THREE)) == "Measured: speedup: 3.0x (2.80x to 3.2x)."
        assert workbook.predicted("speedup").predicted is None
        text = str(workbook.score())
        assert "no prediction was made before its measurement. Measured on" in text and "none" in text

    def test_the_score_names_the_machine_of_the_measurement(self, monkeypatch):
        here = {"processor": "This CPU", "cores": 2, "tensorflow": "2.21.0"}
        monkeypatch.setattr(workbook, "machine", lambda: here)
        workbook.predict("speedup", 2, "x")
        assert "Measured on This CPU, 2 cores" in str(workbook.score())
        monkeypatch.setattr(workbook, "machine", lambda: here | {"processor": "A server's CPU", "cores": 96})
        workbook.reveal("speedup", THREE)
        monkeypatch.setattr(workbook, "machine", lambda: here)
        assert "Measured on A server's CPU, 96 cores" in str(workbook.score())

    @pytest.mark.parametrize(
        ("unit", "kind"),
        [
            ("", "a number"),
            ("ms", "a number, in ms"),
            ("of 64", "a number, of 64"),
            ("offers", "a number, in offers"),
        ],
    )
    def test_a_blank_one_says_what_kind_of_number_is_asked(self, unit, kind):
        card = str(workbook.predict("it", ..., unit))
        assert card == f"Your prediction: it: no prediction yet; replace ... with {kind}"

    @pytest.mark.parametrize(
        ("said", "measured", "verdict"),
        [
            (0, 0, "right"),
            (10, 0, "off by 10 requests, too high"),
            (0, 4, "off by 4 requests, too low"),
            (-0.5, 0.5, "off by 1 requests, too low"),
        ],
    )
    def test_where_a_number_is_not_above_zero_the_difference_tells(self, said, measured, verdict):
        workbook.predict("lost", said, "requests")
        assert str(workbook.reveal("lost", measured)).endswith(f": {verdict}.")
        hits = "1 of 1" if said == measured else "0 of 1"
        assert f"{hits} predictions inside the interval" in str(workbook.score())

    def test_the_first_number_before_the_reveal_counts(self):
        workbook.predict("speedup", ..., "x")
        workbook.predict("speedup", 1.5, "x")
        assert "speedup = 1.50x is kept" in str(workbook.predict("speedup", 3.0, "x"))
        workbook.predict("speedup", ..., "x")
        assert "you said 1.50x, measured" in str(workbook.reveal("speedup", THREE))

    def test_one_after_the_reveal_is_compared_and_does_not_count(self):
        workbook.predict("late", ..., "x")
        workbook.reveal("late", THREE)
        assert "second time: it was revealed before" in str(workbook.predict("late", 3.0, "x"))
        workbook.predict("again", 9.0, "x")
        for _ in range(2):
            workbook.reveal("again", THREE)
        workbook.predict("again", 3.0, "x")
        said = "you said 3.0x (second time), measured 3.0x (2.80x to 3.2x): inside the interval"
        assert said in str(workbook.reveal("late", THREE)) and said in str(workbook.reveal("again", THREE))
        text = str(workbook.score())
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert "late none 3.0x (2.80x to 3.2x)" in lines
        assert "late, second time 3.0x 3.0x (2.80x to 3.2x) 1.00x inside the interval" in lines
        assert "again 9.0x 3.0x (2.80x to 3.2x) 3.0x off by 3.0x, too high" in lines
        assert "0 of 1 predictions inside the interval" in text

    @pytest.mark.parametrize(
        ("said", "measured", "words"),
        [
            (3.1, THREE, "measured 3.0x (2.80x to 3.2x): inside the interval"),
            (1.5, THREE, "you said 1.50x, measured 3.0x (2.80x to 3.2x): off by 2.00x, too low, but within 2x."),
            (100, RATE, "you said 100 examples/s, measured 100 (99.0 to 101) examples/s: inside the interval"),
            (90, 100, "within 10 %"),
            (110, 100, "within 10 %"),
            (89, 100, "measured 100: off by 1.12x, too low, but within 2x"),
            (111, 100, "measured 100: off by 1.11x, too high, but within 2x"),
        ],
    )
    def test_verdicts_on_ratios_results_and_numbers(self, said, measured, words):
        workbook.predict("it", said)
        assert words in str(workbook.reveal("it", measured))

    def test_a_measurement_may_hold_numbers_of_numpy(self):
        workbook.predict("it", 3.0, "x")
        values = {name: np.float32(3) for name in ("median", "low", "high")}
        assert "within 10 %" in str(workbook.reveal("it", SimpleNamespace(unit="x", **values)))
        assert type(workbook.predicted("it").median) is float

    @pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (1.4, 7.0)])
    def test_an_interval_that_excludes_nothing_judges_nothing(self, low, high):
        workbook.predict("short", 2.0, "x")
        revealed = str(workbook.reveal("short", Ratio("a", "b", 3.0, low, high, "another 9 s would halve that")))
        assert revealed.endswith("not judged, the machine was too busy: run the cell again.")
        assert "0 of 0 predictions inside" in str(workbook.score()) and "1 not judged" in str(workbook.score())
        workbook.reveal("short", THREE)
        assert "0 of 1 predictions inside" in str(workbook.score()), "measured again, for longer, it is judged"

    def test_another_unit_than_that_of_the_prediction_is_refused(self):
        workbook.predict("step", 100, "ms")
        with pytest.raises(ValueError, match="'step' was predicted in ms and measured in examples/s"):
            workbook.reveal("step", RATE)
        assert "measured 200 ms" in str(workbook.reveal("step", 200))

    def test_reveal_shows_what_nobody_asked_for_and_keeps_nothing_of_it_but_names_close_ones(self):
        said = str(workbook.reveal("speedup", 2.0))
        assert said == "Measured: speedup: 2. No cell with bt.predict('speedup', ...) was run before."
        assert "nothing was predicted" in str(workbook.score())
        workbook.predict("prefetch_speedup", ...)
        with pytest.raises(ValueError, match="no prediction named 'prefetch_speed'; known: prefetch_speedup"):
            workbook.reveal("prefetch_speed", 2.0)

    def test_only_a_notebook_shows_the_picture_with_its_words(self, monkeypatch, capsys):
        said = workbook.predict("speedup", np.float32(1.8), unit="x")
        assert str(said) == "Your prediction: speedup = 1.80x"
        workbook.reveal("speedup", THREE)
        workbook.score()
        assert capsys.readouterr().out == ""
        shown = []
        monkeypatch.setattr("IPython.get_ipython", lambda: object())
        monkeypatch.setattr("IPython.display.display", shown.append)
        workbook.reveal("speedup", THREE)
        assert shown == [], "a single number needs no picture"
        workbook.score()
        (picture,) = shown
        assert picture.data.startswith(b"\x89PNG")
        assert "predictions as multiples of what was measured" in repr(picture)


class TestScore:
    def test_table_and_closing_line(self, exercise):
        assert "nothing was predicted" in str(workbook.score())
        for name, said in {"hit": 3.0, "miss": 5.0, "far": 9.0}.items():
            workbook.predict(name, said, unit="x")
            workbook.reveal(name, THREE)
        workbook.predict("waits", 4.0)
        workbook.check("fake.middle", max)
        text = str(workbook.score())
        lines = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()}
        assert lines["hit"] == "3.0x 3.0x (2.80x to 3.2x) 1.00x inside the interval"
        assert lines["miss"] == "5.0x 3.0x (2.80x to 3.2x) 1.67x off by 1.67x, too high, but within 2x"
        assert lines["waits"] == "4 not yet"
        assert lines["fake.middle"] == "exercise wrong"
        assert "1 of 3 predictions inside the interval, or within 10 %; 2 within 2x (furthest off: far)" in text
        assert "; 0 of 1 exercises right. Measured on " in text
        assert text.endswith(f"{cores()} cores, TensorFlow {tf.__version__}.")
        markup = workbook.score()._repr_html_()
        assert "<caption" in markup and 'scope="col"' in markup and 'scope="row"' in markup


@pytest.fixture
def exercise(monkeypatch):
    monkeypatch.setattr(exercises, "registry", lambda name: {"fake.middle": MIDDLE})


def alarm():
    """Return the handler of the timer, and whether it runs: pytest has its own timeout."""
    return signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0


def catches_exceptions(rates):
    while True:
        with contextlib.suppress(Exception):
            rates.remove(rates[0])


def catches_all(rates):
    while True:
        try:
            time.sleep(0.01)  # nearly always here
        except:  # noqa: E722
            pass


def catches_all_twice(rates):
    while True:
        try:
            catches_all(rates)
        except:  # noqa: E722
            pass


@pytest.mark.usefixtures("exercise")
class TestCheck:
    def test_right(self):
        assert str(workbook.check("fake.middle", middle)) == "Right"
        assert workbook.check("fake.middle", max).status == "wrong"
        assert "1 of 1 exercises right" in str(workbook.score()), "what was right once counts"

    @pytest.mark.parametrize("unsolved", [..., (..., 2)])
    def test_unsolved_is_not_attempted(self, unsolved):
        found = workbook.check("fake.middle", lambda rates: unsolved)
        words = "Not attempted yet: about 3 minutes, difficulty 1 of 5; bt.hint('fake.middle') helps"
        assert str(found) == words

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (max, "the median of 1, 2, 9: expected about 2, got 9"),
            (lambda rates: None, "got None (is a return missing?)"),
            (lambda: 2, "your function raised TypeError"),
            (sys.exit, "your function raised SystemExit: [1.0, 2.0, 9.0]"),
            (lambda rates: rates.index("<few>"), "your function raised ValueError: '<few>' is not in list"),
        ],
    )
    def test_wrong_says_why_and_never_raises(self, answer, reason):
        found = workbook.check("fake.middle", answer)
        assert found.status == "wrong" and str(found).startswith("Wrong: ")
        assert reason in found.message
        assert "<few>" not in found._repr_html_()

    @pytest.mark.parametrize("endless", [catches_exceptions, catches_all, catches_all_twice])
    def test_an_endless_answer_is_ended_and_the_timer_is_as_before(self, endless, monkeypatch):
        impatient = replace(MIDDLE, seconds=0.2)
        monkeypatch.setattr(exercises, "registry", lambda name: {"fake.middle": impatient})
        before, tracing = alarm(), sys.gettrace()
        found = workbook.check("fake.middle", endless)
        assert str(found) == "Wrong: your function did not return within 0.2 s: is there an infinite loop?"
        assert alarm() == before and sys.gettrace() is tracing

    def test_an_endless_answer_is_cleaned_up(self, monkeypatch):
        monkeypatch.setattr(exercises, "registry", lambda name: {"fake.middle": replace(MIDDLE, seconds=0.2)})
        ended = []

        def endless(rates):
            with contextlib.ExitStack() as stack:
                stack.callback(ended.append, "with")
                try:
                    while True:
                        time.sleep(0.01)
                finally:
                    ended.append("finally")

        workbook.check("fake.middle", endless)
        assert ended == ["finally", "with"]

    def test_hint_and_solution(self):
        assert str(workbook.hint("fake.middle")) == "Hint: Sort first.\nThen look in the middle."
        assert "<pre>def middle(rates):\n    return sorted(" in workbook.solution("fake.middle")._repr_html_()


@pytest.mark.parametrize(
    ("got", "expected", "rel", "is_alike"),
    [
        (2, 2.0, 1e-6, True),
        ([0, 1, 2], np.arange(3.0), 1e-6, True),
        (np.True_, True, 1e-6, True),
        (104.0, 100.0, 0.05, True),
        (106.0, 100.0, 0.05, False),
        (math.nan, 1.0, 1e-6, False),
        (np.zeros(2), "slower", 1e-6, False),
    ],
)
def test_what_is_expected_may_have_another_type_and_differ_by_the_tolerance(got, expected, rel, is_alike):
    with contextlib.nullcontext() if is_alike else pytest.raises(Wrong, match="it: expected .*, got "):
        expect(got, expected, "it", rel=rel)


class TestScripts:
    @pytest.fixture
    def alone(self, tmp_path, monkeypatch):
        """A folder with nothing but a notebook, and no module of the series loaded."""
        monkeypatch.chdir(tmp_path)
        others = [path for path in sys.path if not Path(path, "scripts").exists()]
        monkeypatch.setattr(sys, "path", [str(tmp_path), *others])
        for name in list(sys.modules):
            if name.partition(".")[0] == "scripts" or name.endswith("many_workers"):
                monkeypatch.delitem(sys.modules, name)
        yield tmp_path
        for name in list(sys.modules):
            if name.partition(".")[0] == "scripts" or name.endswith("many_workers"):
                del sys.modules[name]

    def test_one_that_needs_a_script_says_how_it_comes_there_until_it_does(self, alone):
        assert workbook.check("measure_first.rate", lambda *_: ...).message.startswith("about")
        found = workbook.check("many_workers.reads", lambda *_: ...)
        assert found.status == "not attempted"
        assert found.message.endswith(f"is not in {alone}: `%run -m bigtrain_nb.unpack` puts it next to your notebook")
        with pytest.raises(FileNotFoundError, match="`%run -m bigtrain_nb.unpack` puts it next to your notebook"):
            workbook.hint("many_workers.reads")
        unpack(alone)
        assert "bt.hint" in workbook.check("many_workers.reads", lambda *_: ...).message
