"""``python -m bigtrain_nb.launch``: run a script in several workers here, or write the file that a cluster runs."""

import argparse
import signal
import sys

from bigtrain_nb.launch import scripts
from bigtrain_nb.launch.jobs import run_workers


def main(arguments=None):
    """Run a command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bigtrain_nb.launch", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="run | script")
    _add_run(commands)
    scripts.add_script_parser(commands)
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    chosen = parser.parse_args(given[:end])
    chosen.arguments = given[end + 1 :]
    try:
        return chosen.command(chosen)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _add_run(commands):
    parser = commands.add_parser(
        "run",
        help="start workers on this machine",
        usage="%(prog)s [settings] TRAIN.py [-- the script's own arguments]",
        description="Start workers on this machine, show what they print, end all when one fails. Exit code: the first"
        " failure's, 128 + n for signal n, 124 after the timeout.",
    )
    parser.add_argument("--workers", type=int, default=2, help="how many (default: 2)")
    parser.add_argument("--restarts", type=int, default=0, help="start all again after a failure, so many times")
    parser.add_argument("--timeout", type=float, help="end the job after so many seconds")
    parser.add_argument("--devices-per-worker", type=int, help="GPUs for each (default: all, divided evenly)")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds that the others get once one has failed")
    parser.add_argument("script", type=scripts.python_script, help="a Python script")
    parser.set_defaults(command=_run)


def _run(chosen):
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    settings = {name: value for name, value in vars(chosen).items() if name not in ("command", "script")}
    try:
        job = run_workers(chosen.script, **settings)
        job.wait()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return job.exit_code


if __name__ == "__main__":
    sys.exit(main())
