"""What a notebook cell shows: words in a terminal and HTML in a notebook."""

import html
from dataclasses import dataclass

_CELL = "text-align: left; vertical-align: top; padding: 0.15em 1em 0.15em 0"


class Shown:
    """Shows itself as what its ``_card()`` returns: as HTML in a notebook and as text everywhere else."""

    def __repr__(self):
        return self._card().text

    def _repr_html_(self):
        return self._card().html


@dataclass(frozen=True, repr=False)
class Card(Shown):
    """Shows itself as `html` in a notebook and as `text` everywhere else."""

    text: str
    html: str

    def _card(self):
        return self


def note(kind, text):
    """A short message that starts with a bold word or two: `kind`, then the text."""
    body = f": {text}" if text else ""
    return Card(kind + body, f'<p style="margin: 0.3em 0"><strong>{_escaped(kind)}</strong>{_escaped(body)}</p>')


def table(caption, head, rows, closing=""):
    """A table whose first column names the row; `closing` stands below it. All cells are plain text.

    A cell may be a tuple of parts: a narrow page breaks lines between them only.
    """
    lines = [caption, *_aligned([[_plain(cell) for cell in row] for row in (head, *rows)]), closing]
    columns = _row(head, "col")
    body = "".join(_row(row, "row") for row in rows)
    above = f'<caption style="{_CELL}">{html.escape(caption)}</caption>' if caption else ""
    below = f"<p>{_escaped(closing)}</p>" if closing else ""
    markup = f"{above}<thead>{columns}</thead><tbody>{body}</tbody>"
    return Card("\n".join(filter(None, lines)), f'<table style="color: inherit; font: inherit">{markup}</table>{below}')


def stacked(*cards):
    """Several cards as one, each below the one before."""
    return Card("\n\n".join(card.text for card in cards), "".join(card.html for card in cards))


def _escaped(text):
    return html.escape(text).replace("\n", "<br>")


def _row(cells, scope):
    """The markup of one row, with ``scope`` "col" of the head."""
    first, *others = cells
    tag, of_column = ("th", ' scope="col"') if scope == "col" else ("td", "")
    markup = _cell("th", f' scope="{scope}"', first)
    for cell in others:
        markup += _cell(tag, of_column, cell)
    return f"<tr>{markup}</tr>"


def _cell(tag, attributes, content):
    words = html.escape(content) if isinstance(content, str) else " ".join(map(_unbroken, content))
    if 'scope="col"' in attributes:
        words = words.replace("_", "_<wbr>")  # where the long name of a setting may break
    return f'<{tag}{attributes} style="{_CELL}">{words}</{tag}>'


def _unbroken(words):
    return f'<span style="white-space: nowrap">{html.escape(words)}</span>'


def _plain(content):
    return content if isinstance(content, str) else " ".join(content)


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
