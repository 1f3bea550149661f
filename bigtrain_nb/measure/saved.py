"""Measurements that were saved are read back as what they were."""

import json
import os
from pathlib import Path

from bigtrain_nb.measure.race import Race
from bigtrain_nb.measure.results import Comparison, Result


def load(path: str | os.PathLike) -> Result | Comparison | Race:
    """Read a `Result`, a `Comparison` or a `Race` that was saved.

    Raises ValueError for a file that holds none, FileNotFoundError if there is no file.

    Example::

        bt.throughput([[0] * 8] * 50, seconds=0.5).save("lists.json")
        print(bt.load("lists.json"))
    """
    try:
        fields = json.loads(Path(path).read_bytes())
        several = fields.get("results")
        results = {each["name"]: _result(each) for each in several or [fields]}
        race = {"settings": fields["settings"], "left": fields["left"]} if "settings" in fields else None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{path} holds no saved measurement: bt.load reads what .save(path) of a Result, a Comparison or a Race has"
            " written; a model is loaded by bt.load_model"
        ) from None
    if several is None:
        return results[fields["name"]]
    known = {
        "instances": tuple(fields["instances"] if "instances" in fields else _of_blocks(results)),
        "seconds": fields.get("seconds"),
        "notes": tuple(fields.get("notes", ())),
    }
    if race:
        return Race(results, **known, **race)
    return Comparison(results, fields.get("error", 0.05 / 2 ** fields.get("looks", 1)), **known)


def _of_blocks(results):
    """A file of version 0.2 has blocks in the place of rounds, each with instances of its own."""
    return range(max(len(result.rounds) for result in results.values()))


def _result(fields):
    return Result(**{**fields, "rounds": tuple(fields["rounds"])})
