"""Timelines: rows of boxes on one time axis, in groups with a heading each."""

from matplotlib.patches import Rectangle

from bigtrain_nb.plots.canvas import INK, canvas, label

HEAD, ROW, FOOT = 0.42, 0.36, 0.65  # heights in inches: a group's heading, a row, the text below the axis
LETTER, EDGES = 0.0145, 0.006  # as shares of the axis: the width of a letter, and the padding of a box


def clock(groups, end, words, room=0.0):
    """Return a figure, its axes with times up to ``end``, and the y of each row: {(heading, row): y}.

    `groups`: {heading: [row, ...]}; `words`: the axis label; ``room``: inches above each row, for text.
    """
    rows = sum(map(len, groups.values()))
    figure, (axes,) = canvas(HEAD * len(groups) + (room + ROW) * rows + FOOT)
    y, places = 0.0, {}
    for head, names in groups.items():
        axes.text(0, y + 0.6 * HEAD, head, color=INK, fontsize=10, fontweight="bold", va="center")
        y += HEAD
        for name in names:
            y += room
            places[head, name] = y + ROW / 2
            y += ROW
    axes.set_xlim(0, end)
    axes.set_ylim(y + 0.05, 0.3 * HEAD)
    axes.set_yticks(list(places.values()), [name for _, name in places])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    label(axes, words)
    return figure, axes, places


def draw_box(axes, start, end, y, colour, text="", ink="white"):
    """Draw a box from ``start`` to ``end``, with its text if that fits."""
    box = Rectangle((start, y - 0.42 * ROW), end - start, 0.84 * ROW, facecolor=colour, edgecolor="white")
    axes.add_patch(box)
    if text and end - start >= (LETTER * len(text) + EDGES) * axes.get_xlim()[1]:
        axes.text((start + end) / 2, y, text, ha="center", va="center", color=ink, fontsize=9)


def say_once(axes, boxes, y):
    """Label the kinds of boxes above a row: each word once, where its first box starts.

    `boxes`: [(start, word), ...] in order of time. A word that would cover the previous one is moved after it.
    """
    said, free = set(), 0.0
    for start, word in boxes:
        if word not in said:
            said.add(word)
            start = max(start, free)
            free = start + LETTER * (len(word) + 1) * axes.get_xlim()[1]
            axes.text(start, y - 0.46 * ROW, word, color=INK, fontsize=9, va="bottom")
