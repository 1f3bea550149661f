"""Cache folders: created once and atomically, repaired, shared by several makers."""

import sys
import threading

import pytest

from bigtrain_nb.data import cache as storage


class Maker:
    """Calls `made`, and counts how often the folder had to be filled."""

    def __init__(self, cache):
        self.calls, self.cache = 0, cache

    def fill(self, folder):
        self.calls += 1
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text("hello")
        (folder / "b.txt").write_text("b")
        return {"text": "hello"}

    def made(self):
        folder, facts = storage.made("thing", self.fill, self.cache)
        assert facts == {"text": "hello"}
        assert (folder / "inner" / "a.txt").read_text() == "hello" and (folder / "b.txt").read_text() == "b"
        return folder


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "deep" / "cache")


def test_made_once_with_facts_kept(maker):
    folder = maker.made()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert maker.made() == folder and maker.calls == 1
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert list(maker.cache.iterdir()) == [folder]


def remove(folder):
    (folder / "b.txt").unlink()


def shorten(folder):
    (folder / "inner" / "a.txt").write_text("hell")


def forget(folder):
    (folder / storage.MANIFEST).unlink()


@pytest.mark.parametrize("damage", [remove, shorten, forget])
def test_damage_is_healed(maker, damage):
    folder = maker.made()
    damage(folder)
    assert maker.made() == folder and maker.calls == 2
    assert list(maker.cache.iterdir()) == [folder]


def test_an_interrupted_making_leaves_nothing_and_keeps_what_was_there(maker):
    def fill(making):
        (making / "half").write_text("half")
        raise KeyboardInterrupt

    for there in (False, True):
        if there:
            remove(maker.made())
        with pytest.raises(KeyboardInterrupt):
            storage.made("thing", fill, maker.cache)
        assert len(list(maker.cache.iterdir())) == there


def test_makers_at_the_same_time_all_end_well(maker):
    barrier = threading.Barrier(4, timeout=30)
    fill, found = maker.fill, []

    def wait_and_fill(making):
        barrier.wait()
        return fill(making)

    maker.fill = wait_and_fill
    threads = [threading.Thread(target=lambda: found.append(maker.made())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 and list(maker.cache.iterdir()) == [found[0]]


def test_the_cache_folder_is_the_argument_or_the_variable_or_the_platforms(tmp_path, monkeypatch):
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path / "variable"))
    assert storage.cache_folder(tmp_path / "argument") == tmp_path / "argument"
    assert storage.cache_folder() == storage.cache_folder("") == tmp_path / "variable"
    monkeypatch.delenv("BIGTRAIN_NB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    base = tmp_path / "Library" / "Caches" if sys.platform == "darwin" else tmp_path / "xdg"
    assert storage.cache_folder() == base / "bigtrain_nb"
