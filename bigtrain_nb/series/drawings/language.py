"""Documents in rows, and batches that are not well shuffled."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, grid, label, name_rows, side_text

COLOURS = ("#2f7fd6", "#d4690f", "#5aa469", "#8e6bbf", "#c9a227", "#3aa6a6", "#b5576b")
"""Colors of neighboring documents differ; padding is light gray."""
PADDING = "#e6e8eb"


def rows_figure(ways) -> Figure:
    """Rows of tokens for each packing method, colored by document, with a note on the tokens lost.

    `ways`: {name: (documents, note)}; documents [rows, positions] holds document numbers, -1 for padding, and -2
    beyond the end of a shorter row.
    """
    figure, (axes,) = canvas(0.5 + 0.75 * len(ways))
    palette = ListedColormap([PADDING, *COLOURS])
    for y, (documents, _) in enumerate(ways.values()):
        colours = np.select([documents < -1, documents < 0], [-1, 0], 1 + documents % len(COLOURS))
        lines = np.repeat(colours, 4, axis=0)
        lines[3::4] = -1  # a white line below each row
        lines = np.ma.masked_less(lines, 0)
        extent = (0, documents.shape[1], y + 0.42, y - 0.42)
        axes.imshow(lines, palette, vmin=0, vmax=len(COLOURS), aspect="auto", extent=extent, interpolation="nearest")
    name_rows(axes, list(ways))
    axes.set_xlim(0, max(documents.shape[1] for documents, _ in ways.values()))
    for y, (_, words) in enumerate(ways.values()):
        side_text(axes, y, words)
    label(axes, "position in the row; a color is a document, grey is padding")
    return figure


def halves_figure(counts) -> Figure:
    """Histograms of how many elements of a batch come from the lower half, one for each way to shuffle.

    `counts`: {way: [count in each batch]}.
    """
    figure, panels = canvas(2.6, len(counts))
    most = max(max(values) for values in counts.values())
    for axes, (way, values) in zip(panels, counts.items(), strict=True):
        places = np.arange(most + 1)
        axes.bar(places, [100 * np.mean(values == place) for place in places], width=0.8, color=MEASURED)
        axes.set_title(way, color=INK, fontsize=10, loc="left")
        grid(axes, "y")
        label(axes, "indices from the lower half,\nin a batch of 32", "batches, %" if axes is panels[0] else "")
    return figure
