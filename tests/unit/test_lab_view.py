"""The Lab on the screen: its controls, buttons, picture and table, without a kernel."""

import threading
import time
from xml.etree import ElementTree

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _instances as living_widgets
from labs import SECONDS, build, finish, shown, until

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.lab import Lab
from bigtrain_nb.measure import benchmark as measure
from bigtrain_nb.measure.results import Comparison, Result

pytestmark = pytest.mark.usefixtures("nothing_displayed")


def test_every_kind_of_choice_has_its_native_control(lab):
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


def test_every_button_says_what_it_does(lab):
    view = shown(lab)
    assert all(button.tooltip for button in (view.run, view.stop, view.sweep, view.export))


def test_buttons_follow_the_state(gate):
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


def test_run_takes_the_controls(lab):
    view = shown(lab)
    view.fields["prefetch"].index = 2
    view.fields["cache"].value = True
    view.fields["workers"].value = 4
    view.run.click()
    finish(lab)
    assert lab.runs[0].settings == {"batch": 32, "prefetch": "AUTOTUNE", "cache": True, "workers": 4}


def test_choices_that_look_alike_are_told_apart():
    lab = Lab(lambda size: build(), seconds=SECONDS, size=["2", 2, None])
    view = shown(lab)
    view.fields["size"].index = 1
    view.run.click()
    finish(lab)
    assert lab.runs[0].settings == {"size": 2}


def test_try_all_takes_the_other_controls(lab):
    view = shown(lab)
    view.fields["prefetch"].index = 1
    view.swept.value = "batch"
    view.sweep.click()
    finish(lab)
    assert [(run.settings["batch"], run.settings["prefetch"]) for run in lab.runs] == [(4, 2), (32, 2), (320, 2)]


def test_a_refused_setting_is_said_in_the_status():
    lab = Lab(lambda size: build(), size=(0, 8, 4))
    view = shown(lab)
    view.fields["size"].value = 5
    view.run.click()
    assert "size=5 is out of range" in view.status.value and not lab.running


def test_the_picture_and_the_table_follow_the_runs(lab):
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


def test_the_baseline_can_be_chosen(lab):
    view = shown(lab)
    lab.run()
    lab.run(batch=4)
    assert lab.baseline.number == view.baseline.value == 1
    before = view.picture.value
    view.baseline.value = 2
    assert lab.baseline.number == 2 and view.picture.value != before
    lab.run(batch=320)
    assert view.baseline.value == 2 and lab.baseline.number == 2
    lab.baseline = 1
    assert view.baseline.value == 1


def test_export_says_where(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view = shown(lab)
    lab.run()
    view.export.click()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab-runs.csv", "lab-runs.json"]
    assert str(tmp_path / "lab-runs.json") in view.status.value


def test_export_that_fails_is_said_in_the_status(lab, monkeypatch):
    view = shown(lab)
    lab.run()
    monkeypatch.setattr(runs, "write", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    view.export.click()
    assert "PermissionError: read-only" in view.status.value


def test_progress_comes_at_most_ten_times_a_second(lab):
    view = shown(lab)
    seen = []
    view.progress.observe(lambda change: seen.append(change["new"]), "value")
    lab.seconds = 1.0
    began = time.monotonic()
    lab.run()
    assert 2 <= len(seen) <= 10 * (time.monotonic() - began) + 2
    assert 0 < max(seen) <= 1 and seen[-1] == 0


def test_a_background_run_writes_nothing(lab, capfd):
    shown(lab)
    lab.start()
    finish(lab)
    assert capfd.readouterr() == ("", "")


def test_running_the_cell_again_leaves_one_lab():
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


def test_a_lab_shown_twice_has_one_set_of_widgets(lab):
    view = shown(lab)
    assert shown(lab) is view


def test_a_closed_lab_keeps_its_runs_and_can_be_shown_again(lab):
    shown(lab)
    lab.run()
    lab.close()
    assert lab.run(batch=4).number == 2
    assert shown(lab).table.value.count('scope="row"') == 2


def test_a_hundred_runs_leak_neither_threads_nor_widgets(lab, monkeypatch):
    monkeypatch.setattr(runs, "SHOWN", 2)
    monkeypatch.setattr(measure, "compare", _quick_compare)
    shown(lab)
    lab.run()
    threads, widgets = threading.active_count(), len(living_widgets)
    for number in range(100):
        lab.start(batch=4)
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
