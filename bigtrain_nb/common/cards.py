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
    """A table whose first column names the row; `closing` stands below it. All cells are plain text."""
    lines = [caption, *_aligned([head, *rows]), closing]
    markup = ['<table style="color: inherit; font: inherit">']
    if caption:
        markup.append(f'<caption style="{_CELL}">{html.escape(caption)}</caption>')
    columns = [_cell('th scope="col"', name) for name in head]
    markup += ["<thead><tr>", *columns, "</tr></thead><tbody>"]
    for first, *others in rows:
        cells = [_cell("td", content) for content in others]
        markup += ["<tr>", _cell('th scope="row"', first), *cells, "</tr>"]
    markup.append("</tbody></table>")
    if closing:
        markup.append(f"<p>{_escaped(closing)}</p>")
    return Card("\n".join(filter(None, lines)), "".join(markup))


def stacked(*cards):
    """Several cards as one, each below the one before."""
    return Card("\n\n".join(card.text for card in cards), "".join(card.html for card in cards))


def _escaped(text):
    return html.escape(text).replace("\n", "<br>")


def _cell(tag, content):
    return f'<{tag} style="{_CELL}">{html.escape(content)}</{tag.split()[0]}>'


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = map(str.ljust, row, widths)
        lines.append("  ".join(padded).rstrip())
    return lines
