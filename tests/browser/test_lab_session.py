"""A reader's session in a real browser: open a notebook, run its cells, use the Lab, read the picture."""

from pathlib import Path

import notebook_rules as rules
import pytest
from jupyter_client import BlockingKernelClient
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

DONE = "every cell has run"
SMALL = [
    "import bigtrain_nb as bt\ndata = bt.photo_crops(count=512, test_count=64)",
    "def build(**settings):\n    return bt.Pipeline(data=data, rewrites=False, **settings)",
    'bt.Lab(build, seconds=0.5, num_parallel_calls=[1, 2, 4], cache=[None, "memory"], batch=[16, 32, 64],'
    " prefetch=[0, 2])",
    f"print({DONE[:5]!r} + {DONE[5:]!r})",
]
KERNEL_READY = """() => {
    const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    const kernel = context?.session?.kernel;
    return context?.isReady && kernel?.connectionStatus == "connected" && kernel?.status == "idle";
}"""


@pytest.fixture(scope="module", autouse=True)
def a_proxy_that_does_not_answer():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("http_proxy", "http://127.0.0.1:9")
        yield


def put(sources, path):
    rules.write(rules.clean(new_notebook(cells=[new_code_cell(source) for source in sources])), path)


def open_notebook(page, jupyter, name, app=None):
    app = app or f"lab/workspaces/{Path(name).stem}/tree"  # a separate workspace: other tabs would have buttons too
    page.goto(f"{jupyter.url}/{app}/{name}?token={jupyter.token}")
    page.wait_for_function(KERNEL_READY)  # the indicator shows idle too early, and runs would be lost


def run_all(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    sentinel = page.locator(".jp-OutputArea-output", has_text=DONE)
    noise = page.locator("[data-mime-type='application/vnd.jupyter.stderr']")  # includes tracebacks
    expect(sentinel.or_(noise).first).to_be_attached(timeout=300_000)
    assert noise.all_inner_texts() == []


def button(page, name):
    """Return a button of the Lab; a notebook may show the same Lab twice."""
    return page.get_by_role("button", name=name, exact=True).first


def picture(page):
    """Return the Lab's picture, as found by a screen reader."""
    return page.locator(".widget-html [role=img]").first


def slider(page, name):
    """Return the handle of a slider, which can be focused."""
    return page.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True)).get_by_role("slider")


def readout(page, name):
    return page.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True)).locator(".widget-readout")


def slide(page, name, *keys):
    slider(page, name).focus()
    for key in keys:
        page.keyboard.press(key)


TABLE = """() => {
    const table = document.querySelector('.bigtrain-lab table');
    const around = table.parentElement.parentElement;
    const rows = [...table.querySelectorAll('tbody tr')].map(row => row.offsetHeight);
    return [around.scrollWidth - around.clientWidth, rows];
}"""
"""The overflow of the Lab's table in pixels, and the heights of its rows."""


def press_and_await(page, name, words):
    """Press a button of the Lab and wait for a picture with these words."""
    before = picture(page).inner_html() if picture(page).count() else ""
    button(page, name).click()
    drawn = page.locator(f'svg[role=img][aria-label*="{words}" i]')
    failed = page.get_by_role("status").filter(has_text="This run failed")
    expect(drawn.or_(failed).first).to_be_attached(timeout=180_000)
    assert failed.all_inner_texts() == []
    expect(button(page, "Run")).to_be_enabled()
    assert picture(page).inner_html() != before


def occupy_the_kernel(jupyter, seconds):
    """Start a long cell in the kernel's main thread, from another client."""
    [connection] = (jupyter.folder.parent / "RUNTIME_DIR").glob("kernel-*.json")
    client = BlockingKernelClient(connection_file=str(connection))
    client.load_connection_file()
    client.start_channels()
    client.execute(f"import time; time.sleep({seconds})")
    while client.get_iopub_msg(timeout=30)["header"]["msg_type"] != "execute_input":
        pass
    client.stop_channels()


def test_the_lab_in_jupyterlab(jupyter, page, artifacts):
    put(SMALL, jupyter.folder / "small.ipynb")
    open_notebook(page, jupyter, "small.ipynb")
    run_all(page)
    expect(button(page, "Stop")).to_be_disabled()

    press_and_await(page, "Run", "run 1")
    expect(button(page, "Run")).to_be_focused()  # Stop had the focus, and was disabled
    occupy_the_kernel(jupyter, seconds=20)  # what is chosen now counts all the same
    slide(page, "num_parallel_calls", "ArrowRight")
    expect(readout(page, "num_parallel_calls")).to_have_text("2")
    page.get_by_label("Try all values of", exact=True).select_option("prefetch")
    press_and_await(page, "Try all", "run 3")

    page.get_by_label("cache", exact=True).select_option("memory")
    label = picture(page).get_attribute("aria-label")
    button(page, "Run").click()
    expect(page.get_by_role("status").filter(has_text="Measuring run 3, run 4")).to_be_visible()
    button(page, "Stop").click()
    expect(page.get_by_role("status").filter(has_text="Stopped")).to_be_visible()
    expect(button(page, "Run")).to_be_enabled()
    assert picture(page).get_attribute("aria-label") == label
    press_and_await(page, "Run", "run 4")

    keep_pictures(page, artifacts)
    for width in (1100, 850):
        page.set_viewport_size({"width": width, "height": 1100})
        hidden, rows = page.evaluate(TABLE)
        page.locator(".jp-OutputArea-output", has=button(page, "Try all")).screenshot(
            path=artifacts / f"lab-{width}.png"
        )
        assert hidden <= 0, f"at {width} pixels no column is cut off"
        assert max(rows) < 30 or width == 850, "each run has a line; beside the files a page of 850 leaves some 400"


KEYS = [
    "import time\nimport bigtrain_nb as bt",
    "def build(memory, cores, micro, exact):\n    return lambda: time.sleep(0.001) or cores",
    "lab = bt.Lab(build, seconds=0.2, memory=['auto', 'much', 'little'], cores=range(1, 9), micro=[1, 4, 16],"
    " exact=False)\nlab",
    f"print({DONE[:5]!r} + {DONE[5:]!r})",
]
CELLS = """() => [...document.querySelectorAll('.jp-Notebook .jp-Cell')].map(
    cell => [...cell.classList].find(name => /jp-(Code|Markdown|Raw)Cell/.test(name)))"""
ACTIVE = """() => [...document.querySelectorAll('.jp-Notebook .jp-Cell')].findIndex(
    cell => cell.classList.contains('jp-mod-active'))"""
COMMANDS = ["m", "a", "b", "r", "y", "j", "k", "x", "d", "d", "1", "ArrowDown", "ArrowUp", "Escape", "Enter"]


def test_keys_typed_at_a_control_are_no_commands_for_the_cell(jupyter, page):
    put(KEYS, jupyter.folder / "keys.ipynb")
    open_notebook(page, jupyter, "keys.ipynb")
    run_all(page)
    check_keys(page)


@pytest.mark.more("a run and the keys a second time, in Notebook 7")
def test_the_lab_in_notebook_7(jupyter, page, errors):
    put(KEYS, jupyter.folder / "seven.ipynb")
    open_notebook(page, jupyter, "seven.ipynb", app="notebooks")
    errors.clear()  # while loading, Notebook 7.6 itself reports missing settings and commands
    run_all(page)
    press_and_await(page, "Run", "run 1")
    check_keys(page)


def check_keys(page):
    cells = page.evaluate(CELLS)
    memory = page.get_by_label("memory", exact=True)
    memory.focus()
    lab = 2  # its cell becomes active, and stays so
    page.keyboard.press("m")
    assert page.evaluate(CELLS) == cells, "m is no command at a dropdown"
    expect(memory).to_have_value("much")
    page.keyboard.press("ArrowDown")
    expect(memory).to_have_value("little")
    slide(page, "cores", "ArrowRight", "ArrowRight", "ArrowLeft")
    expect(readout(page, "cores")).to_have_text("2")
    slide(page, "micro", "ArrowRight", "ArrowRight")
    expect(readout(page, "micro")).to_have_text("16")
    slide(page, "cores", "End")
    expect(readout(page, "cores")).to_have_text("8")
    readout(page, "cores").click()
    page.keyboard.press("Control+A")
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    expect(readout(page, "cores")).to_have_text("5")
    exact = page.get_by_label("exact", exact=True)
    exact.focus()
    page.keyboard.press("Space")
    expect(exact).to_be_checked()
    fields = [page.get_by_label(name, exact=True) for name in ("memory", "exact")]
    fields += [slider(page, name) for name in ("cores", "micro")]
    stops = [*fields, button(page, "Try all")]
    for stop in stops:
        for place in range(stop.count()):
            stop.nth(place).focus()
            for key in COMMANDS:
                page.keyboard.press(key)
            assert page.evaluate(CELLS) == cells, f"{stop} {place}"
            assert page.evaluate(ACTIVE) == lab, f"{stop} {place}"
    expect(button(page, "Run")).to_be_enabled(timeout=60_000)


def keep_pictures(page, folder):
    """Save the Lab in both themes; lab-light.png is the README's picture, taken with BIGTRAIN_NB_TIME_SCALE=16."""
    lab = page.locator(".jp-OutputArea-output", has=button(page, "Try all"))
    for theme in ("Dark", "Light"):
        page.evaluate(
            "name => jupyterapp.commands.execute('apputils:change-theme', {theme: name})", f"JupyterLab {theme}"
        )
        expect(page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']")).to_be_attached()
        expect(page.locator("#jupyterlab-splash")).to_have_count(0)
        lab.screenshot(path=folder / f"lab-{theme.lower()}.png")
