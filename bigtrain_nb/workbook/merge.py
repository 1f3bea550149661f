"""The cells of a reader's copy, brought to a new version of the notebook: nothing that the reader wrote is lost."""

import hashlib
import re
from collections import Counter
from difflib import SequenceMatcher

NEW_VERSION = "The new version of the cell above, in which you wrote. Delete this one when you have read it.\n\n"
REPLACES = "bigtrain_new_version_of"
"""The metadata of a cell that shows a new version: the id of the cell that it is a new version of."""

NAMED = re.compile(r"""\bbt\.(check|predict)\(\s*["']([^"']+)""")
ALIKE = 0.7
"""So much of their text two versions of a cell share at least, when all else that could tell has been lost."""


def merge(base, mine, new):
    """Return the cells that the reader gets, and sentences about what could not be merged.

    ``base``: the cells that the reader's copy was made from. ``mine``: the reader's cells now. ``new``: the cells of
    the new version. Each is a list of a notebook's cells, each source one text; ``base`` and ``new`` have no outputs.

    The order is that of the new version. A cell that the reader did not change becomes the new one; one that the reader
    changed stays, with the new version below it if the author changed it too; one that the reader deleted stays away.
    The reader's own cells follow the cell that they followed.
    """
    before = {cell["id"]: cell for cell in base}
    author = {cell["id"]: cell for cell in new}
    origins = _origins(mine, [*base, *(cell for cell in new if cell["id"] not in before)])
    reader = {origin: cell for origin, cell in zip(origins, mine, strict=True) if origin}
    said = []

    placed, notices = {}, {}  # {id: the cell that stands in its place}, {id: the new version below it}
    for name, cell in author.items():
        old = before.get(name)
        if name not in reader:
            if old is None:
                placed[name] = cell
            elif not _same(cell, old):
                said.append(f"the cell {_title(cell)} is changed, but you have deleted it: it stays away")
            continue
        own = reader[name]
        if _same(own, cell):
            placed[name] = _with_outputs(cell, own)
        elif old and _same(own, old):
            placed[name] = cell
        else:
            placed[name] = own | {"id": name}
            if old is None or not _same(cell, old):
                notices[name] = _notice(cell)
                said.append(
                    f"you and the new version changed the cell {_title(own)}: yours stands, the new one below it"
                )

    followers = {None: []}  # {id: the reader's own cells that follow it}
    last = None
    for origin, cell in zip(origins, mine, strict=True):
        if origin in placed:
            last = origin
            continue
        if origin:  # the author has deleted it
            if _same(cell, before[origin]):
                continue
            said.append(f"the cell {_title(cell)} is no more in the new version: you changed it, so it is kept")
        elif _is_old_notice(cell, notices):
            continue
        followers.setdefault(last, []).append(dict(cell))

    own_order = [origin for origin in origins if origin in placed and origin in before]
    if own_order != [name for name in before if name in own_order]:
        said.append("the cells that you moved stand where the new version has them")

    added = [*(cell for group in followers.values() for cell in group), *notices.values()]
    _give_ids(added, set(placed))
    cells = followers[None]
    for name, cell in placed.items():
        cells += [cell, *([notices[name]] if name in notices else []), *followers.get(name, [])]
    return cells, said


def _origins(mine, known):
    """For each of the reader's cells the id of the author's cell that it came from, None for one of the reader's own.

    Told by its id; where a tool has rewritten it, or given it to several cells, by an equal source, by the exercise or
    the prediction that it is about, and at last by likeness.
    """
    missing = {cell["id"]: cell for cell in known}
    origins = [None] * len(mine)
    times = Counter(cell.get("id") for cell in mine)

    def look(is_it):
        for place, cell in enumerate(mine):
            if origins[place] is None and REPLACES not in cell["metadata"]:
                found = next((name for name, other in missing.items() if is_it(cell, other)), None)
                if found:
                    origins[place] = found
                    del missing[found]

    look(lambda cell, other: _has_id_of(cell, other) and times[cell["id"]] == 1)
    look(_same)
    look(lambda cell, other: _subject(cell) and _subject(cell) == _subject(other))
    look(_has_id_of)
    if len(missing) > min(5, len(known) / 2):
        look(_is_like)
    return origins


def _has_id_of(cell, other):
    return cell.get("id") == other["id"]


def _same(cell, other):
    return (cell["cell_type"], cell["source"]) == (other["cell_type"], other["source"])


def _subject(cell):
    """The exercise or the prediction that a cell is about."""
    if "exercise" in cell["metadata"]:
        return "check", cell["metadata"]["exercise"]
    found = NAMED.search(cell["source"]) if cell["cell_type"] == "code" else None
    return found.groups() if found else None


def _is_like(cell, other):
    if cell["cell_type"] != other["cell_type"]:
        return False
    likeness = SequenceMatcher(None, cell["source"], other["source"], autojunk=False)
    return likeness.quick_ratio() > ALIKE and likeness.ratio() > ALIKE


def _with_outputs(cell, own):
    """The author's cell with the outputs that the reader got from it."""
    if cell["cell_type"] != "code":
        return cell
    return cell | {"outputs": own["outputs"], "execution_count": own["execution_count"]}


def _notice(cell):
    """A cell that shows the new version of one that the reader has changed. Its id tells whether it is untouched."""
    source = NEW_VERSION + cell["source"]
    return {"cell_type": "raw", "id": _id_for(source), "metadata": {REPLACES: cell["id"]}, "source": source}


def _is_old_notice(cell, notices):
    """Whether a cell shows a version before the one that is shown now, and the reader wrote nothing in it."""
    return cell["metadata"].get(REPLACES) in notices and cell.get("id") == _id_for(cell["source"])


def _id_for(source):
    return "new-" + hashlib.sha256(source.encode()).hexdigest()[:16]


def _give_ids(cells, used):
    """Give cells new ids that have none, or one that another cell has."""
    for cell in cells:
        name = unique = cell.get("id") or "cell"
        number = 1
        while unique in used:
            number += 1
            unique = f"{name[:56]}-{number}"
        used.add(unique)
        cell["id"] = unique


def _title(cell):
    """The first line of a cell that has words in it, as it is named to the reader."""
    lines = [line.strip() for line in cell["source"].splitlines() if line.strip()]
    line = lines[0] if lines else "without text"
    return f"'{line[:57]}...'" if len(line) > 60 else f"'{line}'"
