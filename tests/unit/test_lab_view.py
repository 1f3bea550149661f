"""The Lab on the screen: its controls, buttons, picture and table, without a kernel."""

import threading
from xml.etree import ElementTree

import ipywidgets
import pytest
from ipywidgets.widgets.widget import _instances as living_widgets
from labs import build, finish, shown, until

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.lab import Lab

pytestmark = pytest.mark.usefixtures("quick")


def test_every_kind_of_choice_has_its_native_control_and_a_label(lab):
    view = shown(lab)
    assert isinstance(view.fields["batch"], ipywidgets.Dropdown)
    assert isinstance(view.fields["cache"], ipywidgets.Checkbox)
    assert isinstance(view.fields["workers"], ipywidgets.BoundedIntText)
    for name, field in view.fields.items():
        assert field.description == name
    for button in (view.run, view.stop, view.sweep, view.export):
        assert button.tooltip


def test_buttons_and_progress_follow_the_state(gate):
    lab = Lab(gate)
    view = shown(lab)
    progress = []
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
    assert not view.export.disabled and progress == [0.5, 0.0]


def test_run_takes_the_controls(lab):
    view = shown(lab)
    view.fields["prefetch"].index = 2
    view.fields["cache"].value = True
    view.fields["workers"].value = 4
    view.run.click()
    finish(lab)
    assert lab.runs[0].settings == {"batch": 4, "prefetch": "AUTOTUNE", "cache": True, "workers": 4}


def test_none_can_be_chosen():
    lab = Lab(lambda size: build(), size=[2, None])
    view = shown(lab)
    view.fields["size"].index = 1
    view.run.click()
    finish(lab)
    assert lab.runs[0].settings == {"size": None}


def test_try_all_takes_the_other_controls(lab):
    view = shown(lab)
    view.fields["prefetch"].index = 1
    view.swept.value = "batch"
    view.sweep.click()
    finish(lab)
    assert [run.settings["batch"] for run in lab.runs] == [4, 32, 320]
    assert [run.settings["prefetch"] for run in lab.runs] == [2, 2, 2]


def test_the_picture_and_the_table_follow_the_runs(lab):
    view = shown(lab)
    lab.run()
    assert view.results.value.count('scope="row"') == 1
    lab.run(batch=320)
    assert view.results.value.count('scope="row"') == 2 and "currentColor" in view.results.value
    image = ElementTree.fromstring(view.results.value).find("{http://www.w3.org/2000/svg}svg")
    assert image.get("role") == "img" and "Run 2 (batch=320): " in image.get("aria-label")
    assert "faster" in image.get("aria-label")
    assert 'aria-live="polite"' in view.status.value and "Run 2" in view.status.value


def test_the_baseline_can_be_chosen(lab):
    view = shown(lab)
    first, second = lab.run(), lab.run(batch=320)
    assert lab.baseline is view.baseline.value is first
    before = view.results.value
    view.baseline.value = second
    assert lab.baseline is second and view.results.value != before
    assert lab.run(batch=32).ratio.b == "run 2"
    assert view.baseline.value is second


def test_export_says_where_or_what_went_wrong(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view = shown(lab)
    lab.run()
    view.export.click()
    assert (tmp_path / "lab-runs.csv").exists()
    assert str(tmp_path / "lab-runs.csv") in view.status.value

    def refuse(_):
        raise PermissionError("read-only")

    monkeypatch.setattr(lab, "export", refuse)
    view.export.click()
    assert "PermissionError: read-only" in view.status.value


def test_many_runs_leak_neither_threads_nor_widgets(lab, monkeypatch):
    monkeypatch.setattr(runs, "figure", lambda *_: None)
    monkeypatch.setattr("bigtrain_nb.lab.view.figure_svg", lambda *_: "<svg/>")
    shown(lab)
    lab.run()
    threads, widgets = threading.active_count(), len(living_widgets)
    for number in range(20):
        lab.start(batch=32)
        if number % 4 == 0:
            lab.stop()
        finish(lab)
    until(lambda: threading.active_count() <= threads)
    assert len(lab.runs) >= 16
    assert len(living_widgets) == widgets
