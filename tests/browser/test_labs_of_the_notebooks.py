"""The Lab of each notebook in a real browser: every control by keyboard, a run, and another after a change."""

from pathlib import Path

import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell
from playwright.sync_api import expect
from test_lab_session import ACTIVE, CELLS, DONE, SMALL, button, open_notebook, picture, run_all

from bigtrain_nb import unpack

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("0[0-7]*.ipynb"))
CONTROLS = ".bigtrain-lab select, .bigtrain-lab input, .bigtrain-lab [role=slider]"


def as_far_as_its_lab(path):
    notebook = rules.clean(rules.read(path))
    [end, *_] = [number for number, cell in enumerate(notebook.cells, 1) if "bt.Lab(" in cell.source]
    notebook.cells = [*notebook.cells[:end], new_code_cell(SMALL[-1])]
    assert DONE[:5] in notebook.cells[-1].source
    return notebook


@pytest.mark.more("each notebook's Lab, which takes a minute each")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_control_takes_keys_and_the_lab_runs(path, jupyter, page, artifacts):
    unpack.main([str(jupyter.folder)])
    rules.write(as_far_as_its_lab(path), jupyter.folder / path.name)
    open_notebook(page, jupyter, path.name)
    run_all(page)
    cells = page.evaluate(CELLS)

    controls = page.locator(CONTROLS)
    assert controls.count() >= 2
    controls.first.focus()
    page.keyboard.press("Tab")
    active = page.evaluate(ACTIVE)
    for number in range(controls.count()):
        if controls.nth(number).is_visible() and controls.nth(number).is_enabled():
            controls.nth(number).focus()
            for key in ("m", "a", "ArrowRight", "ArrowLeft"):
                page.keyboard.press(key)
    assert page.evaluate(CELLS) == cells and page.evaluate(ACTIVE) == active

    for words in ("run 1", "run 2"):
        button(page, "Run").focus()
        page.keyboard.press("Space")
        drawn = page.locator(f'svg[role=img][aria-label*="{words}" i]')
        failed = page.get_by_role("status").filter(has_text="failed")
        expect(drawn.or_(failed).first).to_be_attached(timeout=180_000)
        assert failed.all_inner_texts() == []
        expect(button(page, "Run")).to_be_enabled(timeout=60_000)
        slider_or_list = page.locator(".bigtrain-lab [role=slider], .bigtrain-lab select").first
        slider_or_list.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    assert picture(page).get_attribute("aria-label")
    lab = page.locator(".jp-OutputArea-output", has=button(page, "Run")).first
    lab.screenshot(path=artifacts / f"lab-of-{path.stem[:2]}.png")
