"""Programs that XLA keeps on disk serve a second process, but never a changed model."""

import json
import os
import subprocess
import sys

import kept_programs
import pytest

pytestmark = pytest.mark.more("processes that compile: notebook 07 starts a second one that finds the program")


def losses(folder, *changes, made_before=0):
    """Return {change: losses}, trained in one process, and the programs in the folder after it."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={folder}" if folder else "",
    }
    command = [sys.executable, kept_programs.__file__, str(made_before), *changes]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), set(os.listdir(folder)) if folder else set()


def test_a_second_process_finds_the_program_also_after_other_work(tmp_path):
    first, programs = losses(tmp_path, "none")
    assert len(programs) == 1
    second = losses(tmp_path, "none", made_before=7)
    assert second == (first, programs)


def test_a_program_that_was_cut_off_is_named(tmp_path):
    """Keras alone says that the input ran out of data, and trains nothing."""
    _, (program,) = losses(tmp_path, "none")
    os.truncate(tmp_path / program, 10_000)
    with pytest.raises(RuntimeError, match="persistent_cache_directory is cut off: delete it"):
        losses(tmp_path, "none")


def test_a_changed_model_gets_its_own_program(tmp_path):
    changes = list(kept_programs.CHANGES)
    right, _ = losses(None, *changes)
    differ = [change for change in changes[1:] if change not in kept_programs.SAME_LOSSES]
    assert len({str(right[change]) for change in ("none", *differ)}) == 1 + len(differ)
    assert losses(tmp_path, *changes)[0] == right
    again, programs = losses(tmp_path, *reversed(changes))
    assert again == right
    # A file's name has a hash of the program's name and shapes, then one of its content
    names = {program.split("__")[1] for program in programs}
    assert len(names) < len(programs), "no program met the name of another"
