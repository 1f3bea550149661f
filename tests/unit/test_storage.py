"""Folders in the cache: made once and whole, healed, shared by several makers, never half made."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from collections import namedtuple

import pytest

from bigtrain_nb.data import cache as storage


class Maker:
    """A fill function that counts its calls."""

    def __init__(self, text="hello"):
        self.calls, self.text = 0, text

    def __call__(self, folder):
        self.calls += 1
        (folder / "inner").mkdir()
        (folder / "inner" / "a.txt").write_text(self.text)
        (folder / "b.txt").write_text("b")
        return {"text": self.text}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "thing"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_made_once_with_facts_kept(folder):
    maker = Maker()
    assert storage.made(folder, maker, 10) == {"text": "hello"}
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert storage.made(folder, maker, 10) == {"text": "hello"}
    assert maker.calls == 1
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert names(folder.parent) == ["thing"]


def remove(folder):
    (folder / "b.txt").unlink()


def shorten(folder):
    (folder / "inner" / "a.txt").write_text("hell")


def change(folder):
    (folder / "inner" / "a.txt").write_text("jello")


def forget(folder):
    (folder / storage.MANIFEST).unlink()


def scribble(folder):
    (folder / storage.MANIFEST).write_bytes(b"\xff\x00 no manifest")


def alter_facts(folder):
    manifest = folder / storage.MANIFEST
    manifest.write_text(manifest.read_text().replace('{"text": "hello"}', '{"text": "jello"}'))


def become_a_file(folder):
    storage.shutil.rmtree(folder)
    folder.write_text("a file in the folder's place")


@pytest.mark.parametrize("damage", [remove, shorten, change, forget, scribble, alter_facts, become_a_file])
def test_damage_is_healed(folder, damage):
    maker = Maker()
    storage.made(folder, maker, 10)
    damage(folder)
    assert storage.made(folder, maker, 10) == {"text": "hello"}
    assert maker.calls == 2
    assert (folder / "inner" / "a.txt").read_text() == "hello" and (folder / "b.txt").read_text() == "b"
    assert storage.whole(folder) and not storage.damaged_files(folder)
    assert names(folder.parent) == ["thing"]


def test_damaged_files_are_named(folder):
    storage.made(folder, Maker(), 10)
    remove(folder)
    change(folder)
    assert sorted(storage.damaged_files(folder)) == [folder / "b.txt", folder / "inner" / "a.txt"]
    scribble(folder)
    assert storage.damaged_files(folder) == [folder / storage.MANIFEST]


def test_large_folders_are_opened_by_sizes_alone(folder, monkeypatch):
    maker = Maker()
    storage.made(folder, maker, 10)
    monkeypatch.setattr(storage, "CHECKSUM_BYTES", 3)
    change(folder)
    storage.made(folder, maker, 10)
    assert maker.calls == 1 and storage.damaged_files(folder) == [folder / "inner" / "a.txt"]
    shorten(folder)
    storage.made(folder, maker, 10)
    assert maker.calls == 2 and not storage.damaged_files(folder)


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_an_interrupted_making_leaves_nothing(folder, error):
    def fill(making):
        (making / "half").write_text("half")
        assert not folder.exists()
        raise error

    with pytest.raises(type(error)):
        storage.made(folder, fill, 10)
    assert names(folder.parent) == []


def test_a_failed_healing_keeps_what_was_there(folder):
    storage.made(folder, Maker(), 10)
    remove(folder)

    def fill(making):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        storage.made(folder, fill, 10)
    assert names(folder.parent) == ["thing"] and (folder / "inner" / "a.txt").read_text() == "hello"


KILLED = """
import os, signal, sys
from bigtrain_nb.data import cache as storage
def fill(making):
    (making / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
storage.made(sys.argv[1], fill, 10)
"""


def test_leavings_of_a_killed_process_are_removed_at_the_next_use(folder):
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], timeout=60)
    assert done.returncode < 0
    assert re.fullmatch(r"\.making-\w+-\d+-\w+", *names(folder.parent))
    storage.made(folder, Maker(), 10)
    assert names(folder.parent) == ["thing"]


def test_another_hosts_leavings_are_removed_after_a_day_and_a_living_makers_never(folder):
    fresh, old = (folder.parent / f".making-elsewhere-1-{name}" for name in ("fresh", "old"))
    living = storage._beside(folder)
    for path in (fresh, old, living):
        path.mkdir(parents=True)
    for path in (old, living):
        os.utime(path, (0, 0))
    storage.made(folder, Maker(), 10)
    assert names(folder.parent) == sorted([fresh.name, living.name, "thing"])


def test_what_only_looks_like_leavings_is_let_be(folder):
    foreign = [".making-x", ".making-of", ".making-a-b-c", ".making-a-b-c-d"]
    for name in foreign:
        (folder.parent / name).mkdir(parents=True)
        os.utime(folder.parent / name, (0, 0))
    storage.made(folder, Maker(), 10)
    assert names(folder.parent) == sorted([*foreign, "thing"])


@pytest.mark.parametrize("damaged", [False, True])
def test_makers_at_the_same_time_all_end_well(folder, damaged):
    if damaged:
        storage.made(folder, Maker(), 10)
        remove(folder)
    barrier, results = threading.Barrier(4, timeout=30), []

    def fill(making):
        barrier.wait()
        return Maker()(making)

    def make():
        results.append(storage.made(folder, fill, 10))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [{"text": "hello"}] * 4
    assert storage.whole(folder) and names(folder.parent) == ["thing"]


Usage = namedtuple("Usage", "total used free")


def test_too_little_space_is_said_before_anything_is_written(folder, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: Usage(9e9, 8e9, 1e6))
    maker = Maker()
    with pytest.raises(OSError, match=r"about 2\.5 MB are needed and 1\.0 MB are free.*thing") as caught:
        storage.made(folder, maker, 2_500_000)
    assert caught.value.errno == errno.ENOSPC
    assert maker.calls == 0 and names(folder.parent) == []


def test_a_disk_that_fills_while_writing(folder):
    def fill(making):
        (making / "half").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"not enough space: about 0\.1 MB are needed.*thing"):
        storage.made(folder, fill, 100_000)
    assert names(folder.parent) == []


def test_other_errors_of_the_system_pass_unchanged(folder):
    def fill(making):
        raise PermissionError(errno.EACCES, "not yours")

    with pytest.raises(PermissionError, match="not yours"):
        storage.made(folder, fill, 10)


def test_the_cache_folder_is_the_argument_or_the_variable_or_the_platforms(tmp_path, monkeypatch):
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path / "variable"))
    assert storage.cache_folder(tmp_path / "argument") == tmp_path / "argument"
    assert storage.cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("BIGTRAIN_NB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    base = tmp_path / "Library" / "Caches" if sys.platform == "darwin" else tmp_path / "xdg"
    assert storage.cache_folder() == base / "bigtrain_nb"


def test_the_manifest_lists_every_file_with_its_size(folder):
    storage.made(folder, Maker(), 10)
    manifest = json.loads((folder / storage.MANIFEST).read_text().split("\n", 1)[1])
    assert {name: size for name, (size, _) in manifest["files"].items()} == {"inner/a.txt": 5, "b.txt": 1}
