"""``python -m bigtrain_nb.advanced.preflight train.py:build``: check a training from a shell or in CI.

``build`` returns (model, data), or (model, data, validation). Exit codes: 0, 1 if something is wrong, 2 for an invalid
command.
"""

import argparse
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from bigtrain_nb.advanced.preflight.preflight import GROUPS, preflight


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m bigtrain_nb.advanced.preflight",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("training", metavar="TRAIN.py:build", help="a script, and a function in it without arguments")
    parser.add_argument("--minutes", type=float, default=3, help="start no check after this time (default: 3)")
    parser.add_argument("--checks", nargs="+", help=f"some of {', '.join(GROUPS)}, or single checks (default: all)")
    chosen = parser.parse_args(words)
    try:
        model, data, validation = _build(chosen.training)
    except _NoTraining as error:
        parser.error(str(error))
    except (Exception, SystemExit):  # a script may raise anything
        traceback.print_exc()
        parser.error(f"{chosen.training} raised the error above")
    try:
        report = preflight(model, data, validation=validation, minutes=chosen.minutes, checks=chosen.checks)
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))
    except Exception:  # so may a dataset, when it is read
        traceback.print_exc()
        parser.error(f"{chosen.training} raised the error above")
    print(report)
    return int(report.failed)


class _NoTraining(Exception):
    """The command line does not name a training."""


def _build(words):
    """Return what the function named by ``script.py:function`` builds: model, data and validation, None if missing."""
    script, _, function = words.rpartition(":")
    if not script:
        raise _NoTraining(f"{words!r} must be a script and a function in it, such as train.py:build")
    if not Path(script).is_file():
        raise _NoTraining(f"there is no script {script!r}")
    sys.path.insert(0, str(Path(script).parent.resolve()))  # as for a script that is run
    spec = spec_from_file_location(Path(script).stem, script)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    build = getattr(module, function, None)
    if not callable(build):
        raise _NoTraining(f"{script} has no function {function!r}")
    built = build()
    if not isinstance(built, tuple) or len(built) not in (2, 3):
        raise _NoTraining(f"{words}() must return (model, data) or (model, data, validation), not {built!r:.99}")
    return (*built, None)[:3]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
