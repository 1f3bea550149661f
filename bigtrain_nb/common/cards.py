"""What a notebook cell shows: words in a terminal and HTML in a notebook."""

import html
from dataclasses import dataclass

_CELL = "text-align: left; vertical-align: top; padding: 0.15em 1em 0.15em 0"


@dataclass(frozen=True)
class Card:
    """Shows itself as `html` in a notebook and as `text` everywhere else."""

    text: str
    html: str

    def __str__(self):
        return self.text

    __repr__ = __str__

    def _repr_html_(self):
        return self.html


def note(kind: str, text: str) -> Card:
    """A short message that starts with a bold word or two: `kind`, then the text."""
    body = f": {text}" if text else ""
    safe = html.escape(body).replace("\n", "<br>")
    return Card(kind + body, f'<p style="margin: 0.3em 0"><strong>{html.escape(kind)}</strong>{safe}</p>')


def table(caption: str, head: list[str], rows: list[list[str]], closing: str = "") -> Card:
    """A table whose first column names the row; `closing` is a line below it. All cells are plain text."""
    lines = [caption, *_aligned([head, *rows]), *([closing] if closing else [])]
    columns = "".join(_cell('th scope="col"', name) for name in head)
    body = "".join(
        "<tr>" + _cell('th scope="row"', first) + "".join(_cell("td", cell) for cell in others) + "</tr>"
        for first, *others in rows
    )
    markup = (
        f'<table style="color: inherit; font: inherit"><caption style="{_CELL}">{html.escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    )
    return Card("\n".join(lines), markup + (f"<p>{html.escape(closing)}</p>" if closing else ""))


def stacked(*cards: Card) -> Card:
    """Several cards as one, each below the one before."""
    return Card("\n\n".join(map(str, cards)), "".join(card.html for card in cards))


def _cell(tag, content):
    return f'<{tag} style="{_CELL}">{html.escape(content)}</{tag.split()[0]}>'


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
