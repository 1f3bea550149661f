"""All imports, even inside functions, respect the allowed dependencies between layers and packages."""

import ast
import re
from graphlib import TopologicalSorter
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest

import bigtrain_nb
from bigtrain_nb.train.settings import REDUCTIONS

ROOT = Path(__file__).parents[2]
SHELVES = "helper", "workbook", "advanced", "series"
ROW = re.compile(rf"^\| ({'|'.join(SHELVES)}) \| `(\w+)` \| .* \|([^|]*)\|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
ROOMS = {room: set(re.findall(r"`(\w+)`", others)) for _, room, others in ROWS}  # the packages that each may use
ROOMS["unpack"] = {"common", "workbook"}
HELPER = {room for shelf, room, _ in ROWS if shelf == "helper"}
ADVANCED = {room for shelf, room, _ in ROWS if shelf == "advanced"}
MODULES = {}
for path in ROOT.glob("bigtrain_nb/**/*.py"):
    parts = path.relative_to(ROOT).with_suffix("").parts
    MODULES[".".join(parts).removesuffix(".__init__")] = path
del MODULES["bigtrain_nb.advanced"]  # only a docstring
del MODULES["bigtrain_nb"]  # names all packages, and loads them lazily
FIND_BY_NAME = {
    "bigtrain_nb.workbook.exercises",  # finds the series' exercises
    "bigtrain_nb.train.reduction",  # finds the module of a setting
}


def imported(module):
    """Return the full names of all imports in a module; the last part may be a module or a name inside one."""
    names = []
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
    return names


def used(module):
    """Return the bigtrain_nb modules that a module imports."""
    names = [name if name in MODULES else name.rpartition(".")[0] for name in imported(module)]
    return {name for name in names if name in MODULES}


def room(module):
    _, first, *rest = module.split(".")
    return rest[0] if first == "advanced" and rest else first


def test_the_helper_is_listed_first_and_each_package_once():
    assert [shelf for shelf, _ in groupby(shelf for shelf, *_ in ROWS)] == list(SHELVES)
    assert len(ROWS) + 1 == len(ROOMS)
    assert {room(module) for module in MODULES} == set(ROOMS)
    assert all(ROOMS[room] <= HELPER for room in HELPER), "the helper uses nothing above it"


def test_the_helper_names_nothing_above_it_but_the_reductions_of_settings():
    above = re.compile(rf"bigtrain_nb\.(?:advanced|{'|'.join(set(ROOMS) - HELPER - {'unpack'})})[\w.]*")
    named = set()
    for module, path in MODULES.items():
        if room(module) in HELPER:
            texts = [node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_text(node)]
            named.update(*(above.findall(text) for text in texts))
    assert named == {module for module, _ in REDUCTIONS.values()}


@pytest.mark.parametrize("setting", REDUCTIONS)
def test_a_setting_names_a_reduction_that_is_there(setting):
    module, name = REDUCTIONS[setting]
    assert room(module) == "parallel" and hasattr(import_module(module), name)


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_each_package_uses_only_what_stands_below_it():
    wrong = []
    for module in MODULES:
        allowed = ROOMS[room(module)] | {room(module)}
        wrong += [f"{module} uses {other}" for other in used(module) if room(other) not in allowed]
    assert sorted(wrong) == []


STAYS = {  # stays in the helper, though only advanced packages use it
    "custom_call": "notebook 07 has it from there",
    "fraction": "next to the other checks of settings",
    "gpu_memory": "next to the other questions to nvidia-smi",
    "is_in_own_step": "next to in_own_step, which Model enters",
    "own_weights_to_train": "next to layers_within",
    "stairs_figure": "notebook 04 has it from there",
    "full_outputs": "next to in_own_step",
    "with_mask": "next to mask_of",
}


def test_what_only_advanced_packages_use_is_not_in_the_helper():
    users = {}
    for module in MODULES:
        for name in imported(module):
            home, _, own = name.rpartition(".")
            if home in MODULES and room(home) in HELPER:
                users.setdefault((home, own), set()).add(room(module))
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
    of_modules = {  # for example cards.note
        (node.value.id, node.attr, room(module))
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    for (home, own), rooms in users.items():
        rooms |= {of for name, attribute, of in of_modules if (name, attribute) == (home.rpartition(".")[2], own)}
        if any(isinstance(node, ast.Name) and node.id == own for node in ast.walk(trees[home])):
            rooms.add(room(home))
    public = {name for names in bigtrain_nb._HOME.values() for name in names}
    above = {own for (_, own), rooms in users.items() if rooms <= ADVANCED and own not in public}
    assert above == set(STAYS)


def test_each_package_uses_what_it_may():
    used_by = {name: set() for name in ROOMS}
    for module in MODULES:
        used_by[room(module)] |= {room(other) for other in used(module)}
    unused = {name: sorted(others - used_by[name]) for name, others in ROOMS.items()}
    assert {name: others for name, others in unused.items() if others} == {}


def test_what_is_imported_is_there():
    """This includes imports inside functions, and names moved by another branch."""
    wrong = []
    for module in MODULES:
        for name in imported(module):
            home, _, own = name.rpartition(".")
            if name.startswith("bigtrain_nb.") and name not in MODULES and home != "bigtrain_nb":
                text = MODULES[home].read_text(encoding="utf-8") if home in MODULES else ""
                if not re.search(rf"\b{own}\b", text):
                    wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_no_modules_use_each_other_in_a_circle():
    TopologicalSorter({module: used(module) for module in MODULES}).prepare()


def test_imports_name_a_module_of_the_package_and_none_beside_the_notebooks():
    wrong = []
    for module in MODULES:
        of_the_series = room(module) == "series"
        for name in imported(module):
            top, _, rest = name.partition(".")
            by_name = top == "importlib" and rest in ("", "import_module") and module not in FIND_BY_NAME
            of_the_face = top == "bigtrain_nb" and "." not in rest and name not in MODULES
            beside = top == "scripts"
            if by_name or top == "" or ((of_the_face or beside) and not of_the_series):
                wrong.append(f"{module} imports {name}")
    assert wrong == []
