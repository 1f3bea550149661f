"""A reader's copies of the notebooks over several versions: nothing is lost, and all that is new comes."""

import copy
import json
import random

import pytest

from bigtrain_nb.unpack import main
from bigtrain_nb.workbook import copies, merge, record
from bigtrain_nb.workbook.predictions import Prediction


def cell(name, source, kind="code", **metadata):
    made = {"cell_type": kind, "id": name, "metadata": metadata, "source": source}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def ids(cells):
    return [one["id"] for one in cells]


def sources(cells):
    return [one["source"] for one in cells]


BASE = [
    cell("title", "# Title", "markdown"),
    cell("ask", 'bt.predict("speedup", ..., "x")'),
    cell("measure", 'bt.reveal("speedup", measured)'),
    cell("task", "def rate():\n    return ...", exercise="a.rate"),
    cell("end", "bt.score()"),
]


def with_answers():
    mine = copy.deepcopy(BASE)
    mine[1]["source"] = 'bt.predict("speedup", 3, "x")'
    mine[3]["source"] = "def rate():\n    return 7"
    mine[2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["3x"]}]
    mine.insert(3, cell("own", "my_own_look(measured)"))
    return mine


def test_what_neither_changed_changes_nothing():
    mine = with_answers()
    cells, said = merge.merge(BASE, mine, copy.deepcopy(BASE))
    assert cells == mine and said == []


def test_new_and_changed_cells_come_and_answers_stay():
    new = copy.deepcopy(BASE)
    new[0]["source"] = "# Better title"
    new[2]["source"] += "  # anew"
    new.insert(4, cell("more", "more()"))
    cells, said = merge.merge(BASE, with_answers(), new)
    assert ids(cells) == ["title", "ask", "measure", "own", "task", "more", "end"] and said == []
    assert cells[0]["source"] == "# Better title"
    assert '"speedup", 3' in cells[1]["source"] and "return 7" in cells[4]["source"]
    assert cells[2]["outputs"] == [], "the output is not of this code"


def test_outputs_stay_where_the_code_did():
    new = copy.deepcopy(BASE)
    new[0]["source"] = "# Better title"
    cells, _ = merge.merge(BASE, with_answers(), new)
    assert cells[2]["outputs"][0]["text"] == ["3x"]


def test_a_cell_that_both_changed_stands_above_the_new_one_which_is_replaced_by_a_newer_one():
    mine = with_answers()
    second = copy.deepcopy(BASE)
    second[3]["source"] = "def rate(seconds):\n    return ..."
    cells, said = merge.merge(BASE, mine, second)
    assert said == ["you and the new version changed the cell 'def rate():': yours stands, the new one below it"]
    own, notice = cells[4:6]
    assert own["source"] == "def rate():\n    return 7" and own["metadata"] == {"exercise": "a.rate"}
    assert notice["cell_type"] == "raw" and notice["source"].endswith("\n\ndef rate(seconds):\n    return ...")
    assert merge.merge(second, cells, second) == (cells, [])

    third = copy.deepcopy(second)
    third[3]["source"] = "def rate(hours):\n    return ..."
    later, _ = merge.merge(second, copy.deepcopy(cells), third)
    assert [one["source"][-31:] for one in later if one["cell_type"] == "raw"] == [
        "def rate(hours):\n    return ..."[-31:]
    ]
    cells[5]["source"] += "\nmy remark"
    later, _ = merge.merge(second, cells, third)
    assert sum(one["cell_type"] == "raw" for one in later) == 2, "one that the reader wrote in is kept"


def test_a_deleted_cell_stays_away_and_one_that_the_author_deleted_is_kept_if_it_was_changed():
    mine = [one for one in with_answers() if one["id"] != "end"]
    new = [one for one in copy.deepcopy(BASE) if one["id"] not in ("title", "task")]
    new[2]["source"] = "bt.score(series=True)"
    cells, said = merge.merge(BASE, mine, new)
    assert ids(cells) == ["ask", "measure", "own", "task"]
    assert [sentence.split(" is ")[0] for sentence in said] == [
        "the cell 'bt.score(series=True)'",
        "the cell 'def rate():'",
    ]


def test_moved_cells_stand_as_in_the_new_version_and_own_ones_follow():
    mine = with_answers()
    mine.insert(0, mine.pop(5))
    new = [BASE[place] for place in (3, 4, 0, 1, 2)]
    cells, said = merge.merge(BASE, mine, copy.deepcopy(new))
    assert ids(cells) == ["task", "end", "title", "ask", "measure", "own"]
    assert said == ["the cells that you moved stand where the new version has them"]


@pytest.mark.parametrize("names", [["x1", "x2", "x3", "x4", "x5", "x6"], [None] * 6, ["end"] * 6])
def test_ids_that_a_tool_has_rewritten_are_found_by_what_is_in_the_cells(names):
    mine = with_answers()
    mine[5]["source"] = "bt.score( )"
    for one, name in zip(mine, names, strict=True):
        one["id"] = name
        if name is None:
            del one["id"]
    new = copy.deepcopy(BASE)
    new[0]["source"] = "# Better title"
    cells, _ = merge.merge(BASE, mine, new)
    found = sources(cells)
    assert found[:1] == ["# Better title"] and len(set(ids(cells))) == len(cells)
    for answer in (
        'bt.predict("speedup", 3, "x")',
        "def rate():\n    return 7",
        "my_own_look(measured)",
        "bt.score( )",
    ):
        assert found.count(answer) == 1


class TestVersions:
    """Random readers and authors: an author of three versions, a reader who writes before each."""

    def author_changes(self, cells, luck):
        for one in luck.sample(cells, 8):
            one["source"] += f"\n# version {luck.random()}"
        for _ in range(3):
            cells.remove(luck.choice(cells))
        for _ in range(4):
            name = f"added-{luck.random()}"
            cells.insert(luck.randrange(len(cells)), cell(name, f"added({name!r})"))
        start = luck.randrange(len(cells) - 5)
        block, cells[start : start + 5] = cells[start : start + 5], []
        place = luck.randrange(len(cells))
        cells[place:place] = block

    def reader_writes(self, cells, luck, written):
        for one in luck.sample([one for one in cells if one["cell_type"] == "code"], 20):
            answer = f"answer {luck.random()}"
            one["source"] += f"\n# {answer}"
            written.append(answer)
        for _ in range(5):
            answer = f"own {luck.random()}"
            cells.insert(luck.randrange(len(cells)), cell(f"mine-{luck.random()}", answer))
            written.append(answer)

    @pytest.mark.parametrize("seed", range(20))
    def test_twenty_answers_and_five_own_cells_are_there_after_each_of_three_versions(self, seed):
        luck = random.Random(seed)
        base = [cell(f"cell-{number}", f"line {number}\nand {luck.random()}") for number in range(60)]
        mine, written = copy.deepcopy(base), []
        for _ in range(3):
            self.reader_writes(mine, luck, written)
            deleted = luck.choice([one for one in mine if one["id"] in ids(base) and one in base])
            mine.remove(deleted)
            new = copy.deepcopy(base)
            self.author_changes(new, luck)
            cells, _ = merge.merge(base, mine, copy.deepcopy(new))

            text = "\n\n".join(sources(cells))
            assert all(text.count(answer) == 1 for answer in written)
            assert len(set(ids(cells))) == len(cells)
            assert deleted["id"] not in ids(cells)
            unknown = set(ids(base)) | set(ids(mine)) | {deleted["id"]}
            added = [one for one in new if one["id"] not in unknown]
            assert all(one in cells for one in added)
            present = set(ids(cells))
            assert [name for name in ids(cells) if name in ids(new)] == [name for name in ids(new) if name in present]
            assert merge.merge(new, cells, copy.deepcopy(new)) == (cells, [])
            base, mine = new, cells


def notebook_of(cells):
    lines = [one | {"source": one["source"].splitlines(keepends=True)} for one in cells]
    metadata = {"bigtrain": {"rendered": "seal"}, "kernelspec": {"name": "python3"}}
    return {"cells": lines, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder with a notebook, in which we are; write another version of it by its cells."""
    monkeypatch.chdir(tmp_path)

    def ship(cells):
        (tmp_path / "00-first.ipynb").write_text(json.dumps(notebook_of(cells)))

    shown = copy.deepcopy(BASE)
    shown[2] |= {"outputs": [{"output_type": "stream", "name": "stdout", "text": ["author's"]}], "execution_count": 3}
    ship(shown)
    return ship


def write_answers(path):
    notebook = copies.read(path)
    notebook["cells"] = with_answers()
    path.write_text(json.dumps(notebook))


class TestCopies:
    def test_a_copy_has_no_outputs_and_the_notebook_stays_as_it_is(self, shipped, tmp_path, capsys):
        before = (tmp_path / "00-first.ipynb").read_bytes()
        main(["00-first.ipynb", "my"])
        assert "my/00-first.ipynb: made" in capsys.readouterr().out
        made = copies.read("my/00-first.ipynb")
        assert made["cells"] == BASE and made["metadata"]["kernelspec"] == {"name": "python3"}
        assert "rendered" not in made["metadata"]["bigtrain"]
        assert (tmp_path / "00-first.ipynb").read_bytes() == before
        assert (tmp_path / "my" / "scripts" / "train_photos.py").exists() and not (tmp_path / "scripts").exists()

    def test_an_update_keeps_answers_says_what_it_did_and_changes_nothing_the_next_time(
        self, shipped, tmp_path, capsys
    ):
        main(["00-first.ipynb", "my"])
        mine = tmp_path / "my" / "00-first.ipynb"
        write_answers(mine)
        written = mine.read_bytes()
        capsys.readouterr()
        main(["00-first.ipynb", "my"])
        assert mine.read_bytes() == written and capsys.readouterr().out == ""

        new = copy.deepcopy(BASE)
        new[3]["source"] = "def rate(seconds):\n    return ..."
        new.append(cell("more", "more()"))
        shipped(new)
        main(["00-first.ipynb", "my"])
        told = capsys.readouterr().out
        assert "brought to the new version\n  you and the new version changed the cell 'def rate():'" in told
        assert "File > Reload Notebook from Disk" in told
        found = sources(copies.read(mine)["cells"])
        assert 'bt.predict("speedup", 3, "x")' in found and found[-1] == "more()" and len(found) == 8
        assert len(list((tmp_path / "my" / copies.BASES).glob("00-first.*.json"))) == 1

    def test_an_update_that_was_cut_short_is_done_again_without_surplus_cells(self, shipped, tmp_path, monkeypatch):
        main(["00-first.ipynb", "my"])
        mine = tmp_path / "my" / "00-first.ipynb"
        write_answers(mine)
        new = copy.deepcopy(BASE)
        new[3]["source"] = "def rate(seconds):\n    return ..."
        shipped(new)
        with monkeypatch.context() as broken:
            broken.setattr(copies, "_write_copy", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
            with pytest.raises(SystemExit, match="No space left"):
                main(["00-first.ipynb", "my"])
        main(["00-first.ipynb", "my"])
        assert len(copies.read(mine)["cells"]) == len(with_answers()) + 1

    @pytest.mark.parametrize("damaged", [b"{", b"[]", b"\xff", b'{"cells": [3]}'])
    def test_a_copy_that_cannot_be_read_is_left_and_named(self, shipped, tmp_path, capsys, damaged):
        mine = tmp_path / "my" / "00-first.ipynb"
        mine.parent.mkdir()
        mine.write_bytes(damaged)
        main(["00-first.ipynb", "my"])
        assert "my/00-first.ipynb is left as it is, for it cannot be read" in capsys.readouterr().out
        assert mine.read_bytes() == damaged

    def test_without_the_version_it_was_made_from_nothing_is_lost(self, shipped, tmp_path):
        main(["00-first.ipynb", "my"])
        mine = tmp_path / "my" / "00-first.ipynb"
        write_answers(mine)
        for base in (tmp_path / "my" / copies.BASES).glob("*.json"):
            base.unlink()
        shipped([*copy.deepcopy(BASE), cell("more", "more()")])
        main(["00-first.ipynb", "my"])
        found = sources(copies.read(mine)["cells"])
        assert all(one["source"] in found for one in [*with_answers(), cell("more", "more()")])

    def test_a_copy_made_anew_begins_a_fresh_round(self, shipped, tmp_path):
        main(["00-first.ipynb", "my"])
        folder = tmp_path / "my"
        record.write(folder, {"00-first": record.Notes({"one": [Prediction("one")]})})
        main(["00-first.ipynb", "my"])
        assert list(record.read(folder)) == ["00-first"]
        (folder / "00-first.ipynb").unlink()
        main(["00-first.ipynb", "my"])
        (name,) = record.read(folder)
        assert name.startswith("00-first (until 20")

    def test_what_cannot_be_is_said(self, shipped, tmp_path):
        with pytest.raises(SystemExit, match="00-first.ipynb is the notebook itself: name another folder"):
            main(["00-first.ipynb"])
        with pytest.raises(SystemExit, match="No such file .*missing.ipynb"):
            main(["missing.ipynb", "my"])
        (tmp_path / "bad.ipynb").write_text("{}")
        with pytest.raises(SystemExit, match="bad.ipynb is no notebook: KeyError"):
            main(["bad.ipynb", "my"])
