"""Faults of the folder, its checkpoints and the model: the error messages, and the files left unchanged."""

import resource
from contextlib import contextmanager

import pytest
from resume_runs import adamw, cut_after_5, epoch_of, model_of, names

from bigtrain_nb.common.quiet import keras
from bigtrain_nb.train.checkpoint_files import _line
from bigtrain_nb.train.resume import Resume


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def corrupt(path):
    path.write_bytes(path.read_bytes()[:-9] + b"\xff" * 9)


@pytest.mark.parametrize(("file", "spoil"), [("index", corrupt), ("data-00000-of-00001", halve)])
def test_a_checkpoint_that_cannot_be_read_gives_way_to_the_one_before(file, spoil, tmp_path, capsys):
    spoil(cut_after_5(tmp_path) / f"ckpt-2.{file}")
    resume = Resume(tmp_path, model_of(seed=2), every=2)
    assert "ckpt-2 cannot be read, trying the previous one" in capsys.readouterr().out
    assert (resume.epoch, resume.step) == (0, 2)


def test_no_checkpoint_can_be_read(tmp_path):
    for path in cut_after_5(tmp_path).glob("ckpt-*.index"):
        path.write_bytes(b"")
    with pytest.raises(OSError, match="none of the checkpoints in .* can be read: empty it"):
        Resume(tmp_path, model_of())


def test_checkpoints_are_found_by_their_numbers_and_remains_of_a_killed_save_are_removed(tmp_path):
    """Without their list, and with a copy by another name, which is neither restored nor removed."""
    (cut_after_5(tmp_path) / "checkpoint").unlink()
    copy = tmp_path / "ckpt-best.index"
    copy.write_bytes((tmp_path / "ckpt-2.index").read_bytes())
    before = names(tmp_path)
    (tmp_path / "ckpt-3_temp").mkdir()
    (tmp_path / "ckpt-3_temp" / "part-00000-of-00001.index").write_bytes(b"half")
    (tmp_path / "checkpoint.tmp0123").write_bytes(b"half")
    resume = Resume(tmp_path, model_of(), every=1)
    assert resume.step == 4 and names(tmp_path) == before
    for _ in resume.epochs(1):
        resume.rest(epoch_of(0))
        resume.step_done()
    assert copy.exists() and not (tmp_path / "ckpt-2.index").exists()


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Resume("~/runs", model_of())
    assert names(tmp_path) == ["home"] and (tmp_path / "home" / "runs").is_dir()


def contents(folder):
    """Return the checkpoint files, without the file that records the folder's owner."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "owner.json"}


@pytest.mark.parametrize("other", [{"units": 9}, {"optimizer": lambda: keras.optimizers.SGD(0.1)}])
def test_a_checkpoint_of_another_model_is_refused_and_kept(other, tmp_path):
    before = contents(cut_after_5(tmp_path))
    words = f"{tmp_path}/ckpt-2 belongs to another model or optimizer.* a separate folder"
    with pytest.raises(ValueError, match=words):
        Resume(tmp_path, model_of(seed=2, **other))
    assert contents(tmp_path) == before


def test_a_checkpoint_of_a_model_with_other_dropout_is_refused(tmp_path):
    cut_after_5(tmp_path)
    inputs = keras.Input((5,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="tanh")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(adamw(), "mse")
    with pytest.raises(ValueError, match="2 seed generators, as in Dropout, but this one has 0: build"):
        Resume(tmp_path, model)


@contextmanager
def full_disk(size):
    """Limit the size of files to this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("length", [10, 500])
def test_a_long_error_keeps_its_reason(length):
    words = _line(OSError(f"{'/folder' * length}: No space left on device [Op:SaveV2]\nmore"))
    assert words.startswith("/folder") and words.endswith("No space left on device [Op:SaveV2]")
    assert len(words) <= 305


def test_a_disk_that_is_full_costs_no_checkpoint(tmp_path):
    model = model_of(units=100_000)
    resume = Resume(tmp_path, model, every=1)
    with pytest.raises(OSError, match=f"cannot save in {tmp_path}"):
        for _ in resume.epochs(1):
            resume.step_done(2)
            before = contents(tmp_path)
            with full_disk(1_000_000):
                resume.step_done()
    assert contents(tmp_path) == before
    assert Resume(tmp_path, model).step == 2
