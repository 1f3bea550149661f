"""Private names of Keras and TensorFlow, which any release may change, are used only in marked places.

These are `common/keras_compat.py`; functions and classes marked ``# private: Keras``, in the one file that needs
them; and classes that override or read private names of their base class.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "bigtrain_nb"
COMPAT = PACKAGE / "common" / "keras_compat.py"
MARK = "# private: Keras"
INSIDE = "keras.src", "tensorflow.python", "tensorflow.compiler"
FILES = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if "series" not in path.parts}
TREES = {path: ast.parse(text) for path, text in FILES.items()}
MARKED = 38
"""The number of marked functions and classes; it may only be lowered."""


def own_names():
    """Yield the names of attributes and functions that our code defines."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                yield node.attr
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value  # for `object.__setattr__`


def _is_self(node):  # or a standard module
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "os", "sys")


OURS = set(own_names())


def private_names(tree):
    """Yield (line, private name of a foreign object that it accesses)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not _is_self(node.value) and node.attr not in OURS:
                yield node.lineno, node.attr


def marked_lines(path):
    lines = FILES[path].splitlines()
    marked = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and MARK in lines[node.lineno - 1]:
            marked |= set(range(node.lineno, node.end_lineno + 1))
    return marked | {number for number, line in enumerate(lines, 1) if MARK in line}


def test_private_names_are_marked():
    found = []
    for path, tree in TREES.items():
        if path != COMPAT:
            marked = marked_lines(path)
            found += [f"{path.relative_to(PACKAGE)}:{n} {name}" for n, name in private_names(tree) if n not in marked]
    assert found == []


def test_files_that_import_from_inside_have_a_mark():
    for path, tree in TREES.items():
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        if path != COMPAT and any(module.startswith(INSIDE) for module in modules):
            assert MARK in FILES[path], path


def test_no_more_are_marked():
    assert sum(text.count(MARK) for path, text in FILES.items() if path != COMPAT) <= MARKED
