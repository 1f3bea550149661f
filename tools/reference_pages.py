"""Keep notebooks/reference current: what each public name takes, gives and raises, from the code, with an example.

python tools/reference_pages.py     writes the pages

It reads the code and imports none of it, but for the table of what exercises expect. A name's section has its call or
its fields, its docstring, its methods, and the classes that it returns; what a class shows are its properties and
methods whose return is annotated.
"""

import ast
import re
from functools import cache
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent

from bigtrain_nb import _MODULE_OF
from bigtrain_nb.workbook import expected

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks" / "reference"
PAGES = {  # file: its question, and the names that answer it
    "measure": (
        "How fast is it, and is the difference real?",
        ("throughput", "compare", "race", "Result", "Comparison", "Ratio", "load", "machine", "cores"),
    ),
    "feed": (
        "Does the data keep up?",
        (
            *("Pipeline", "diagnose", "pipeline_ceiling", "photo_crops", "image_folder", "source_text", "text_folder"),
            "TokenRows",
        ),
    ),
    "train": (
        "Train one model on whatever is there",
        ("Model", "load_model", "Resume", "PREEMPTED", "scaled_rate", "warmup_cosine", "conv_net", "gpt", "tf"),
    ),
    "cut": (
        "It does not fit: compute again, cut the model",
        ("recompute", "fuse_attention", "segment_mask", "chunk_attention", "Pipelined", "pipeline_schedule"),
    ),
    "workers": (
        "Many devices, many workers",
        ("devices", "mirrored", "strategy", "run_workers", "cluster_devices", "Coordinator", "run_data_service"),
    ),
    "plan": (
        "What will it take?",
        ("plan_step", "plan_cluster", "Transformer", "SIZES", "ACCELERATORS", "all_reduce_seconds", "peak_memory"),
    ),
    "preflight": (
        "Before a big run: is it right?",
        ("preflight",),
    ),
    "watch": (
        "Where does the time go, and where the NaN comes from",
        ("profile", "Meter", "find_overflow", "LossScaleHistory"),
    ),
    "lab": (
        "Controls, predictions, exercises",
        ("Lab", "predict", "reveal", "score", "check", "hint", "solution"),
    ),
}
PAGE_OF = {name: page for page, (_, names) in PAGES.items() for name in names}
EXAMPLE = "Example::\n\n"
OPENING = """# Reference

What each public name takes, gives and raises. In a notebook `bt.compare?` shows the same. Written from the code by
`tools/reference_pages.py`. The examples begin with

```python
import bigtrain_nb as bt
from bigtrain_nb import tf
import keras
```

| question | names |
|---|---|
"""
ALSO_OF_KERAS = ("predict",)
SHOWS_ITSELF = ("common", "plots")  # rooms whose classes are cards and pictures


def pages():
    """Return {file name: text} of all pages."""
    made = {"README.md": OPENING}
    seen = set(PAGE_OF)
    for page, (question, names) in PAGES.items():
        made["README.md"] += f"| [{question}]({page}.md) | {', '.join(_linked(name) for name in names)} |\n"
        sections = [section(name, seen) for name in names]
        made[f"{page}.md"] = f"# {question}\n\n" + "\n".join(sections)
    made["README.md"] += "| [Check a function of your own](exercises.md) | what each exercise expects |\n"
    made["exercises.md"] = expected.page()
    return made


def example_of(name):
    """Return the example in a public name's docstring, as code; "" if there is none."""
    _, _, code = _docstring(_MODULE_OF[name], name).partition(EXAMPLE)
    return dedent(code).strip()


def section(name, seen):
    """Return a public name's section; ``seen`` are names that have one, to which those of its results are added."""
    module = _MODULE_OF[name]
    parts = [f"## {name}", _code(_call(module, name)), *_described(module, name)]
    if name == "Model":
        _, _, what_goes_together = ast.get_docstring(_tree("parallel.__init__")).partition("\n\n")
        parts.append(_markdown(what_goes_together, name))
    parts.append("Example:\n\n" + _code(example_of(name)))
    parts.append(f"*Source: `{_path(module)}`*")
    queue = _results(module, name)
    while queue:
        module, name = queue.pop(0)
        if name not in seen:
            seen.add(name)
            parts += [f"### {name}", _code(_call(module, name)), *_described(module, name)]
            queue += _results(module, name)
    return "\n\n".join(filter(None, parts)) + "\n"


# The code


def _path(module):
    return f"bigtrain_nb/{module.replace('.', '/')}.py"


@cache
def _lines(module):
    return (ROOT / _path(module)).read_text(encoding="utf-8").splitlines()


@cache
def _tree(module):
    return ast.parse("\n".join(_lines(module)))


def _definition(module, name):
    """Return what defines a name in a module: a function, a class or an assignment; None for one that it imports."""
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node
    return None


def _docstring(module, name):
    """Return the docstring; of a value, the string below it; of what is imported, that of the module."""
    node = _definition(module, name)
    if node is None:
        return ast.get_docstring(_tree(module))
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return ast.get_docstring(node) or ""
    body = _tree(module).body
    return cleandoc(body[body.index(node) + 1].value.value)


def _call(module, name):
    """Return how a name is called, or its fields, or its value, as the code says it."""
    node = _definition(module, name)
    public = f"bt.{name}" if name in _MODULE_OF else name
    if node is None:
        return f"from bigtrain_nb import {name}"
    if isinstance(node, ast.FunctionDef):
        return f"{public}{_signature(module, node)}"
    if isinstance(node, ast.AnnAssign):
        return f"{public}: {ast.unparse(node.annotation)}"
    if isinstance(node, ast.Assign):
        return f"bt.{ast.unparse(node)}"
    fields = []
    for place, each in _bases(module, node):
        lines = [_lines(place)[field.lineno - 1] for field in each.body if isinstance(field, ast.AnnAssign)]
        fields += [re.sub(r" = field\(.*", "", line) for line in lines]
    if fields:
        return "\n".join([f"class {name}:", *fields])
    own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return f"{public}{_signature(module, own[0])}" if own and name in _MODULE_OF else ""


def _signature(module, node):
    """Return arguments and result of a function as they are written, without ``self``."""
    start = node.lineno - 1
    text = "\n".join(_lines(module)[start : node.body[0].lineno - 1])
    text = cleandoc(text).removeprefix(f"def {node.name}").removesuffix(":")
    return re.sub(r"^\((\s*)(?:self|cls)(?:, |,\s+|(?=\)))", r"(\1", text)


def _bases(module, node):
    """Return the class and those of the package that it derives from, as pairs with their modules, the first last."""
    found = [(module, node)]
    for base in node.bases:
        place = _place(module, base.id) if isinstance(base, ast.Name) else None
        if place:
            found = _bases(place[0], _definition(*place)) + found
    return found


def _place(module, name):
    """Return the module and the name of a class of the package that a module defines or imports; else None."""
    if isinstance(_definition(module, name), ast.ClassDef):
        return module, name
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            origin = node.module.removeprefix("bigtrain_nb.")
            return _place(origin, name) if (ROOT / _path(origin)).is_file() else None
    return None


def _members(module, name):
    """Return the public methods and properties of a class, {name: (its module, its definition)}."""
    node = _definition(module, name)
    found = {}
    if isinstance(node, ast.ClassDef):
        for place, each in _bases(module, node):
            for member in each.body:
                if isinstance(member, ast.FunctionDef) and member.returns and not member.name.startswith("_"):
                    found[member.name] = place, member
    return found


def _results(module, name):
    """Return where the classes are defined that a name returns, or that its methods or fields have."""
    node = _definition(module, name)
    annotations = [(module, getattr(node, "returns", None) or getattr(node, "annotation", None))]
    if isinstance(node, ast.ClassDef):
        annotations += [(place, member.returns) for place, member in _members(module, name).values()]
        annotations += [(module, each.annotation) for each in node.body if isinstance(each, ast.AnnAssign)]
    found = []
    for place, annotation in annotations:
        for part in ast.walk(annotation) if annotation else ():
            word = part.id if isinstance(part, ast.Name) else part.value if isinstance(part, ast.Constant) else None
            named = _place(place, word) if isinstance(word, str) else None
            if named and named[0].split(".")[0] not in SHOWS_ITSELF:
                found.append(named)
    return found


# Its words


def _described(module, name):
    """Return the docstring without its example, and the members, as Markdown."""
    words, _, _ = _docstring(module, name).partition(EXAMPLE)
    parts = [_markdown(words, name)]
    members = _members(module, name)
    if members:
        parts.append("Methods and properties:")
    for member, (place, node) in members.items():
        is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)
        kind = f": {ast.unparse(node.returns)}" if is_property else re.sub(r"\s+", " ", _signature(place, node))
        kind = kind.replace("( ", "(").replace(", )", ")")
        said = _markdown(ast.get_docstring(node) or "", name).replace("\n", "\n  ").replace("\n  \n", "\n\n")
        parts.append(f"- `{member}{kind}`" + (f"\n\n  {said}" if said else ""))
    return parts


def _markdown(words, name):
    """Return a docstring as Markdown: its own lists, blocks of code and marked words, and links to public names."""
    words = re.sub(r"^::\n\n", "", words.strip(), flags=re.MULTILINE)
    blocks = []
    for block in re.split(r"\n\n(?=\S)", words):
        first, _, code = block.partition("\n\n    ")
        blocks += [_marked(first, name), _code(dedent("    " + code))]
    return "\n\n".join(filter(None, blocks))


def _marked(text, name):
    """Return a paragraph or a list, in which only code is marked and a public name in it is a link."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            parts[index] = re.sub(r"__\w+__|<(?=\w)", lambda found: re.sub("[_<]", r"\\\g<0>", found[0]), part)
            continue
        word = part.strip("`").removeprefix("bt.").removeprefix("bigtrain_nb.")
        is_link = not part.startswith("``") and word in PAGE_OF and word not in (name, *ALSO_OF_KERAS)
        parts[index] = _linked(word) if is_link else f"`{part.strip('`')}`"
    return "".join(parts)


def _linked(name):
    return f"[`{name}`]({PAGE_OF[name]}.md#{name})"


def _code(text):
    return f"```python\n{text}\n```" if text else ""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
