"""A reader's answers, checked again without a notebook: in a process of their own that is ended when it takes too long.

Of a notebook only the cell of an exercise is run, and what it needs of the cells above: the statements that bind the
names that it reads, and the names that those read.
"""

import ast
import contextlib
import json
import os
import signal
import subprocess
import symtable
import sys
import tempfile
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from IPython.display import display

from bigtrain_nb.train.devices import devices
from bigtrain_nb.workbook import copies, workbook

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
OWN_NAMES = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SECONDS_TO_START, SECONDS_EACH = 120, 90
"""TensorFlow loads beside other programs; a check ends by itself after `Exercise.seconds`, and says more."""


def check_again(notebook, shipped, seconds_to_start=SECONDS_TO_START, seconds_each=SECONDS_EACH):
    """Return {name: `Checked`} of all exercises of a reader's notebook, a path.

    ``shipped``: the cells that the reader's copy was made from. An exercise whose cell is as it was shipped is not
    attempted, and not run.
    """
    cells = copies.read(notebook)["cells"]
    untouched = {cell["source"] for cell in shipped}
    found, attempted = {}, {}
    for place, cell in enumerate(cells):
        name = cell["metadata"].get("exercise")
        if not name or cell["cell_type"] != "code":
            continue
        found[name] = workbook.Checked(workbook.NOT_ATTEMPTED)
        if cell["source"] not in untouched:
            try:
                attempted[name] = code_for(cells[: place + 1])
            except SyntaxError as error:
                found[name] = workbook.Checked(workbook.WRONG, f"SyntaxError: {error}")
    if attempted:
        found |= _in_a_process(Path(notebook).parent, attempted, seconds_to_start + seconds_each * len(attempted))
    return found


def code_for(cells):
    """The code of the last of some cells, and of those before it what it needs. Raises SyntaxError for the last one."""
    statements = []
    for cell in cells[:-1]:
        if cell["cell_type"] == "code":
            with contextlib.suppress(SyntaxError):
                statements += _statements(cell["source"])
    own = _statements(cells[-1]["source"])
    needed, wanted = [], set()
    for statement in reversed([*statements, *own]):
        bound = _bound_by(statement)
        if statement not in own and wanted.isdisjoint(bound):
            continue
        if isinstance(statement, DEFINITIONS) or _gives_names_only(statement):
            wanted -= bound
        wanted |= _read_by(statement)
        needed.insert(0, statement)
    return "\n".join(map(ast.unparse, needed))


def _statements(source):
    return ast.parse(TransformerManager().transform_cell(source)).body


def _read_by(statement):
    """The global names that a statement reads, also inside the functions and classes that it defines.

    From Python 3.12 on, those that a comprehension gives a value to are among them: more is run than is needed.
    """
    tables = [symtable.symtable(ast.unparse(statement), "cell", "exec")]
    names = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
                names.add(symbol.get_name())
    return names


def _bound_by(statement):
    """The names that a statement gives a value to, or to a part of what they stand for, outside of its functions."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, DEFINITIONS):
        return {statement.name}
    if isinstance(statement, OWN_NAMES):
        return set()
    bound = set()
    if isinstance(statement, ast.Name | ast.Subscript | ast.Attribute) and isinstance(statement.ctx, ast.Store):
        while isinstance(statement, ast.Subscript | ast.Attribute):
            statement = statement.value
        return {statement.id} if isinstance(statement, ast.Name) else set()
    for part in ast.iter_child_nodes(statement):
        bound |= _bound_by(part)
    return bound


def _gives_names_only(statement):
    """Whether an assignment gives names a value, whatever they stood for before."""
    return isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets)


def _in_a_process(folder, attempted, seconds):
    """Return {name: `Checked`} of {name: code}, run one after the other in the folder of the notebook."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder.resolve()), *filter(None, sys.path)])}
    environment.pop("JPY_SESSION_NAME", None)  # it is not the reader who checks
    with tempfile.TemporaryDirectory() as place:
        results = Path(place, "results")
        results.touch()
        command = [sys.executable, "-m", "bigtrain_nb.report.again", str(results)]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        try:
            process.communicate(json.dumps(attempted), timeout=seconds)
            ended = "the process in which it was checked has ended before"
        except subprocess.TimeoutExpired:
            ended = f"the exercises of this notebook did not end within {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what an answer has started ends, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    found = {name: workbook.Checked(workbook.WRONG, ended) for name in attempted}
    return found | {name: workbook.Checked(status, message) for name, status, message in told}


def main():
    """Run {name: code} of standard input, and write a line for each to the file that is named."""
    attempted = json.load(sys.stdin)
    devices()  # splits the CPU, before an answer makes TensorFlow run
    with open(sys.argv[1], "a", encoding="utf-8") as results:
        for name, code in attempted.items():
            found = _checked(name, code)
            print(json.dumps([name, found.status, found.message]), file=results, flush=True)


def _checked(name, code):
    """What the check in the code says of the exercise of that name."""
    try:
        exec(compile(code, name, "exec"), {"__name__": "__main__", "display": display})
    except Exception as error:
        return workbook.Checked(workbook.WRONG, f"{type(error).__name__}: {error}")
    unchecked = workbook.Checked(workbook.NOT_ATTEMPTED, "its cell does not call its check")
    return workbook.found_here.get(name, unchecked)


if __name__ == "__main__":
    main()
