"""The Lab's view: its controls, buttons, picture and table, without a kernel."""

import pytest
from labs import finish, shown, until

from bigtrain_nb.lab.lab import Lab

pytestmark = pytest.mark.usefixtures("quick")


def test_a_notebook_gets_the_widgets_and_words_for_where_there_are_none(lab):
    view = {"version_major": 2, "version_minor": 0, "model_id": shown(lab).box.model_id}
    assert lab._repr_mimebundle_() == {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(lab)}


def test_numbers_that_rise_get_a_slider_and_all_else_a_list_or_a_box():
    def build(**settings):
        return lambda: 1

    rising, falling, mixed = [1, 4, 16], [1024, 256, 2048], [0, "AUTOTUNE"]
    flags = {"xla": False, "both": [False, True], "one": [True]}
    lab = Lab(build, k=range(64, 0, -16), micro=rising, rate=[0.1, 0.2], width=falling, ahead=mixed, **flags)
    view = shown(lab)
    kinds = {name: type(field).__name__ for name, field in view.fields.items()}
    assert kinds == {
        "k": "IntSlider",
        "micro": "SelectionSlider",
        "rate": "SelectionSlider",
        "width": "Dropdown",
        "ahead": "Dropdown",
        "xla": "Checkbox",
        "both": "Checkbox",
        "one": "Dropdown",
    }
    k = view.fields["k"]
    assert (k.min, k.max, k.step, k.value) == (16, 64, 16, 64), "also of a range that falls"
    tips = [field.trait_values().get("tooltip") or field.description_tooltip for field in view.fields.values()]
    assert tips[:2] == ["an integer from 64 to 16 in steps of -16", "one of 1, 4, 16"]
    view.fields["micro"].index = 2
    k.value = 48
    view.fields["width"].index = 1
    assert {"k": 48, "micro": 16, "width": 256}.items() <= lab.settings().items()


def test_buttons_and_progress_follow_the_state(gate):
    lab = Lab(gate)
    view = shown(lab)
    progress, seen = [], []
    view.happens.observe(lambda change: seen.append(change["new"]), "value")
    view.progress.observe(lambda change: progress.append(change["new"]), "value")
    assert not view.run.disabled and view.stop.disabled and view.export.disabled
    view.run.click()
    assert view.run.disabled and not view.stop.disabled
    assert gate.reached.wait(10)
    view.stop.click()
    assert not view.run.disabled and view.stop.disabled and "Stopped" in view.status.value
    gate.opened.set()
    view.run.click()
    finish(lab)
    assert not view.export.disabled and 0 < progress[0] < 1 and progress[-1] == 0.0
    assert 'font-weight: bold">1 examples/s' in seen[-2] and "round 2 of about 4" in seen[-2] and seen[-1] == ""


def test_a_second_click_before_the_button_is_off_does_nothing(gate):
    lab = Lab(gate)
    view = shown(lab)
    for button in (view.run, view.run, view.sweep, view.more, view.race):
        button.click()
        assert lab.running and "Error" not in lab.status
    gate.opened.set()
    finish(lab)
    assert len(lab.runs) == 1


def test_find_the_best_shows_who_remains(lab):
    view = shown(lab)
    seen = []
    view.results.observe(lambda change: seen.append(change["new"]), "value")
    view.race.click()
    until(lambda: len(seen) == 3)
    assert seen[0].count("remaining") == 72
    assert seen[1].count("remaining") == 24 and "<svg" in seen[-1]
    assert not view.race.disabled and "Cannot be told apart from it: run 50" in view.status.value


def test_a_baseline_is_chosen_and_given_up_on_the_screen(lab):
    view = shown(lab)
    first = lab.run()
    lab.run(batch=320)
    assert view.baseline.label == "the run before" and lab.baseline is None
    view.baseline.value = first
    assert lab.baseline is first and "compared with run 1" in view.status.value
    assert lab.run(batch=32).ratio.b == "run 1" and view.baseline.label == "run 1"
    view.baseline.value = "the run before"
    assert lab.baseline is None and view.baseline.label == "the run before"
    assert lab.run().ratio.b == "run 3"


def test_export_says_where_or_what_went_wrong(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view = shown(lab)
    lab.run()
    view.export.click()
    assert (tmp_path / "lab-runs.csv").exists()
    assert str(tmp_path / "lab-runs.csv") in view.status.value
    monkeypatch.setattr(lab, "export", None)
    view.export.click()
    assert "TypeError" in view.status.value


def test_what_is_not_given_is_what_the_controls_show(lab):
    assert lab.run().settings == {"batch": 4, "prefetch": 0, "cache": False, "workers": 1}
    view = shown(lab)
    view.fields["batch"].index = 2
    view.fields["cache"].value = True
    view.fields["workers"].value = 3
    chosen = {"batch": 320, "prefetch": 0, "cache": True, "workers": 3}
    assert lab.settings() == chosen == lab.run().settings
    assert lab.run(batch=32).settings == {**chosen, "batch": 32}
    lab.start(cache=False)
    finish(lab)
    assert lab.runs[-1].settings == {**chosen, "cache": False}
    assert {run.settings["workers"] for run in lab.sweep("batch")} == {3}
