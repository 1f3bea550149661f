"""The book in a browser, opened from the disk as a reader opens it: on a phone and a desk, with its search."""
import pytest
from playwright.sync_api import expect

NOT_LOADED = "() => [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
TOO_WIDE = """() => Math.max(...[...document.querySelectorAll("html, .content")]
    .map(e => e.scrollWidth - e.clientWidth))"""


@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desk"])
def test_pages_fit_and_show_their_pictures(book, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    for path in sorted(book.glob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate(TOO_WIDE) <= 0, f"{path.name} is wider than the screen"
        assert page.evaluate(NOT_LOADED) == [], path.name


def test_the_search_finds_a_word(book, page, errors):
    page.goto((book / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("interleave")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="01 · Feed the model").first
    expect(found).to_be_visible()
    found.click()
    expect(page.locator("h1", has_text="Feed the model")).to_be_visible()
    errors.clear()  # no page on the disk may read the others, for the lines around what is found


def test_hints_open_and_pages_lead_on(book, page):
    page.goto((book / "00-measure-first.html").as_uri())
    hint = page.locator("details.hint").first
    expect(hint.locator("p")).to_be_hidden()
    hint.locator("summary").click()
    expect(hint.locator("p")).to_be_visible()
    page.locator("a.next-page").click()
    expect(page.locator("h1", has_text="01 · Feed the model")).to_be_visible()
