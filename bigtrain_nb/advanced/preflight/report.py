"""The findings of `preflight` as text lines, for a terminal or a notebook."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bigtrain_nb.common.cards import Card, Shown

OK, WARNING, ERROR, SKIPPED = "ok", "warning", "error", "skipped"
_COLORS = {ERROR: "#b3261e", WARNING: "#8a5a00", OK: "#1b6e3c", SKIPPED: "#5f6368"}
"""Backgrounds of white text, readable on light and dark pages."""


@dataclass(frozen=True)
class Finding:
    """One line of a `Preflight`.

    - ``check``: the name of the check. ``verdict``: "ok", "warning", "error" or "skipped".
    - ``message``: the finding, with its numbers and meaning; or the reason for skipping.
    - ``advice``: what to do; "" if nothing.
    - ``notebook``: the number of the notebook that explains it, such as "01", or "".
    - ``spoils``: which of "step", "outputs" and "loss" later checks cannot use because of it.
    """

    check: str
    verdict: str
    message: str
    advice: str = ""
    notebook: str = ""
    spoils: Sequence[str] = ()

    def __str__(self):
        explained = f" (notebook {self.notebook})" if self.notebook else ""
        words = " ".join(filter(None, [self.message, self.advice]))
        return f"{self.verdict:7}  {self.check}: {words}{explained}"


def ok(found, notebook=""):
    return {"verdict": OK, "message": found, "notebook": notebook}


def warning(found, advice, notebook="", spoils=()):
    return {"verdict": WARNING, "message": found, "advice": advice, "notebook": notebook, "spoils": spoils}


def failure(found, advice, notebook="", spoils=()):
    return {"verdict": ERROR, "message": found, "advice": advice, "notebook": notebook, "spoils": spoils}


def worst_of(findings):
    """Return the first of the worst findings, leaving out None; None if there is none."""
    order = [ERROR, WARNING, OK]
    return min(filter(None, findings), key=lambda each: order.index(each["verdict"]), default=None)


def needs(*what):
    """Mark a check that uses "step", "outputs" or "loss" of the first batch: it is skipped if a finding spoils it."""

    def mark(check):
        check.needs = what
        return check

    return mark


class Skipped(Exception):
    """Raised by a check that does not apply to this training; the message says why."""


class NonfiniteOutputs(Skipped):
    """Raised if outputs of the first batch are NaN."""


class TrainingRaises(Exception):
    """Raised with the error message of a failing training step; `fit` would fail, too."""


@dataclass(frozen=True, repr=False)
class Preflight(Shown):
    """The result of `preflight`.

    findings: a `Finding` for each check, in their order. model: the name of the model. seconds: the duration.
    """

    findings: Sequence[Finding]
    model: str
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether there is an error. Warnings do not count."""
        return any(finding.verdict == ERROR for finding in self.findings)

    def of(self, verdict: str) -> list[Finding]:
        """Return the findings with this verdict: "ok", "warning", "error" or "skipped"."""
        return [finding for finding in self.findings if finding.verdict == verdict]

    def words(self) -> str:
        """Return the result in one sentence."""
        counts = Counter(finding.verdict for finding in self.findings)
        parts = [f"{counts[verdict]} {verdict}" for verdict in _COLORS if counts[verdict]]
        return f"Preflight of {self.model}: {', '.join(parts) or 'nothing to examine'}; {self.seconds:.0f} s."

    def _card(self):
        worst_first = [finding for verdict in _COLORS for finding in self.of(verdict)]
        text = "\n".join([self.words(), *map(str, worst_first)])
        rows = "".join(map(_row, worst_first))
        return Card(
            text, f'<p><strong>{html.escape(self.words())}</strong></p><table style="color: inherit">{rows}</table>'
        )


def _row(finding):
    cell = 'style="text-align: left; vertical-align: top; padding: 0.2em 1em 0.2em 0"'
    badge = f"background: {_COLORS[finding.verdict]}; color: white; padding: 0 0.5em; border-radius: 0.3em"
    advice = f"<br><em>{html.escape(finding.advice)}</em>" if finding.advice else ""
    explained = f" Notebook {html.escape(finding.notebook)}." if finding.notebook else ""
    return (
        f'<tr><td {cell}><span style="{badge}; white-space: nowrap">{finding.verdict}</span></td>'
        f'<th scope="row" {cell}>{html.escape(finding.check)}</th>'
        f"<td {cell}>{html.escape(finding.message)}{advice}{explained}</td></tr>"
    )
