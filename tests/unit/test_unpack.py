"""The files that a notebook reads: unpacked by one command, which overwrites nothing; and the messages about it."""

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common import beside
from bigtrain_nb.unpack import main, unpack


def test_scripts_pictures_and_glossary_come_once(tmp_path, capsys):
    folder = tmp_path / "mine"
    main([str(folder)])
    files = sorted(path.relative_to(folder) for path in folder.glob("[!.]*/**/*") if path.is_file())
    files += [path.relative_to(folder) for path in folder.glob("*.md")]
    assert sorted({path.parts[0] for path in files}) == sorted(beside.NAMES)
    assert all((folder / path).read_bytes() == (beside.folder() / path).read_bytes() for path in files)
    assert {"scripts/__init__.py", "scripts/train_photos.py", "scripts/train.sbatch"} <= set(map(str, files))
    assert not any("__pycache__" in path.parts for path in files)
    assert capsys.readouterr().out == f"{len(files)} files written to {folder}: scripts, images, glossary.md\n"
    main([str(folder)])
    assert capsys.readouterr().out == "Already there: scripts, images, glossary.md\n"


def test_a_file_that_differs_is_kept_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    unpack()
    mine = tmp_path / "scripts" / "train_photos.py"
    mine.write_text("# mine")
    (tmp_path / "glossary.md").unlink()
    main([])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1 file written to ") and (tmp_path / "glossary.md").exists()
    assert second.startswith("Kept, because they differ from the series' files: scripts/train_photos.py. To get")


def test_a_file_that_nobody_changed_becomes_the_new_one(tmp_path, monkeypatch):
    series, folder = tmp_path / "series", tmp_path / "mine"
    (series / "scripts").mkdir(parents=True)
    for name in ("same", "changed"):
        (series / "scripts" / name).write_text("first")
    monkeypatch.setattr(beside, "folder", lambda: series)
    unpack(folder)
    (folder / "scripts" / "changed").write_text("mine")
    for name in ("same", "changed"):
        (series / "scripts" / name).write_text("second")
    written, kept = unpack(folder)
    assert [str(path) for path in written] == ["scripts/same"] and [str(path) for path in kept] == ["scripts/changed"]
    assert (folder / "scripts" / "same").read_text() == "second"
    assert (folder / "scripts" / "changed").read_text() == "mine"


def test_a_script_of_the_series_that_is_not_there_is_told_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = "no script 'scripts/train_photos.py' in .*; it belongs to this series: `%run -m bigtrain_nb.unpack` puts it"
    with pytest.raises(FileNotFoundError, match=told):
        bt.run_workers("scripts/train_photos.py")
    for other in ("scripts/mine.py", "conftest.py", "../bigtrain_nb/unpack.py"):
        with pytest.raises(FileNotFoundError) as refused:
            bt.run_workers(other)
        assert "unpack`" not in str(refused.value)
