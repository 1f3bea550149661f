"""Each rule for stored notebooks can fail, and names the cell."""

import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def good():
    """A notebook that follows every rule."""
    printed = new_output("stream", name="stdout", text="1\n")
    code = new_code_cell("print(1)", id="code", execution_count=1, outputs=[printed])
    cells = [new_markdown_cell("What you will be able to do, in 20 minutes.", id="opening"), code]
    return rules.seal(rules.clean(new_notebook(cells=cells)))


def problems(notebook):
    return rules.form_problems(notebook) + rules.output_problems(notebook) + rules.source_problems(notebook)


def test_a_good_notebook_has_no_problems():
    assert problems(good()) == []


@pytest.mark.parametrize(
    "change, expected",
    [
        (
            {"source": "print(2)"},
            "since it was rendered: run `make render`, or `git checkout notebooks` to restore those shipped",
        ),
        ({"execution_count": None}, "cell 1 was not run"),
        ({"id": "opening"}, "cell 1 has no unique id"),
        ({"metadata": {"execution": {"started": "now"}}}, "metadata or widget views that rendering removes"),
        ({"metadata": {"tags": ["exercise", "slow"]}}, "cell 1 has the tags or markers slow;"),
        ({"source": "# NBVAL_SKIP\n1"}, "cell 1 has the tags or markers NBVAL_SKIP;"),
        ({"source": "%pip install numpy"}, "cell 1 installs packages"),
        ({"source": "open('/tmp/x')"}, "cell 1 names an absolute path"),
        ({"outputs": [new_output("stream", name="stderr", text="x")]}, "cell 1 wrote to stderr"),
        ({"outputs": [new_output("error", ename="ValueError", evalue="", traceback=[])]}, "cell 1 ended in an error"),
    ],
)
def test_a_cell_that_breaks_a_rule_is_named(change, expected):
    notebook = good()
    notebook.cells[1].update(rules.nbformat.from_dict(change))
    assert any(expected in problem for problem in problems(notebook)), problems(notebook)


@pytest.mark.parametrize(
    "shown, expected",
    [
        ("open /home/ann/x", "cell 1 shows a path: 'open /home/ann/x'"),
        ("<f at 0x7f3e5d1c>", "cell 1 shows an address"),
        ("it ran on host7", "cell 1 shows this machine's host7"),
        ("worker 1 | WARNING:tensorflow:AutoGraph could not transform", "cell 1 shows a warning"),
        ("W0000 00:00:1763790871.300000    4242 device.cc:1] no device", "cell 1 shows a warning"),
        ("2026-11-22 07:00:00.000000: E tensorflow/core/x.cc:1] no device", "cell 1 shows a warning"),
    ],
)
def test_what_a_reader_must_not_see_is_found_but_not_inside_a_picture(shown, expected):
    notebook = good()
    picture = {"text/html": "<img src='data:image/png;base64,AB/home/bob'>", "image/png": "/home/bob"}
    notebook.cells[1].outputs.append(new_output("display_data", data=picture))
    assert rules.output_problems(notebook) == []
    notebook.cells[1].outputs.append(new_output("display_data", data={"text/plain": shown}))
    (problem,) = rules.output_problems(notebook, private=["host7"])
    assert problem.startswith(expected)


def test_cleaning_drops_what_changes_from_run_to_run_and_keeps_the_rest():
    picture = {"image/png": "iVBORw0KGgo="}
    view = {rules.WIDGET: {"model_id": "1f"}, "text/plain": "Lab()"}
    outputs = [new_output("display_data", data=data) for data in (view, view | picture, picture)]
    kept = {"tags": ["evening"], "exercise": "a.b"}
    cell = new_code_cell("lab", outputs=outputs, metadata={**kept, "execution": {"iopub.status": "t"}})
    notebook = rules.clean(new_notebook(cells=[cell], metadata={"widgets": {"state": {}}, "toc": {}}))
    assert [sorted(output.data) for output in notebook.cells[0].outputs] == [["image/png", "text/plain"], ["image/png"]]
    assert notebook.cells[0].metadata == kept
    assert notebook.metadata == {"kernelspec": rules.KERNELSPEC, "language_info": {"name": "python"}}
    assert rules.clean(notebook) == notebook


ASK, MEASURE = 'bt.predict("speed", ..., "x")', 'bt.reveal("speed", ratio)'
ON_GPUS = 'if kind == "GPU":\n    bt.predict("speed", ..., "x")'


@pytest.mark.parametrize("ask", [ASK, ON_GPUS, 'bt.predict("speed", ...)'])
def test_a_blank_prediction_between_its_question_and_its_measurement_keeps_the_rule(ask):
    cells = ["# How fast?", 'bt.predict("other", ...)', ask, "other = 3", 'bt.reveal("other", 1)', MEASURE]
    assert rules.prediction_problems(asking(cells)) == []


def asking(sources):
    return new_notebook(cells=[(new_markdown_cell if one.startswith("#") else new_code_cell)(one) for one in sources])


@pytest.mark.parametrize(
    "sources, expected",
    [
        (["# How fast?", 'bt.predict("speed", 2, "x")', MEASURE], "cell 1 must be bt.predict"),
        (["# How fast?", 'guess = ...\nbt.predict("speed", guess, "x")', MEASURE], "cell 1 must be bt.predict"),
        (["# How fast?", f"{ASK}\n{MEASURE}"], "cell 1 must be bt.predict"),
        (["# How fast?", "ratio = 3", ASK, MEASURE], "cell 2 is not below the question about 'speed'"),
        (
            ["# How fast?", MEASURE, "# How fast was it?", ASK],
            "cell 1 reveals 'speed' before cell 3 asks for it",
        ),
        (["# How fast?", 'ledger.enter("speed", 3)', "# So?", ASK], "cell 1 reveals 'speed'"),
        (["# How fast?", ASK, 'bt.reveal("sped", 3)'], "nothing reveals 'speed'"),
    ],
)
def test_a_prediction_that_is_not_the_readers_own_is_named(sources, expected):
    problems = rules.prediction_problems(asking(sources))
    assert any(problem.startswith(expected) for problem in problems), problems
