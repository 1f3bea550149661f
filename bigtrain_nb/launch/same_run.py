"""Compare what two tasks run: tasks that train together must run the same.

Workers with different learning rates or versions of a file train together without an error, but with a wrong result.
"""

import hashlib
import os
import platform
import sys
import sysconfig
from pathlib import Path

from bigtrain_nb.common.hardware import version_of
from bigtrain_nb.common.quiet import keras

PACKAGES = ["tensorflow", "keras", "keras_hub", "bigtrain_nb"]
VARIABLES = ["KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "NVIDIA_TF32_OVERRIDE"]


def describe_run(may_differ=()):
    """Return what this process runs, as {name: value}: files, arguments, versions, settings.

    Files are the script and the modules in its folder that are loaded by now. ``may_differ`` lists arguments, like
    "--log-dir", whose value may differ between tasks.

    Raises TypeError if ``may_differ`` is a string.
    """
    if isinstance(may_differ, str):
        raise TypeError(f"may_differ={may_differ!r} must be a list of arguments: [{may_differ!r}]")
    given = {name: value for name, value in arguments(sys.argv[1:]).items() if name not in may_differ}
    runs = {f"argument {name}": value for name, value in given.items()}
    runs |= {f"file {name}": hashed for name, hashed in _own_files().items()}
    runs["Python"] = ".".join(platform.python_version_tuple()[:2])
    runs |= {package: version_of(package) for package in PACKAGES}
    return runs | {variable: os.environ.get(variable) for variable in VARIABLES} | _of_keras()


def differences(other, mine):
    """Return a sentence for each difference between another task and this one, the chief.

    Files that only one of them has loaded by now do not count.
    """
    found = []
    for what in sorted({*other, *mine}):
        if what.startswith("file ") and not (what in other and what in mine):
            continue
        if other.get(what) != mine.get(what):
            found.append(f"{what} is {_shown(other.get(what))}, the chief's is {_shown(mine.get(what))}")
    return found


def arguments(words):
    """Return a command line's values by option: {"--rate": "0.1", "-v": ""} of ["--rate", "0.1", "-v"].

    Values before the first option are named by position, "1", "2", ...
    """
    values = {}
    name = None
    for place, word in enumerate(words, 1):
        if word.startswith("-") and not _is_number(word):
            name, _, value = word.partition("=")
            values.setdefault(name, []).extend([value] if value else [])
        else:
            values.setdefault(name or str(place), []).append(word)
    return {name: " ".join(some) for name, some in values.items()}


def _own_files():
    """Return a short hash of the script and of each loaded module in its folder, by relative path."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or not Path(script).is_file():
        return {}
    folder = Path(script).resolve().parent
    files = {Path(script).resolve()}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and Path(path).suffix == ".py":
            files.add(Path(path).resolve())
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    hashes = {}
    for path in files:
        is_installed = any(path.is_relative_to(each) for each in installed)
        if path.is_relative_to(folder) and not is_installed and path.is_file():
            hashes[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return hashes


def _of_keras():
    """Return the global Keras settings that affect a model."""
    return {
        "Keras' floatx": keras.config.floatx(),
        "Keras' dtype policy": keras.config.dtype_policy().name,
        "Keras' image data format": keras.config.image_data_format(),
    }


def _is_number(word):
    try:
        float(word)
    except ValueError:
        return False
    return True


def _shown(value):
    return "missing" if value is None else repr(value)
