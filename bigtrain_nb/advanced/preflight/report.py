"""What `preflight` found, as lines of words: in a terminal, in a notebook, and as a page of its own."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bigtrain_nb.common.cards import Card, Shown

OK, WARNING, ERROR, SKIPPED = "ok", "warning", "error", "skipped"
_COLOURS = {ERROR: "#b3261e", WARNING: "#8a5a00", OK: "#1b6e3c", SKIPPED: "#5f6368"}
"""Behind white words, so that they are read on a light and on a dark page."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}</style>
</head><body>{body}</body></html>
"""


@dataclass(frozen=True)
class Finding:
    """One line of a `Preflight`.

    - ``check``: what was examined. ``verdict``: "ok", "warning", "error" or "skipped".
    - ``message``: what was found, with its number, and what it means; or why it was not examined.
    - ``advice``: what to do; "" where there is nothing to do.
    - ``notebook``: the number of the notebook that explains it, as "01"; "" if none does.
    """

    check: str
    verdict: str
    message: str
    advice: str = ""
    notebook: str = ""

    def __str__(self):
        explained = f" (notebook {self.notebook})" if self.notebook else ""
        words = " ".join(filter(None, [self.message, self.advice]))
        return f"{self.verdict:7}  {self.check}: {words}{explained}"


def ok(found, notebook=""):
    return {"verdict": OK, "message": found, "notebook": notebook}


def warning(found, advice, notebook=""):
    return {"verdict": WARNING, "message": found, "advice": advice, "notebook": notebook}


def failure(found, advice, notebook=""):
    return {"verdict": ERROR, "message": found, "advice": advice, "notebook": notebook}


class Skipped(Exception):
    """Raised by a check that cannot say anything of this training; the message says why."""


class TrainingRaises(Exception):
    """Raised where a step of the training raises, with the words of its error: what `fit` would do, too."""


@dataclass(frozen=True, repr=False)
class Preflight(Shown):
    """What `preflight` found.

    findings: a `Finding` for each check, in the order in which they were done. model: the name of the model.
    seconds: how long it took.
    """

    findings: Sequence[Finding]
    model: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether anything is wrong. What is only a warning does not count."""
        return any(finding.verdict == ERROR for finding in self.findings)

    def of(self, verdict: str) -> list[Finding]:
        """The findings with a verdict: "ok", "warning", "error" or "skipped"."""
        return [finding for finding in self.findings if finding.verdict == verdict]

    def html(self) -> str:
        """A whole page that needs nothing beside it and no network; it follows the reader's light or dark setting."""
        return _PAGE.format(title=html.escape(f"Preflight of {self.model}"), body=self._card().html)

    def words(self) -> str:
        """The result in one sentence."""
        counts = Counter(finding.verdict for finding in self.findings)
        parts = [f"{counts[verdict]} {verdict}" for verdict in _COLOURS if counts[verdict]]
        return f"Preflight of {self.model}: {', '.join(parts) or 'nothing to examine'}; {self.seconds:.0f} s."

    def _card(self):
        worst_first = [finding for verdict in _COLOURS for finding in self.of(verdict)]
        text = "\n".join([self.words(), *map(str, worst_first)])
        rows = "".join(map(_row, worst_first))
        return Card(
            text, f'<p><strong>{html.escape(self.words())}</strong></p><table style="color: inherit">{rows}</table>'
        )


def _row(finding):
    cell = 'style="text-align: left; vertical-align: top; padding: 0.2em 1em 0.2em 0"'
    badge = f"background: {_COLOURS[finding.verdict]}; color: white; padding: 0 0.5em; border-radius: 0.3em"
    advice = f"<br><em>{html.escape(finding.advice)}</em>" if finding.advice else ""
    explained = f" Notebook {html.escape(finding.notebook)}." if finding.notebook else ""
    return (
        f'<tr><td {cell}><span style="{badge}; white-space: nowrap">{finding.verdict}</span></td>'
        f'<th scope="row" {cell}>{html.escape(finding.check)}</th>'
        f"<td {cell}>{html.escape(finding.message)}{advice}{explained}</td></tr>"
    )
