"""Each rule for stored notebooks can fail, and says which cell."""
import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

PICTURE = {"image/png": "iVBORw0KGgo="}


def good():
    """A notebook that keeps every rule."""
    opening = "What you will be able to do, in 20 minutes: " + "word " * 10
    cells = [new_markdown_cell(opening, id="opening")]
    for number in range(15):
        output = new_output("stream", name="stdout", text=f"{number}\n")
        code = new_code_cell(f"n = {number}\nprint(n)", id=f"code{number}", execution_count=number + 1,
                             outputs=[output])
        cells += [code, new_markdown_cell("word " * 20, id=f"prose{number}")]
    return rules.seal(rules.clean(new_notebook(cells=cells)))


def problems(notebook):
    return rules.form_problems(notebook) + rules.output_problems(notebook) + rules.shape_problems(notebook)


def test_a_good_notebook_has_no_problems():
    assert problems(good()) == []


def output(data):
    return new_output("display_data", data=data)


def change_source(cell, source):
    cell.source = source


BAD = {
    "since it was rendered: make render, or `git checkout notebooks` for those as shipped":
        lambda nb: change_source(nb.cells[1], "n = 1"),
    "was not run": lambda nb: nb.cells[1].update(execution_count=None),
    "has no id": lambda nb: nb.cells[1].pop("id"),
    "is used twice": lambda nb: nb.cells[1].update(id="prose0"),
    "kernelspec is": lambda nb: nb.metadata.kernelspec.update(name="conda-base"),
    "metadata or widget views that": lambda nb: nb.cells[1].metadata.update(execution={"started": "now"}),
    "cell 1 wrote to stderr": lambda nb: nb.cells[1].outputs.append(
        new_output("stream", name="stderr", text="x")),
    "cell 1 ended in an error": lambda nb: nb.cells[1].outputs.append(
        new_output("error", ename="ValueError", evalue="", traceback=[])),
    "shows a path: '/home/ann/x'": lambda nb: nb.cells[1].outputs.append(output({"text/plain": "/home/ann/x"})),
    "shows a warning": lambda nb: nb.cells[1].outputs.append(output({"text/html": "<p>UserWarning: no"})),
    "shows an address": lambda nb: nb.cells[1].outputs.append(output({"text/plain": "<f at 0x7f3e5d1c>"})),
    "29 cells": lambda nb: nb.cells.__delitem__(slice(-2, None)),
    "61 cells": lambda nb: nb.cells.extend(new_markdown_cell("one word") for _ in range(30)),
    "the median code cell has 6": lambda nb: [change_source(c, "n = 1\n" * 6) for c in rules.code_cells(nb)],
    "the longest code cell has 16": lambda nb: change_source(nb.cells[1], "n = 1\n" * 16),
    "2.2 words of prose": lambda nb: [change_source(c, "few words here") for c in nb.cells[2::2]],
    "51.7 words of prose": lambda nb: [change_source(c, "word " * 102) for c in nb.cells[2::2]],
    "first cell does not say": lambda nb: change_source(nb.cells[0], "word " * 20),
    "cell 1 installs packages": lambda nb: change_source(nb.cells[1], "%pip install numpy"),
    **{f"cell 1 has the tag or marker {tag};": lambda nb, tag=tag: nb.cells[1].metadata.update(tags=["exercise", tag])
       for tag in ("timeout:1", "timeout=0", "timeout=1.5", "timeouts", "raises-exception", "skip-execution")},
    **{f"cell 1 has the tag or marker {marker};": lambda nb, marker=marker: change_source(nb.cells[1], f"# {marker}\n1")
       for marker in ("NBVAL_SKIP", "NBVAL_RAISES_EXCEPTION", "PYTEST_VALIDATE_IGNORE_OUTPUT")},
    "cell 1 names an absolute path": lambda nb: change_source(nb.cells[1], "open('/tmp/x')"),
}


@pytest.mark.parametrize("expected", BAD)
def test_each_rule_can_fail(expected):
    notebook = good()
    BAD[expected](notebook)
    assert any(expected in problem for problem in problems(notebook)), problems(notebook)


@pytest.mark.parametrize("line", [
    "WARNING:tensorflow:AutoGraph could not transform",
    "FutureWarning:\nthis will change",
    "W0000 00:00:1763790871.300000    4242 device.cc:1] no device",
    "2026-11-22 07:00:00.000000: E tensorflow/core/x.cc:1] no device",
    "Traceback (most recent call last):",
])
def test_warnings_are_found_in_the_lines_of_workers(line):
    notebook = good()
    notebook.cells[1].outputs[0].text += f"worker 1 | {line}\n"
    (problem,) = rules.output_problems(notebook)
    assert problem.startswith("cell 1 shows a warning")


def test_private_texts_are_found_but_not_inside_a_picture():
    notebook = good()
    shown = {"text/html": "<img src='data:image/png;base64,AB/home/bob'>", "image/png": "/home/bob"}
    notebook.cells[1].outputs.append(output(shown))
    assert rules.output_problems(notebook, private=["/home/bob"]) == []
    notebook.cells[1].outputs.append(output({"text/plain": "host7"}))
    assert rules.output_problems(notebook, private=["host7"]) == ["cell 1 shows this machine's host7"]


def test_cleaning_drops_what_changes_from_run_to_run_and_keeps_the_rest():
    view = {rules.WIDGET: {"model_id": "1f"}, "text/plain": "Lab()"}
    cell = new_code_cell("lab", outputs=[output(view), output(view | PICTURE), output(PICTURE)],
                         metadata={"tags": ["timeout=90"], "exercise": "a.b", "execution": {"iopub.status": "t"}})
    notebook = new_notebook(cells=[cell], metadata={"widgets": {"state": {}}, "toc": {}})
    cleaned = rules.clean(notebook)
    assert [sorted(out.data) for out in cleaned.cells[0].outputs] == [["image/png", "text/plain"], ["image/png"]]
    assert cleaned.cells[0].metadata == {"tags": ["timeout=90"], "exercise": "a.b"}
    assert cleaned.metadata == {"kernelspec": rules.KERNELSPEC, "language_info": {"name": "python"}}
    assert rules.clean(cleaned) == cleaned
    assert len(notebook.cells[0].outputs) == 3


def test_cells_without_an_id_get_the_same_one_every_time():
    def ids():
        notebook = new_notebook(cells=[new_code_cell("1", id="kept"), new_code_cell("1"), new_code_cell("1")])
        del notebook.cells[1]["id"], notebook.cells[2]["id"]
        return [cell.id for cell in rules.clean(notebook).cells]
    assert ids() == ids()
    assert ids()[0] == "kept" and len(set(ids())) == 3
