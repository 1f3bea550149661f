"""A checkpoint folder is used by one training run at a time, and records which."""

import json
import os
import sys

import psutil
import pytest
from resume_runs import model_of

import bigtrain_nb as bt
from bigtrain_nb.train.folder_owner import FILE, FolderOwner


def note(folder):
    return json.loads((folder / FILE).read_text())


def by_another(folder, **facts):
    """Make another process the recorded owner, on this or another host."""
    other = {
        "process": os.getppid(),
        "started": psutil.Process(os.getppid()).create_time(),
        "runs": "other.py --rate 7",
    }
    (folder / FILE).write_text(json.dumps(note(folder) | other | facts))


def test_a_training_notes_that_it_begins_and_that_it_has_ended(tmp_path):
    owner = FolderOwner(tmp_path)
    assert owner.token == 0 and owner.take() is None
    assert note(tmp_path)["state"] == "made" and note(tmp_path)["process"] == os.getpid()
    with pytest.raises(KeyError), owner.training():
        assert note(tmp_path)["state"] == "trains"
        raise KeyError
    assert note(tmp_path)["state"] == "ended"
    token = note(tmp_path)["token"]
    after = FolderOwner(tmp_path)
    assert after.take()["token"] == token != after.token


def test_another_living_training_is_named_and_what_has_ended_is_not_in_the_way(tmp_path):
    FolderOwner(tmp_path).take()
    by_another(tmp_path, state="trains")
    with pytest.raises(
        RuntimeError, match=rf"in use by another training run, 'other.py --rate 7' \(process {os.getppid()} on"
    ):
        FolderOwner(tmp_path).take()
    for gone in ({"state": "ended"}, {"state": "made"}, {"state": "trains", "started": 1.0}, {"process": 2**22 + 7}):
        by_another(tmp_path, **gone)
        before = FolderOwner(tmp_path).take()
        assert before["runs"] == "other.py --rate 7"


def test_a_living_training_is_in_the_way_even_if_the_clock_was_set_since(tmp_path, monkeypatch):
    FolderOwner(tmp_path).take()
    started = FolderOwner(tmp_path.parent)._note["started"]
    parent = psutil.Process(os.getppid())
    of_parent = started - psutil.Process().create_time() + parent.create_time()
    by_another(tmp_path, state="trains", started=of_parent)
    created, booted = psutil.Process.create_time, psutil.boot_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: booted - 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) - 3600)
    with pytest.raises(RuntimeError, match="in use by another training run"):
        FolderOwner(tmp_path).take()


def test_a_folder_that_another_training_has_taken_is_not_saved_in(tmp_path):
    resume = bt.Resume(tmp_path, model_of())
    by_another(tmp_path)
    with pytest.raises(RuntimeError, match="in use by another training"):
        next(resume.epochs(1))
    with pytest.raises(RuntimeError, match="in use by another training"):
        resume._files.save(is_chief=True)
    assert not list(tmp_path.glob("ckpt*"))


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"pid_namespace": "of another container"}])
def test_a_folder_goes_over_from_another_host_at_once_and_the_training_there_raises_at_its_next_save(
    elsewhere, tmp_path
):
    there = FolderOwner(tmp_path)
    there._note.update(elsewhere)
    there.take()
    with there.training():
        before = FolderOwner(tmp_path).take()
        assert all(before[name] == value for name, value in elsewhere.items())
        with pytest.raises(RuntimeError, match="in use by another training"):
            there.check()
    assert note(tmp_path)["state"] == "made"  # not changed by the run that has lost it


def test_a_note_that_is_no_note_is_none_and_one_that_cannot_be_read_is_not_overwritten(tmp_path):
    for text in ("", "[]", "{}"):
        (tmp_path / FILE).write_text(text)
        assert FolderOwner(tmp_path).take() is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(OSError, match=f"{FILE}, which records who uses the folder, cannot be read"):
        FolderOwner(tmp_path).take()


def test_going_on_from_a_training_that_ran_something_else_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    model = model_of()
    for _ in bt.Resume(tmp_path, model).epochs(1):
        pass
    by_another(tmp_path)
    capsys.readouterr()
    bt.Resume(tmp_path, model)
    said = capsys.readouterr().out
    assert f"{tmp_path} was last used by 'other.py --rate 7'; this is " in said and "epoch 1, step 0" in said
    bt.Resume(tmp_path, model)
    assert capsys.readouterr().out == ""
    by_another(tmp_path)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    bt.Resume(tmp_path, model)
    assert capsys.readouterr().out == "" and note(tmp_path)["runs"] == "a notebook"


def test_a_restart_that_finds_no_checkpoint_is_said(tmp_path, monkeypatch, capsys):
    bt.Resume(tmp_path / "first", model_of())
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("BIGTRAIN_RESTART", "2")
    bt.Resume(tmp_path / "again", model_of())
    assert f"This is restart 2, but there is no checkpoint in {tmp_path}/again" in capsys.readouterr().out
