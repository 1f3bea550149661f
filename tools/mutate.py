"""Do the tests notice a small change? Change the helpers at random, one place at a time, and run the tests.

python tools/mutate.py --seed 2 --count 60                  draws from all rooms of bigtrain_nb but `series`
python tools/mutate.py --seed 2 --count 60 --under bigtrain_nb/plan bigtrain_nb/measure

Run by hand: sixty changes take about an hour on two cores. The same seed draws the same changes of the same source. All
happens in a copy of the checkout in a temporary folder. For each change a module is drawn, then a place in it: a
comparison, a sign, a number, True or False, `and`, `or`, `not`, or a statement to delete. Never changed are texts, what
a `raise` says, and constants of the form `NAME = number`, which are mostly tuning values.

The tests that could notice are six files of tests/unit and tests/workers: first one of the module's name, then those
that name the module or its public names, then those that name a module which imports it; among them, unit tests first,
then those that share rare words with the changed function. They run for --seconds in all, 120 if not said; tests of
workers need 600. A failure counts when the same test passes on the unchanged copy. With
PYTEST_ADDOPTS='-m "not more"' in the environment only the first tier is asked.

NOT NOTICED has three reasons. A test is missing; or it was not run, in another file or for want of time; or nobody can
see a difference: a speed, a tie, a default that is overwritten. Read the line, and run more files by hand if in doubt.
"""

import argparse
import ast
import copy
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/unit", "tests/workers")  # the quick ones first
ROOMS = sorted(path.parent for path in (ROOT / "bigtrain_nb").glob("*/__init__.py") if path.parent.name != "series")
HELPERS = [path.relative_to(ROOT).as_posix() for path in ROOMS]
CANDIDATES = 6
SWAPPED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass
class Mutation:
    file: str
    line: int
    old: str
    new: str
    source: str  # of the whole file, changed
    words: set  # of the function it is in


def mutations(seed, count, under, root=ROOT):
    """The changes that this seed draws: a module, all equally likely, then one of its places. The same place once only.
    Raises ValueError where nothing can be changed."""
    sources = {file: (root / file).read_text() for file in modules(under, root)}
    places = {file: list(changes(ast.parse(source))) for file, source in sources.items()}
    drawn, rng = [], random.Random(seed)
    while len(drawn) < count:
        left = sorted(file for file in places if places[file])
        if not left:
            raise ValueError(f"--count {count}: only {len(drawn)} places can be changed under {' '.join(under)}")
        file = rng.choice(left)
        node, new = places[file].pop(rng.randrange(len(places[file])))
        changed = replaced(sources[file], node, new)
        if compiles(changed):
            scope = words_around(ast.parse(sources[file]), node.lineno)
            drawn.append(Mutation(file, node.lineno, one_line(ast.unparse(node)), one_line(new), changed, scope))
    return drawn


def modules(under, root):
    """The files of Python under these paths, as paths in the checkout. Raises ValueError for a path without any."""
    found = set()
    for path in under:
        start = root / path
        files = {start} if start.is_file() else set(start.rglob("*.py"))
        if not files:
            raise ValueError(f"--under {path}: no file of Python there; paths are like bigtrain_nb/plan")
        found |= files
    return sorted(file.relative_to(root).as_posix() for file in found)


def changes(tree):
    """Pairs (node, the text that may stand in its place)."""
    for node in changeable(tree):
        other = copy.deepcopy(node)
        match node:
            case ast.Compare(ops=[operator]):
                other.ops = [SWAPPED[type(operator)]()]
            case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPPED:
                other.op = SWAPPED[type(operator)]()
            case ast.UnaryOp(op=ast.Not()):
                other = node.operand
            case ast.Constant(value=bool(value)):
                other.value = not value
            case ast.Constant(value=int(value)):
                other.value = value + 1
            case ast.Constant(value=float(value)):
                other.value = value * 2 or 1.0
            case (
                ast.Expr(value=ast.Call())
                | ast.AugAssign()
                | ast.Raise()
                | ast.If(orelse=[])
                | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            ):
                yield node, "pass"
                continue
            case _:
                continue
        yield node, f"({ast.unparse(other)})" if isinstance(node, ast.UnaryOp) else ast.unparse(other)


def changeable(node):
    """The node and all in it, without what a `raise` says, texts, and constants NAME = number."""
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        if all(isinstance(target, ast.Name) and target.id.isupper() for target in node.targets):
            return
    for child in ast.iter_child_nodes(node):
        yield from changeable(child)


def replaced(source, node, new):
    """The source with other text in the place of this node."""
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return (source.encode()[:start] + new.encode() + source.encode()[end:]).decode()


def compiles(source):
    try:
        ast.parse(source)
    except SyntaxError:  # an `elif` cannot be deleted
        return False
    return True


def one_line(text):
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def words_around(tree, line):
    """The words of the smallest function or class that has this line; of the module where none has."""
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    around = [node for node in scopes if node.lineno <= line <= node.end_lineno]
    return words(ast.unparse(min(around, key=lambda node: node.end_lineno - node.lineno, default=tree)))


def words(text):
    return set(re.findall(r"[A-Za-z_]\w+", text))


def naming(file, root):
    """A pattern for what names this module, or its public names, in a test or in another module."""
    module = file.removesuffix(".py").replace("/", ".")
    room, _, name = module.rpartition(".")
    public = [node.name for node in ast.parse((root / file).read_text()).body if hasattr(node, "name")]
    any_public = "|".join(public or [name])
    return re.compile(
        rf"\b{re.escape(module)}\b|from {re.escape(room)} import .*\b{name}\b"
        rf"|\bbt\.({any_public})\b|from bigtrain_nb import .*\b({any_public})\b"
    )


class Tests:
    """The test files of a copy of the checkout: which could notice a change, and do they?"""

    def __init__(self, copy, seconds):
        self.copy, self.seconds = copy, seconds
        self.passes_unchanged = {}  # by test: those that failed with a change
        helpers = {file.stem: file.read_text() for file in sorted((copy / "tests").rglob("*.py"))}
        self.texts = {}
        for file in sorted(file for folder in FOLDERS for file in (copy / folder).glob("test_*.py")):
            text = file.read_text()
            used = [helpers[word] for word in sorted(words(text) & set(helpers)) if not word.startswith("test_")]
            self.texts[file.relative_to(copy).as_posix()] = "\n".join([text, *used])
        self.words = {file: words(text) for file, text in self.texts.items()}
        self.files_with = Counter(word for found in self.words.values() for word in found)

    def that_could_notice(self, mutation):
        """Test files, the likeliest first."""
        named = naming(mutation.file, self.copy)
        others = [file for file in modules(["bigtrain_nb"], self.copy) if file != mutation.file]
        importers = [file for file in others if named.search((self.copy / file).read_text())]
        named_by_importers = [naming(file, self.copy) for file in importers]

        def likelihood(file):
            text = self.texts[file]
            same_name = Path(file).stem == f"test_{Path(mutation.file).stem}"
            named_here = bool(named.search(text))
            named_nearby = any(importer.search(text) for importer in named_by_importers)
            shared = mutation.words & self.words[file]
            rarity = sum(math.log(len(self.words) / self.files_with[word]) for word in shared)
            return (
                same_name,
                named_here,
                named_nearby,
                file.startswith(FOLDERS[0]),
                rarity / math.sqrt(len(self.words[file])),
            )

        return sorted(self.texts, key=likelihood, reverse=True)[:CANDIDATES]

    def notice(self, mutation):
        """Return the test that fails with the change and passes without it; "time" if it was over, "" without any."""
        changed = self.copy / mutation.file
        before = changed.read_text()
        while True:
            changed.write_text(mutation.source)
            try:
                failed = self.failed(self.that_could_notice(mutation))
            finally:
                changed.write_text(before)
            if failed in ("", "time"):
                return failed
            if failed not in self.passes_unchanged:
                self.passes_unchanged[failed] = self.failed([failed]) == ""
            if self.passes_unchanged[failed]:
                return failed
            print(f"  {failed} fails without a change: left out", flush=True)

    def failed(self, tests):
        """Run these files or tests; return the first that fails, "time" if it was over, "" without any."""
        left_out = [f"--deselect={test}" for test, passes in self.passes_unchanged.items() if not passes]
        # Not the longest first, as usual, but the likeliest.
        plugins = ["-p", "no:cacheprovider", "-p", "no:longest_first"]
        options = ["-x", "-q", "-n", "0", f"--timeout={self.seconds / 2}", *plugins, *left_out]
        # No .pyc: one is taken for current where the source has the same length and was written in the same second.
        settings = {**os.environ, "PYTHONPATH": str(self.copy), "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile("w+") as said:
            command = [sys.executable, "-m", "pytest", *options, *tests]
            pytest = subprocess.Popen(
                command, cwd=self.copy, env=settings, stdout=said, stderr=said, start_new_session=True
            )
            try:
                if pytest.wait(self.seconds) == 0:
                    return ""
            except subprocess.TimeoutExpired:
                return "time"
            finally:
                if pytest.poll() is None:
                    os.killpg(pytest.pid, signal.SIGKILL)
                    pytest.wait()
            said.seek(0)
            found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", said.read(), re.MULTILINE)
        return found[1] if found else tests[0]


def copy_checkout(folder):
    """What git tracks or would, as it stands in the checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--under", nargs="+", default=HELPERS, metavar="PATH", help="folders or files")
    parser.add_argument("--seconds", type=float, default=120, help="for the tests of one change")
    asked = parser.parse_args()
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy_checkout(Path(folder))
        tests = Tests(Path(folder), asked.seconds)
        for number, mutation in enumerate(mutations(asked.seed, asked.count, asked.under, Path(folder)), 1):
            began = time.monotonic()
            test = tests.notice(mutation)
            noticed += test not in ("", "time")
            seen = {"": "NOT NOTICED", "time": "NOT NOTICED, the time was over"}.get(test, f"noticed by {test}")
            print(f"{number:3} {mutation.file}:{mutation.line}: {mutation.old}  ->  {mutation.new}")
            print(f"    {seen} in {time.monotonic() - began:.0f} s", flush=True)
    print(f"{noticed} of {asked.count} noticed")


if __name__ == "__main__":
    main()
