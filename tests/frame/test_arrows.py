"""The arrows between the rooms of bigtrain_nb, held in all imports, those inside functions too."""
import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bigtrain_nb"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
ROOMS = {  # which others a room may use
    "common": set(),
    "plots": {"common"},
    "measure": {"common", "plots"},
    "data": {"common", "measure"},
    "train": {"common", "plots"},
    "parallel": {"common", "train"},
    "launch": {"common", "train"},
    "plan": {"common", "plots", "train", "launch"},
    "lab": {"common", "plots", "measure", "plan"},
    "workbook": {"common", "plots", "measure"},
}


FACE = PACKAGE / "__init__.py"  # which names all rooms, and loads them when they are asked for
FINDER = PACKAGE / "workbook" / "exercises.py"  # which finds the exercises beside the notebooks


def imported(path):
    """The full names that a file imports, wherever in it; the last part may be a module or a name inside one."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names]
    return names


def used(path):
    """The modules of the package that a file imports."""
    names = [name if name in MODULES else name.rpartition(".")[0] for name in imported(path)]
    return {name for name in names if name in MODULES}


def room(module):
    return module.split(".")[1] if "." in module else "the package itself"


def test_each_room_uses_only_what_stands_below_it():
    wrong = []
    for module, path in MODULES.items():
        if path != FACE:
            own = room(module)
            wrong += [f"{module} uses {other}" for other in used(path) if room(other) not in ROOMS[own] | {own}]
    assert sorted(wrong) == []


def test_no_files_use_each_other_in_a_circle():
    TopologicalSorter({module: used(path) for module, path in MODULES.items() if path != FACE}).prepare()


def test_no_import_is_hidden_and_the_notebooks_folder_is_left_alone():
    wrong = []
    for path in FILES:
        hidden = {"importlib", "importlib.import_module"} if path not in (FACE, FINDER) else set()
        for name in imported(path):
            if name in hidden or name.startswith(("workbook", "scripts", ".")):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_no_file_is_two_rooms():
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 300} == {}
