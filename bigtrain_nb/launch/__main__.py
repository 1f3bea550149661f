"""``python -m bigtrain_nb.launch``: run a script in several workers on this machine."""

import argparse
import signal
import sys
from pathlib import Path

from bigtrain_nb.launch.jobs import run_workers


def main(words):
    """Run a command line, given as a list; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bigtrain_nb.launch", description=__doc__)
    run = parser.add_subparsers(required=True, metavar="run").add_parser(
        "run",
        help="start workers on this machine",
        usage="%(prog)s [settings] TRAIN.py [-- the script's own arguments]",
        description="Start workers on this machine, print their output, stop all when one fails. Exit code: the first"
        " failure's, 128 + n for signal n, 124 after the timeout.",
    )
    run.add_argument("--workers", type=int, default=2, help="number of workers (default: 2)")
    run.add_argument("--restarts", type=int, default=0, help="restart after a failure, at most this many times")
    run.add_argument("--timeout", type=float, help="stop the job after this many seconds")
    run.add_argument("script_or_code", metavar="TRAIN.py", type=Path, help="a Python script")
    end = words.index("--") if "--" in words else len(words)
    settings = vars(parser.parse_args(words[:end]))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        job = run_workers(**settings, arguments=words[end + 1 :])
        job.wait()
    except (ValueError, OSError) as error:
        parser.error(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return job.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
