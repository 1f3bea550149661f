"""Files that several processes write: always whole, written by one of them, and by another where that one has died."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bigtrain_nb.common import files
from bigtrain_nb.common.files import write_once


def test_many_at_a_time_all_find_the_whole_file(tmp_path):
    path = tmp_path / "new" / "model.keras"

    def write(beside):
        with open(beside, "w", encoding="utf-8") as file:
            for _ in range(10):
                file.write("x" * 100)
                file.flush()
                time.sleep(0.01)

    def save():
        for _ in range(3):
            write_once(path, write)
            assert len(path.read_text()) == 1000

    with ThreadPoolExecutor(8) as pool:
        saves = [pool.submit(save) for _ in range(8)]
    for one in saves:
        one.result()
    assert [each.name for each in path.parent.iterdir()] == ["model.keras"]


def test_who_comes_while_another_writes_waits_and_does_not_write(tmp_path):
    path, beside = tmp_path / "a.h5", tmp_path / ".part-of-a.h5"
    beside.write_text("half")
    written = []
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(write_once, path, written.append)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.3)
        beside.write_text("whole")
        beside.replace(path)
        waits.result()
    assert written == [] and path.read_text() == "whole"


def test_what_a_process_that_died_left_is_written_anew_after_a_word(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "TELL_SECONDS", 0.1)
    monkeypatch.setattr(files, "SECONDS_WITHOUT_A_SIGN", 0.2)
    (tmp_path / ".part-of-a.h5").write_text("half")
    write_once(tmp_path / "a.h5", lambda beside: beside.write_text("whole"))
    assert (tmp_path / "a.h5").read_text() == "whole"
    assert len(list(tmp_path.iterdir())) == 1
    assert capsys.readouterr().out.startswith(f"Waiting for {tmp_path}/a.h5: another process has begun to write it")


def test_who_prepares_for_long_what_it_writes_is_not_taken_for_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr(files, "SECONDS_WITHOUT_A_SIGN", 1.0)
    path, begun, by_others = tmp_path / "a.keras", threading.Event(), []

    def prepare_and_write(beside):
        begun.set()
        time.sleep(2.5)
        beside.write_text("whole")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(write_once, path, prepare_and_write)
        assert begun.wait(60)
        write_once(path, by_others.append)
        first.result()
    assert by_others == [] and path.read_text() == "whole"


def test_where_the_other_fails_this_one_writes(tmp_path):
    path = tmp_path / "a.h5"
    begun = threading.Event()

    def fail(beside):
        beside.write_text("half")
        begun.set()
        time.sleep(0.3)
        raise OSError("the disk is full")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(write_once, path, fail)
        assert begun.wait(60)
        write_once(path, lambda beside: beside.write_text("whole"))
        with pytest.raises(OSError, match="full"):
            first.result()
    assert path.read_text() == "whole"


def test_who_begins_when_another_has_just_ended_keeps_its_file(tmp_path, monkeypatch):
    path, beside = tmp_path / "a.h5", tmp_path / ".part-of-a.h5"
    replace = Path.replace

    def replace_and_another_begins(self, target):
        replace(self, target)
        beside.write_text("of another")

    monkeypatch.setattr(Path, "replace", replace_and_another_begins)
    write_once(path, lambda part: part.write_text("whole"))
    assert path.read_text() == "whole" and beside.read_text() == "of another"
