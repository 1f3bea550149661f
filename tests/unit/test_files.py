"""Atomic file writes: a temporary file next to the old one, then a rename."""

import os
import stat
import threading
import time

import pytest

from bigtrain_nb.common.files import replace_atomically, write_bytes


def test_nobody_sees_half_of_a_file(tmp_path):
    path = tmp_path / "new" / "model.keras"
    for content in ("first", "second"):
        before = path.read_text() if path.exists() else None

        def write(beside, content=content, before=before):
            beside.write_text(content)
            assert beside.suffix == ".keras" and (path.read_text() if path.exists() else None) == before

        replace_atomically(path, write)
        assert path.read_text() == content
    assert [each.name for each in path.parent.iterdir()] == ["model.keras"]


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "scratch" / "best.keras", tmp_path / "best.keras"
    write_bytes(target, b"old")
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and list(target.parent.iterdir()) == [target]


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_bytes("~/runs/result.json", b"new")
    assert (tmp_path / "home/runs/result.json").read_bytes() == b"new" and os.listdir() == ["home"]


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_bytes(pipe, b"new")
    reader.join(10)
    assert read == [b"new"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_mode_of_a_file_is_kept(tmp_path):
    path = tmp_path / "secret.json"
    write_bytes(path, b"old")
    path.chmod(0o600)
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.h5"
    write_bytes(path, b"whole")

    def fail(beside):
        beside.write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        replace_atomically(path, fail)
    assert path.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_processes_are_removed_after_an_hour(tmp_path):
    path = tmp_path / "model[1].keras"
    old, new, other = (
        tmp_path / name
        for name in (".1-ab.part-of-model[1].keras", ".2-ab.part-of-model[1].keras", ".1-ab.part-of-model1.keras")
    )
    for left, hours in ((old, 2), (new, 0.5), (other, 2)):
        left.write_text("half")
        os.utime(left, (time.time() - 3600 * hours,) * 2)
    write_bytes(path, b"complete")
    assert path.read_text() == "complete"
    assert [left.exists() for left in (old, new, other)] == [False, True, True]
