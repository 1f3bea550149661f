"""Progress: nothing within a second, one line after that, nothing left at the end."""

import io
import sys

import pytest

from bigtrain_nb.common import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def work(clock, items, seconds, **settings):
    for item in progress.shown(items, "working", **settings):
        clock[0] += seconds
        yield item


def visible(written):
    """What a terminal shows after these characters."""
    return written.split("\r")[-1].replace("\x1b[K", "")


def test_quick_work_shows_nothing(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(work(clock, range(9), 0.1)) == list(range(9))
    assert sys.stderr.getvalue() == ""


def test_slow_work_shows_a_line_and_wipes_it(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(work(clock, iter("abcd"), 0.6, total=4)) == list("abcd")
    written = sys.stderr.getvalue()
    assert "\rworking: 2 of 4 (50%)\x1b[K\rworking: 3 of 4 (75%)\x1b[K\r" in written
    assert visible(written).strip() == ""


def test_the_line_is_wiped_when_the_work_fails(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())

    def failing():
        yield 1
        clock[0] += 5
        yield 2
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(progress.shown(failing(), "working", 3))
    assert "1 of 3" in sys.stderr.getvalue() and visible(sys.stderr.getvalue()).strip() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_files_and_missing_streams_get_nothing(clock, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(work(clock, range(3), 2)) == [0, 1, 2]
    assert stream is None or stream.getvalue() == ""


def test_in_a_notebook_one_display_is_updated_and_emptied(clock, monkeypatch):
    import IPython.display

    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append((data["text/plain"], raw))

    def display(data, raw, display_id):
        assert display_id
        shown.append((data["text/plain"], raw))
        return Handle()

    class Shell:
        kernel = object()

    monkeypatch.setattr(IPython, "get_ipython", Shell)
    monkeypatch.setattr(IPython.display, "display", display)
    list(work(clock, range(3), 1))
    assert shown == [
        ("", True),
        ("working: 1 of 3 (33%)", True),
        ("working: 2 of 3 (67%)", True),
        ("", True),
    ]
