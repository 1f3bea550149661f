"""The book in a browser: from a static server and from the disk, on a phone and a desk, light and dark."""
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
PAGES = ["index", *(path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))), "glossary"]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
NOT_LOADED = "() => [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
TOO_WIDE = """() => Math.max(...[...document.querySelectorAll("html, .content")]
    .map(e => e.scrollWidth - e.clientWidth))"""
LIGHT = "() => getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"


class Files(SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/favicon.ico":  # which browsers ask for by themselves
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "html"
    subprocess.run([sys.executable, ROOT / "tools" / "book.py", folder], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def url(folder):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_fit_and_show_their_pictures(url, page, size):
    page.set_viewport_size(size)
    for name in PAGES:
        page.goto(f"{url}/{name}.html")
        assert page.evaluate(TOO_WIDE) <= 0, f"{name} is wider than the screen"
        assert page.evaluate(NOT_LOADED) == [], name
        assert page.locator("h1").first.is_visible()


@pytest.mark.parametrize("place", ["server", "disk"])
def test_the_search_finds_a_word(url, folder, page, errors, place):
    page.goto(f"{url}/index.html" if place == "server" else (folder / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("interleave")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="01 · Feed the model").first
    expect(found).to_be_visible()
    found.click()
    expect(page.locator("h1", has_text="Feed the model")).to_be_visible()
    if place == "disk":  # browsers do not let a page on the disk read the others, for the lines around what is found
        errors.clear()


def test_hints_open_and_pages_lead_on(url, page):
    page.goto(f"{url}/00-measure-first.html")
    hint = page.locator("details.hint").first
    expect(hint.locator("p")).to_be_hidden()
    hint.locator("summary").click()
    expect(hint.locator("p")).to_be_visible()
    page.locator("a.next-page").click()
    expect(page.locator("h1", has_text="01 · Feed the model")).to_be_visible()


def test_pages_are_dark_where_the_reader_wants_them_dark(url, page, artifacts):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{url}/02-mirror-it.html")
        assert (page.evaluate(LIGHT) > 3 * 128) == (scheme == "light")
        page.screenshot(path=artifacts / f"book-{scheme}.png")
