"""Compare what two tasks run: tasks that train together must run the same.

Workers with different learning rates or versions of a file train together without an error, but with a wrong result.
"""

import hashlib
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path

from bigtrain_nb.common.hardware import version_of
from bigtrain_nb.common.quiet import keras

PACKAGES = ["tensorflow", "keras", "keras_hub", "bigtrain_nb"]
VARIABLES = ["KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "NVIDIA_TF32_OVERRIDE"]


def describe_run():
    """Return what this process runs, as {name: value}: files, arguments, versions, settings.

    Files are the script and the modules in its folder that are loaded by now.
    """
    runs = {f"argument {name}": value for name, value in arguments(sys.argv[1:]).items()}
    runs |= {f"file {name}": hashed for name, hashed in _own_files().items()}
    runs["Python"] = ".".join(platform.python_version_tuple()[:2])
    runs |= {package: version_of(package) for package in PACKAGES}
    runs |= {variable: os.environ.get(variable) for variable in VARIABLES}
    return runs | {
        "Keras' floatx": keras.config.floatx(),
        "Keras' dtype policy": keras.config.dtype_policy().name,
        "Keras' image data format": keras.config.image_data_format(),
    }


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
        if re.match(r"-(?![\d.]|inf|nan)", word):  # not a negative number
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
    script = Path(script).resolve()
    loaded = {Path(path).resolve() for module in list(sys.modules.values()) if (path := getattr(module, "__file__", 0))}
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    hashes = {}
    for path in {script, *(path for path in loaded if path.suffix == ".py")}:
        is_installed = any(path.is_relative_to(each) for each in installed)
        if path.is_relative_to(script.parent) and not is_installed and path.is_file():
            hashes[path.relative_to(script.parent).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return hashes


def _shown(value):
    return "missing" if value is None else repr(value)
