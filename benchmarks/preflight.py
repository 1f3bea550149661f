"""How many faulty and healthy trainings of tests/unit/trainings.py and more_trainings.py `bt.preflight` recognizes.

python benchmarks/preflight.py                          all of them, about an hour
python benchmarks/preflight.py rounded classes          those named
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))

import more_trainings  # noqa: E402, F401
from trainings import FAULTY, HEALTHY  # noqa: E402

import bigtrain_nb as bt  # noqa: E402
from bigtrain_nb.common.quiet import keras  # noqa: E402


def examined(build, minutes, checks):
    keras.utils.set_random_seed(1)
    model, data, *validation = build()
    start = time.monotonic()
    report = bt.preflight(model, data, validation=validation[0] if validation else None, minutes=minutes, checks=checks)
    return report, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of trainings; default: all")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--checks", nargs="+", help="groups or lines; default: all")
    chosen = parser.parse_args()
    names = chosen.names or [*FAULTY, *HEALTHY]
    seconds, right, others = [], [], []
    for name in names:
        build, cause = FAULTY.get(name) or (HEALTHY[name], None)
        report, took = examined(build, chosen.minutes, chosen.checks)
        seconds.append(took)
        wrong = [finding.check for finding in report.of("error")]
        is_right = cause in wrong if cause else not wrong
        (right if is_right else others).append(name)
        said = "; ".join(map(str, report.of("error"))) or "nothing wrong"
        looked = ", ".join(finding.check for finding in report.of("warning"))
        failed = ", ".join(str(each) for each in report.of("skipped") if "It failed" in each.message)
        kind = "faulty" if cause else "healthy"
        print(
            f"{'right' if is_right else 'OTHER'} {kind} {name} ({took:.1f} s): {said} | warning: {looked} | {failed}",
            flush=True,
        )
    faulty = [name for name in names if name in FAULTY]
    called_wrong = [name for name in others if name in HEALTHY]
    named = len([name for name in right if name in FAULTY])
    print(f"{named} of {len(faulty)} faulty named with the right cause; others: {[n for n in others if n in FAULTY]}")
    print(f"{len(called_wrong)} of {len(names) - len(faulty)} healthy with an error: {called_wrong}")
    print(f"median {sorted(seconds)[len(seconds) // 2]:.1f} s, most {max(seconds):.1f} s")


if __name__ == "__main__":
    main()
