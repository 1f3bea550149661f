"""Output of notebook cells: text in a terminal and HTML in a notebook."""

import html
from dataclasses import dataclass

_CELL = "text-align: left; vertical-align: top; padding: 0.15em 0.5em 0.15em 0"


class Shown:
    """Displays its ``_card()``, as HTML in a notebook and as text everywhere else."""

    def __repr__(self):
        return self._card().text

    def _repr_html_(self):
        return self._card().html


@dataclass(frozen=True, repr=False)
class Card(Shown):
    """Displays `html` in a notebook and `text` everywhere else."""

    text: str
    html: str

    def _card(self):
        return self


def note(kind, text):
    """Return a short message: `kind` in bold, then the text."""
    body = f": {text}" if text else ""
    return Card(kind + body, f'<p style="margin: 0.3em 0"><strong>{_escaped(kind)}</strong>{_escaped(body)}</p>')


def table(caption, head, rows, closing=""):
    """Return a table with row names in the first column and the text `closing` below. All cells are plain text.

    A cell may be a tuple of parts: a narrow page breaks lines only between them.
    """
    plain = [[cell if isinstance(cell, str) else " ".join(cell) for cell in row] for row in (head, *rows)]
    lines = [caption, *_aligned(plain), closing]
    columns = _row(head, "col")
    body = "".join(_row(row, "row") for row in rows)
    above = f'<caption style="{_CELL}">{html.escape(caption)}</caption>' if caption else ""
    below = f"<p>{_escaped(closing)}</p>" if closing else ""
    markup = f"{above}<thead>{columns}</thead><tbody>{body}</tbody>"
    return Card("\n".join(filter(None, lines)), f'<table style="color: inherit; font: inherit">{markup}</table>{below}')


def stacked(*cards):
    """Return several cards stacked as one."""
    return Card("\n\n".join(card.text for card in cards), "".join(card.html for card in cards))


def _escaped(text):
    return html.escape(text).replace("\n", "<br>")


def _row(cells, scope):
    """Return the markup of one row; ``scope`` is "col" for the header."""
    first, *others = cells
    tag, of_column = ("th", ' scope="col"') if scope == "col" else ("td", "")
    markup = _cell("th", f' scope="{scope}"', first)
    for cell in others:
        markup += _cell(tag, of_column, cell)
    return f"<tr>{markup}</tr>"


def _cell(tag, attributes, content):
    words = " ".join(map(_unbroken, content)) if isinstance(content, tuple) else _breaking(content)
    return f'<{tag}{attributes} style="{_CELL}">{words}</{tag}>'


def _breaking(words):
    """Return text that may break, even within a long identifier."""
    return html.escape(words).replace("_", "_<wbr>")


def _unbroken(words):
    return f'<span style="white-space: nowrap">{html.escape(words)}</span>'


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
