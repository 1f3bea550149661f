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
        results = {each["name"]: Result(**each | {"rounds": tuple(each["rounds"])}) for each in several or [fields]}
        race = {"settings": fields["settings"], "left": fields["left"]} if "settings" in fields else {}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{path} holds no saved measurement: bt.load reads what .save(path) of a Result, a Comparison or a Race has"
            " written; a model is loaded by bt.load_model"
        ) from None
    if several is None:
        return results[fields["name"]]
    error = fields.get("error", 0.05 / 2 ** fields.get("looks", 1))
    blocks = range(max(len(result.rounds) for result in results.values()))  # of older files: each with new instances
    instances = tuple(fields.get("instances", blocks))
    kind = Race if race else Comparison
    return kind(results, error, instances, fields.get("seconds"), tuple(fields.get("notes", ())), **race)
