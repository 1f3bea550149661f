"""Count words that the field does not use, and find missing terms of notebooks; tools/words.toml lists both.

    python tools/words.py     lowers the counts in tools/words.toml to the current ones

It reads Markdown, docstrings and other strings, comments and test names, but not outputs.
"""

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import notebook_rules as rules

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tools" / "words.toml"
AREAS = {  # the first match applies
    "notebooks": r"notebooks/\d\d-.*\.ipynb",
    "pages": r".*\.md",
    "exercises": r"bigtrain_nb/series/exercises/.*\.py",
    "package": r"bigtrain_nb/.*\.py",
    "tests": r"(tests/.*|conftest)\.py",
    "other": r".*\.py",
}
FOLDERS = ("bigtrain_nb", "notebooks", "tests", "tools", "benchmarks")
NOT_READ = re.compile(r".*/\..*|CHANGELOG\.md|tools/words\.py|tests/frame/test_words\.py")


def settings():
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def texts():
    """Return {path: its text to check} for all files that belong to an area."""
    files = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted(files)}
    return {name: _read(path) for name, path in paths.items() if area(name) and not NOT_READ.fullmatch(name)}


def area(path):
    return next((name for name, pattern in AREAS.items() if re.fullmatch(pattern, path)), None)


def _read(path):
    if path.suffix == ".ipynb":
        return "\n".join(cell.source for cell in rules.read(path).cells if cell.cell_type == "markdown")
    text = path.read_text(encoding="utf-8")
    return "\n".join(_of_code(text)) if path.suffix == ".py" else text


def _of_code(text):
    """Yield the strings, comments and test names of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def found(word):
    """Return {area: {path: count of this entry's pattern}}, without the paths where it is allowed."""
    counts = {name: Counter() for name in AREAS}
    pattern = re.compile(word["pattern"], re.IGNORECASE)
    for path, text in texts().items():
        if not any(re.fullmatch(allowed, path) for allowed in word.get("allowed", [])):
            counts[area(path)][path] += len(pattern.findall(re.sub(r"\s+", " ", text)))
    return counts


def missing(terms):
    """Return {number of a notebook: those of its ``terms`` missing from its Markdown}."""
    of_notebooks = {Path(path).name[:2]: text for path, text in texts().items() if area(path) == "notebooks"}
    return {
        number: [each for each in wanted if not re.search(rf"\b{re.escape(each)}", of_notebooks[number], re.IGNORECASE)]
        for number, wanted in terms.items()
    }


def lowered(text):
    """Return the text of tools/words.toml with the current counts where they are lower."""
    entries = iter(settings()["word"])

    def line(match):
        word = next(entries)
        today = {name: counts.total() for name, counts in found(word).items()}
        least = {name: min(today[name], word["at_most"].get(name, 0)) for name in AREAS}
        return "at_most = {" + ", ".join(f"{name} = {count}" for name, count in least.items() if count) + "}"

    text = re.sub(r"^at_most = \{.*\}$", line, text, flags=re.MULTILINE)
    still = missing(settings()["required"])

    def not_yet(match):
        number, terms = match[1], [each for each in tomllib.loads(match[0])[match[1]] if each in still[match[1]]]
        return f"{number} = [" + ", ".join(f'"{each}"' for each in terms) + "]"

    head, mark, tail = text.partition("[not_yet]")
    return head + mark + re.sub(r"^(\d\d) = \[.*\]$", not_yet, tail, flags=re.MULTILINE)


if __name__ == "__main__":
    FILE.write_text(lowered(FILE.read_text(encoding="utf-8")), encoding="utf-8")
