"""Do the checks of exercises refuse wrong answers that nobody thought of? Change each solution a little, and check it.

python tools/wrong_answers.py                                 all exercises: about an hour on a quiet machine
python tools/wrong_answers.py measure_first cut_the_model.order     those of a module, and one exercise

One change at a time: an operator, a comparison, a number, a condition, True or False, the order of two arguments, an
argument or a call left out, a statement deleted; where these are fewer than 30, another name in place of one. Texts
are left as they are, and so is `strict=True`. A changed solution is an answer like a reader's, and must be refused.

What survives either changes nothing that a check could see, or the check has a gap. Which it is, a person decides:
tools/wrong_answers.toml says, for each change that makes no difference, why. The tool prints what survives, and
writes what it found into benchmarks/exercises.json. Ends with 1 if an exercise is below 0.95.
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
sys.path.insert(0, str(ROOT / "notebooks"))  # has the scripts that some exercises need
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
    """A solution with one change. `change` is "line: old -> new", its lines those of `ast.unparse`."""

    change: str
    source: str


def wrong_answers(solution):
    """All `WrongAnswer`s made from a function's source, each once."""
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
    """The change as one line of text: "7: old -> new"."""
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
    """Functions of (tree, node) that change the node, or put another in its place."""
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
    """Changes of a function: another of its names in place of one."""
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
    """Put a part of the node in its place."""

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
    """Put some of a statement's own statements, or none, in its place."""

    def change(tree, node):
        for holder in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                block = getattr(holder, field, None)
                if isinstance(block, list) and any(part is node for part in block):
                    left = [one for part in block for one in (keep(node) if part is node else [part])]
                    setattr(holder, field, left or ([] if field == "orelse" else [ast.Pass()]))

    return change


def made_function(solution, source, folder):
    """The function of this source, which knows what the solution's module knows. AutoGraph reads its file."""
    file = Path(folder) / f"answer_{hashlib.sha1(source.encode()).hexdigest()[:12]}.py"
    file.write_text(source)
    known = dict(vars(import_module(solution.__module__)))
    exec(compile(source, str(file), "exec"), known)
    return known[solution.__name__]


def checking(connection, folder):
    """In a process of its own: check each (exercise, source of an answer, limit) that comes, and send the status."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import bigtrain_nb as bt
    from bigtrain_nb.workbook.workbook import checked

    bt.devices()  # splits the CPU, before anything makes TensorFlow run
    while True:
        name, source, limit = connection.recv()
        exercise = dataclasses.replace(registry(name)[name], seconds=limit)
        status = "wrong"
        with contextlib.suppress(Exception):  # it cannot even be defined
            status = checked(exercise, made_function(exercise.reference, source, folder)).status
        connection.send(status)


class Child:
    """A process that checks answers, made again after one that hangs or kills it."""

    def __init__(self, folder):
        self.folder, self.process = folder, None

    def status(self, name, source, limit):
        """What the check says of an answer within so many seconds; "hung" where its process had to be ended."""
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
    """How many wrong answers of an exercise were made, and the changes that its check did not refuse.

    Raises RuntimeError if the check refuses the solution itself.
    """
    exercise = registry(name)[name]
    solution = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(exercise.reference))))
    for _ in range(2):  # the first check also starts TensorFlow
        began = time.monotonic()
        if (status := child.status(name, solution, exercise.seconds)) != "right":
            raise RuntimeError(f"{name}: the check says of the solution itself: {status}")
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
    """The exercises that these words name: of a module, or one. Raises ValueError where a word names none."""
    names = exercise_names()
    for word in words:
        if not any(word in (name, name.partition(".")[0]) for name in names):
            raise ValueError(f"{word!r} is no exercise and no module of exercises: there is {', '.join(names)}")
    return [name for name in names if not words or name in words or name.partition(".")[0] in words]


def share(name, found, reasons):
    made, survived = found[name]["made"], found[name]["survived"]
    return (made - len(survived)) / (made - len(reasons.get(name, {})))


def read():
    """What was found, and the reasons."""
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    return found, tomllib.loads(REASONS.read_text())


def run(name, child):
    """Check the wrong answers of an exercise, and note what was found."""
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
