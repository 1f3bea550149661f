"""Predictions and their score; exercises and what a check says."""

import math
import sys
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
from IPython.display import display

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.measure.results import Ratio, Result
from bigtrain_nb.workbook import exercises, workbook
from bigtrain_nb.workbook.exercises import Exercise, NotAttempted, Wrong, expect


def middle(rates):
    return sorted(rates)[len(rates) // 2]


def check_middle(answer):
    expect(answer([1.0, 2.0, 9.0]), 2.0, "the median of 1, 2, 9")


EXERCISE = Exercise(
    name="fake.middle",
    reference=middle,
    check=check_middle,
    hint="Sort first.\nThen look in the middle.",
    wrong=((max, "expected about 2, got 9"), (lambda rates: sum(rates) / 3, "got 4")),
    minutes=3,
    difficulty=1,
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(workbook, "_predictions", {})
    monkeypatch.setattr(workbook, "_checked", {})
    monkeypatch.setattr(exercises, "registry", lambda: {EXERCISE.name: EXERCISE})


def ratio(median=3.0, low=2.8, high=3.2):
    return Ratio("a", "b", median, low, high)


class TestPredictions:
    def test_a_card_repeats_the_prediction(self):
        card = workbook.predict("speedup", 1.8, unit="x")
        assert str(card) == "Your prediction: speedup = 1.80x"
        assert "speedup = 1.80x" in card._repr_html_()

    @pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "much", "2", None, True, 1j, 10**400])
    def test_a_prediction_is_a_number_above_zero(self, value):
        with pytest.raises(ValueError, match=r"predict\('speedup'\).*not a number above zero"):
            workbook.predict("speedup", value)
        assert not workbook._predictions

    def test_numpy_numbers_will_do(self):
        assert "2.50" in str(workbook.predict("speedup", np.float32(2.5)))

    def test_reveal_says_how_far_off(self):
        workbook.predict("speedup", 1.5, unit="x")
        card = workbook.reveal("speedup", ratio())
        assert str(card) == (
            "Measured: speedup: you said 1.50x, measured 3.0x (2.80x to 3.2x): off by 2.00x, too low."
        )

    @pytest.mark.parametrize(
        ("said", "verdict"), [(3.1, "inside the interval"), (6.0, "off by 2.00x, too high"), (1.5, "too low")]
    )
    def test_verdicts(self, said, verdict):
        workbook.predict("speedup", said, unit="x")
        assert verdict in str(workbook.reveal("speedup", ratio()))

    def test_reveal_takes_a_result_and_its_unit(self):
        workbook.predict("rate", 100)
        card = workbook.reveal("rate", Result("r", (99.0, 100.0, 101.0) * 4, "examples/s", 0.1, 12, 1.0))
        assert "examples/s" in str(card) and "inside the interval" in str(card)

    def test_reveal_takes_a_number(self):
        workbook.predict("bytes", 111, unit="MiB")
        assert "measured 100 MiB: off by 1.11x, too high" in str(workbook.reveal("bytes", 100))

    @pytest.mark.parametrize("said", [91.0, 100.0, 110.0])
    def test_a_number_without_an_interval_is_hit_within_ten_per_cent(self, said):
        workbook.predict("bytes", said)
        assert "within 10 %" in str(workbook.reveal("bytes", 100))
        assert "1 of 1 predictions inside the interval, or within 10 % of a single number" in str(workbook.score())

    def test_a_near_miss_of_an_interval_is_not_called_off_by_one_times(self):
        workbook.predict("speedup", 3.005)
        assert "off by less than 1 %" in str(workbook.reveal("speedup", ratio(low=2.999, high=3.001)))

    def test_another_unit_than_that_of_the_prediction_is_refused(self):
        workbook.predict("step", 100, "ms")
        with pytest.raises(ValueError, match="'step' was predicted in ms and measured in examples/s"):
            workbook.reveal("step", Result("r", (99.0, 100.0, 101.0) * 4, "examples/s", 0.1, 12, 1.0))

    def test_reveal_needs_a_prediction_and_names_close_ones(self):
        with pytest.raises(ValueError, match="there is no prediction yet"):
            workbook.reveal("speedup", 2.0)
        workbook.predict("prefetch_speedup", 2.0)
        with pytest.raises(ValueError, match="no prediction named 'prefetch_speed': did you mean 'prefetch_speedup'"):
            workbook.reveal("prefetch_speed", 2.0)

    @pytest.mark.parametrize("measured", [0.0, -3, math.nan, "fast"])
    def test_a_measurement_is_above_zero_too(self, measured):
        workbook.predict("speedup", 2.0)
        with pytest.raises(ValueError, match="not a number above zero"):
            workbook.reveal("speedup", measured)

    def test_in_a_notebook_the_picture_is_shown_with_its_words(self, monkeypatch):
        shown = []
        monkeypatch.setattr("IPython.get_ipython", lambda: object())
        monkeypatch.setattr("IPython.display.display", shown.append)
        workbook.predict("speedup", 1.8, unit="x")
        workbook.reveal("speedup", ratio())
        (picture,) = shown
        assert picture.data.startswith(b"\x89PNG")
        assert "you said 1.80x" in repr(picture)

    def test_a_plain_script_prints_no_picture(self, capsys):
        workbook.predict("speedup", 1.8)
        workbook.reveal("speedup", 2.0)
        workbook.score()
        assert capsys.readouterr().out == ""

    def test_terminals_show_the_words(self, capsys):
        display(workbook.predict("speedup", 1.8, unit="x"))
        assert "speedup = 1.80x" in capsys.readouterr().out


class TestScore:
    def test_nothing_yet(self):
        assert "nothing was predicted" in str(workbook.score())

    def test_table_and_closing_line(self):
        workbook.predict("hit", 3.0, unit="x")
        workbook.predict("miss", 6.0, unit="x")
        workbook.predict("open", 1.0)
        workbook.reveal("hit", ratio())
        workbook.reveal("miss", ratio())
        workbook.check("fake.middle", middle)
        workbook.check("fake.middle", max)
        text = str(workbook.score())
        lines = {line.split()[0]: line for line in text.splitlines()}
        assert "inside the interval" in lines["hit"] and "1.00x" in lines["hit"]
        assert "off by 2.00x, too high" in lines["miss"] and "3.0x (2.80x to 3.2x)" in lines["miss"]
        assert "not yet" in lines["open"]
        assert lines["fake.middle"].endswith("wrong")
        closing = "or within 10 % of a single number (furthest off: miss); 0 of 1 exercises right. Measured on "
        assert "1 of 2 predictions inside the interval" in text and closing in text
        assert text.endswith(f"{cores()} cores, TensorFlow {version('tensorflow')}.")

    def test_html_table_is_marked_up_for_screen_readers(self):
        workbook.predict("<b>", 3.0)
        workbook.reveal("<b>", 2.0)
        markup = workbook.score()._repr_html_()
        assert "<caption" in markup and 'scope="col"' in markup and 'scope="row"' in markup
        assert "&lt;b&gt;" in markup and "<b>" not in markup

    def test_predicting_again_replaces(self):
        workbook.predict("speedup", 3.0)
        workbook.reveal("speedup", 2.0)
        workbook.predict("speedup", 4.0)
        text = str(workbook.score())
        assert "4.00" in text and "not yet" in text and "3.00" not in text


class TestCheck:
    def test_right(self):
        found = workbook.check("fake.middle", lambda rates: middle(rates))
        assert found.status == "right" and str(found) == "Right"

    def test_unsolved_is_not_attempted(self):
        for unsolved in (lambda rates: ..., lambda rates: (..., 2), ...):
            found = workbook.check("fake.middle", unsolved)
            assert found.status == "not attempted" and str(found).startswith("Not attempted yet")
            assert "about 3 minutes" in str(found)

    def test_wrong_says_expected_and_got(self):
        for answer, reason in EXERCISE.wrong:
            found = workbook.check("fake.middle", answer)
            assert found.status == "wrong" and reason in found.message
            assert str(found).startswith("Wrong: the median of 1, 2, 9: expected about 2, got ")

    def test_an_error_in_the_answer_is_wrong_and_no_traceback(self):
        def answer(rates):
            raise ValueError("too <few>")

        found = workbook.check("fake.middle", answer)
        assert found.status == "wrong" and found.message == "your function raised ValueError: too <few>"
        assert "&lt;few&gt;" in found._repr_html_()

    def test_wrong_parameters_are_wrong(self):
        assert "your function raised TypeError" in workbook.check("fake.middle", lambda: 2).message

    def test_an_answer_that_is_no_function(self):
        assert "expected a function, got 2.0" in workbook.check("fake.middle", 2.0).message

    def test_a_forgotten_return_is_named(self):
        assert "got None (is a return missing?)" in workbook.check("fake.middle", lambda rates: None).message

    def test_a_result_that_the_check_cannot_use(self, monkeypatch):
        def clumsy(answer):
            expect(answer(1) + 1, 2, "one more")

        monkeypatch.setattr(exercises, "registry", lambda: {"fake.clumsy": replace(EXERCISE, check=clumsy)})
        found = workbook.check("fake.clumsy", lambda n: "one")
        assert found.status == "wrong" and "can do nothing with what your function returned (TypeError" in found.message

    def test_interrupt_comes_through(self):
        def answer(rates):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            workbook.check("fake.middle", answer)

    def test_unknown_names_are_refused_with_close_ones(self):
        for call in (workbook.hint, workbook.solution, lambda name: workbook.check(name, middle)):
            with pytest.raises(ValueError, match="no exercise named 'fake.midle': did you mean 'fake.middle'"):
                call("fake.midle")

    def test_hint_and_solution(self):
        assert str(workbook.hint("fake.middle")) == "Hint: Sort first.\nThen look in the middle."
        shown = workbook.solution("fake.middle")
        assert str(shown).startswith("def middle(rates):\n    return sorted(rates)")
        assert "<pre>def middle(rates):" in shown._repr_html_()


class TestExpect:
    @pytest.mark.parametrize(
        ("got", "expected"),
        [
            (2, 2.0),
            (np.float32(0.1), np.float64(0.1000000015)),
            (np.arange(3), np.arange(3.0)),
            ([1, 2.0], [1, 2]),
            ((1, "a"), (1, "a")),
            ("same", "same"),
            (np.True_, True),
            (0.0, 0),
        ],
    )
    def test_alike(self, got, expected):
        assert expect(got, expected, "it") is None

    @pytest.mark.parametrize(
        ("got", "expected"),
        [
            (2.1, 2.0),
            (True, 1),
            (1, True),
            ("2", 2),
            (None, 0),
            (math.nan, 1.0),
            ([1, 2], 2),
            ([1], [1, 2]),
            (np.zeros((2, 1)), np.zeros(2)),
            ("faster", "slower"),
            (np.zeros(2), "slower"),
        ],
    )
    def test_unlike(self, got, expected):
        with pytest.raises(Wrong, match="it: expected .*, got "):
            expect(got, expected, "it")

    def test_tolerance(self):
        assert expect(104.0, 100.0, "it", rel=0.05) is None
        with pytest.raises(Wrong, match="about 100, got 106"):
            expect(106.0, 100.0, "it", rel=0.05)

    def test_unfinished(self):
        with pytest.raises(NotAttempted):
            expect(..., 1, "it")

    def test_long_values_are_cut(self):
        with pytest.raises(Wrong) as caught:
            expect("x" * 10_000, "y", "it")
        assert len(str(caught.value)) < 400


class TestRegistry:
    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        monkeypatch.undo()
        folder = tmp_path / "workbook" / "exercises"
        folder.mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path)
        kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "workbook"}
        yield folder
        for name in [name for name in sys.modules if name.split(".")[0] == "workbook"]:
            del sys.modules[name]
        sys.modules.update(kept)

    def module(self, *names):
        made = (f"def {name}(): ...\n@exercise({name}, 1, 1)\ndef _check_{name}(answer): 'A hint.'\n" for name in names)
        return "from bigtrain_nb.workbook.exercises import exercise\n" + "".join(made)

    def test_gathers_all_modules_beside_the_notebook(self, package):
        (package / "fake_one.py").write_text(self.module("a", "b"))
        (package / "fake_two.py").write_text(self.module("a"))
        assert {"fake_one.a", "fake_one.b", "fake_two.a"} <= set(exercises.registry())
