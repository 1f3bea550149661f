"""The names that code cells define, and those that they use without defining them. Nothing is executed."""

import ast
import builtins
import symtable

from IPython.core.inputtransformer2 import TransformerManager

ALWAYS = {*dir(builtins), "display", "get_ipython", "__name__", "__file__"}
BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


def defined(cells):
    """The names that the cells define."""
    return set().union(*(found for _, statements in _code(cells) for found, _, _ in statements))


def missing(cells, known=()):
    """[(cell, names)] of the cells that use names defined neither in `known` nor in earlier cells.

    A name used in a function may be defined in a later cell, because the function may be called only then.
    """
    everything = {*ALWAYS, *known, *defined(cells)}
    known = {*ALWAYS, *known}
    found = []
    for cell, statements in _code(cells):
        needed = set()
        for leaves, at_once, later in statements:
            needed |= (at_once - known) | (later - everything)
            known |= leaves
        if needed:
            found.append((cell, sorted(needed)))
    return found


def _code(cells):
    return [(cell, _statements(cell.source)) for cell in cells if cell.cell_type == "code"]


def _statements(source):
    """For each statement, the names that it defines, that it uses immediately, and that its functions use later."""
    if source.startswith("%%"):
        return [_of_magic(source.splitlines()[0].split()[1:])]
    return [_of_statement(one) for one in ast.parse(TransformerManager().transform_cell(source)).body]


def _of_magic(words):
    """Of `%%workers 2 --give a b --take c`: the code below it runs in separate processes."""
    names = {"--give": set(), "--take": set()}
    option = None
    for word in words:
        if word in names:
            option = word
        elif option:
            names[option].add(word)
    return names["--take"], names["--give"], set()


def _of_statement(statement):
    table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    leaves = {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}
    at_once = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    if isinstance(statement, BLOCKS):
        at_once -= leaves  # a loop sets its name before it reads it
    if isinstance(statement, ast.AugAssign):
        at_once |= {one.id for one in ast.walk(statement.target) if isinstance(one, ast.Name)}
    later = set()
    scopes = list(table.get_children())
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for one in scope.get_symbols():
            if one.is_global() and one.is_referenced():
                later.add(one.get_name())
            if one.is_declared_global() and one.is_assigned():
                leaves.add(one.get_name())
    return leaves, at_once, later
