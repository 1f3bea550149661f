"""Mutation testing of exercises: do their checks refuse slightly changed solutions?

python tools/wrong_answers.py                                 all exercises: about an hour on a quiet machine
python tools/wrong_answers.py measure_first cut_the_model.order     the exercises of a module, and one more

One change at a time: an operator, a comparison, a number, a condition, True or False, the order of two arguments, an
argument or a call omitted, a statement deleted; if these are fewer than 30, also one name replaced by another. Strings
and `strict=True` are not changed. The check must refuse each changed solution.

A surviving change either makes no observable difference, or reveals a gap in the check. A person decides which:
tools/wrong_answers.toml has the reason for each change without a difference. The tool prints the survivors and writes
its results to benchmarks/exercises.json. The exit status is 1 if an exercise is below 0.95.
"""

import ast
import contextlib
import copy
import dataclasses
import difflib
import hashlib
import importlib.util
import inspect
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import textwrap
import time
import tomllib
from importlib import import_module
from pathlib import Path

from bigtrain_nb.workbook.exercises import EXERCISES, registry

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "notebooks"))  # for the scripts that some exercises need
REASONS = ROOT / "tools" / "wrong_answers.toml"
FOUND = ROOT / "benchmarks" / "exercises.json"
ENOUGH = 0.95
FEW = 30

OTHER_OPERATORS = {
    ast.Add: [ast.Sub, ast.Mult],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div, ast.Add],
    ast.Div: [ast.Mult, ast.FloorDiv],
    ast.FloorDiv: [ast.Div, ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.MatMult: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.BitXor: [ast.BitOr, ast.Add],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
OTHER_FUNCTIONS = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin"}
DELETED = (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.Return, ast.Raise, ast.Break, ast.Continue)


@dataclasses.dataclass(frozen=True)
class WrongAnswer:
    """A solution with one change. `change` is "line: old -> new", with lines of `ast.unparse`."""

    change: str
    source: str


def wrong_answers(solution):
    """All distinct `WrongAnswer`s from a function's source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(solution)))
    original = ast.unparse(tree)
    made = {}
    for kind in (changes_of, other_names(tree)):
        if len(made) < FEW:
            for changed in changed_trees(tree, kind):
                source = ast.unparse(ast.fix_missing_locations(changed))
                if source != original and source not in made:
                    made[source] = WrongAnswer(described(original, source), source)
    return list(made.values())


def described(original, changed):
    """The change in one line: "7: old -> new"."""
    old, new = original.splitlines(), changed.splitlines()
    for kind, start, end, new_start, new_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            before = " / ".join(line.strip() for line in old[start:end])
            after = " / ".join(line.strip() for line in new[new_start:new_end])
            return f"{start + 1}: {before} -> {after or '(deleted)'}"
    raise ValueError("nothing was changed")


def changed_trees(tree, changes_of):
    """Copies of a tree with one change each."""
    for number, node in enumerate(ast.walk(tree)):
        for change in changes_of(node):
            other = copy.deepcopy(tree)
            target = next(node for index, node in enumerate(ast.walk(other)) if index == number)
            change(other, target)
            yield other


def changes_of(node):
    """Functions of (tree, node) that change or replace the node."""
    match node:
        case ast.Compare(ops=[operator]):
            yield from [_set("ops", [other()]) for other in OTHER_OPERATORS[type(operator)]]
        case ast.BoolOp(values=values):
            yield _set("op", OTHER_OPERATORS[type(node.op)][0]())
            yield from [_instead(lambda node, index=index: node.values[index]) for index in range(len(values))]
        case ast.BinOp():
            yield from [_set("op", other()) for other in OTHER_OPERATORS[type(node.op)]]
            yield _instead(lambda node: node.left)
            yield _instead(lambda node: node.right)
        case ast.AugAssign():
            yield from [_set("op", other()) for other in OTHER_OPERATORS[type(node.op)]]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield _instead(lambda node: node.operand)
        case ast.Constant(value=bool(value)):
            yield _set("value", not value)
        case ast.Constant(value=int(value)):
            yield _set("value", value + 1)
            yield _set("value", value - 1)
        case ast.Constant(value=float(value)):
            yield _set("value", value * 2 or 1.0)
            yield _set("value", value / 2 or -1.0)
        case ast.Call():
            yield from _changes_of_a_call(node)
        case ast.If() | ast.IfExp():
            yield _set("test", ast.Constant(True))
            yield _set("test", ast.Constant(False))
        case ast.Slice():
            yield from [_set(end, None) for end in ("lower", "upper", "step") if getattr(node, end)]
        case ast.With():
            yield _deleted(keep=lambda node: node.body)
    if isinstance(node, DELETED):
        yield _deleted(keep=lambda node: [])


def other_names(tree):
    """Changes of a function that replace one of its names by another."""
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}

    def changes_of(node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in own:
            yield from [_set("id", other) for other in sorted(own - {node.id})]

    return changes_of


def _changes_of_a_call(node):
    plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if len(plain) == 1:
        yield _instead(lambda node: node.args[0])
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if len(plain) >= 2 and name not in ("min", "max"):
        yield lambda tree, node: node.args.insert(0, node.args.pop(1))
    if name in OTHER_FUNCTIONS:
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield lambda tree, node: setattr(node.func, field, OTHER_FUNCTIONS[name])
    for index, keyword in enumerate(node.keywords):
        if keyword.arg != "strict":
            yield lambda tree, node, index=index: node.keywords.pop(index)


def _set(field, other):
    return lambda tree, node: setattr(node, field, other)


def _instead(choose):
    """Replace the node by a part of it."""

    def change(tree, node):
        chosen = choose(node)
        for holder in ast.walk(tree):
            for field, value in ast.iter_fields(holder):
                if value is node:
                    setattr(holder, field, chosen)
                elif isinstance(value, list) and any(part is node for part in value):
                    setattr(holder, field, [chosen if part is node else part for part in value])

    return change


def _deleted(keep):
    """Replace a statement by some of its inner statements, or by none."""

    def change(tree, node):
        for holder in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(holder, field, None)
                if isinstance(block, list) and any(part is node for part in block):
                    left = [one for part in block for one in (keep(node) if part is node else [part])]
                    setattr(holder, field, left or ([] if field == "orelse" else [ast.Pass()]))

    return change


def made_function(solution, source, folder):
    """The function of this source, with the globals of the solution's module. AutoGraph reads its file."""
    file = Path(folder) / f"answer_{hashlib.sha1(source.encode()).hexdigest()[:12]}.py"
    file.write_text(source)
    known = dict(vars(import_module(solution.__module__)))
    exec(compile(source, str(file), "exec"), known)
    return known[solution.__name__]


def checking(connection, folder):
    """In a separate process: check each received (exercise, source of an answer, limit), and send the status."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import bigtrain_nb as bt
    from bigtrain_nb.workbook.workbook import checked

    bt.devices()  # splits the CPU before TensorFlow initializes
    while True:
        name, source, limit = connection.recv()
        exercise = dataclasses.replace(registry(name)[name], seconds=limit)
        status = "wrong"
        with contextlib.suppress(Exception):  # defining it fails
            status = checked(exercise, made_function(exercise.reference, source, folder)).status
        connection.send(status)


class Child:
    """A process that checks answers, restarted after an answer that hangs or kills it."""

    def __init__(self, folder):
        self.folder, self.process = folder, None

    def status(self, name, source, limit):
        """The status of an answer within ``limit`` seconds; "hung" if its process had to be ended."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, other = context.Pipe()
            self.process = context.Process(target=checking, args=(other, self.folder))
            self.process.start()
            other.close()
        self.connection.send((name, source, limit))
        try:
            if self.connection.poll(limit + 120):
                return self.connection.recv()
        except EOFError:
            pass
        self.stop()
        return "hung"

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def survivors(name, child):
    """The number of wrong answers made for an exercise, and the changes that its check did not refuse.

    Raises RuntimeError if the check refuses the solution itself.
    """
    exercise = registry(name)[name]
    solution = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(exercise.reference))))
    for _ in range(2):  # the first check also starts TensorFlow
        began = time.monotonic()
        if (status := child.status(name, solution, exercise.seconds)) != "right":
            raise RuntimeError(f"{name}: the check rejects the solution itself: {status}")
    limit = min(exercise.seconds, 5 + 10 * (time.monotonic() - began))
    answers = wrong_answers(exercise.reference)
    survived = [one.change for one in answers if child.status(name, one.source, limit) not in ("wrong", "hung")]
    return len(answers), survived


def exercise_names():
    """All exercises, in the order of their modules' names."""
    (folder,) = importlib.util.find_spec(EXERCISES).submodule_search_locations
    modules = sorted(path.stem for path in Path(folder).glob("[!_]*.py"))
    return [name for module in modules for name in registry(module)]


def chosen(words):
    """The exercises named by the words: a module or one exercise each. Raises ValueError for a word that names none."""
    names = exercise_names()
    for word in words:
        if not any(word in (name, name.partition(".")[0]) for name in names):
            raise ValueError(f"{word!r} is neither an exercise nor a module of exercises; known: {', '.join(names)}")
    return [name for name in names if not words or name in words or name.partition(".")[0] in words]


def share(name, found, reasons):
    made, survived = found[name]["made"], found[name]["survived"]
    return (made - len(survived)) / (made - len(reasons.get(name, {})))


def read():
    """The stored results, and the reasons."""
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    return found, tomllib.loads(REASONS.read_text())


def run(name, child):
    """Check the wrong answers of an exercise, and record the results."""
    began = time.monotonic()
    made, survived = survivors(name, child)
    found, reasons = read()
    found[name] = {"made": made, "survived": survived}
    FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {made - len(survived)} of {made} refused in {time.monotonic() - began:.0f} s", flush=True)
    for change in survived:
        note = " (no difference)" if change in reasons.get(name, {}) else ""
        print(f"    {change}{note}", flush=True)


def main(words):
    with tempfile.TemporaryDirectory() as folder:
        for _, names in itertools.groupby(chosen(words), lambda name: name.partition(".")[0]):
            child = Child(folder)
            try:
                for name in names:
                    run(name, child)
            finally:
                child.stop()
    found, reasons = read()
    below = [name for name in found if share(name, found, reasons) < ENOUGH]
    print(f"below {ENOUGH}: {', '.join(below) or 'none'}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
