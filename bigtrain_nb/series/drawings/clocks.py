"""Who does what from when to when: rows of boxes on one clock, in groups that each have a line of words above them."""

from matplotlib.patches import Rectangle

from bigtrain_nb.plots.canvas import INK, canvas, label

HEAD, ROW, FOOT = 0.42, 0.36, 0.65  # inches of a group's line of words, of a row, of what stands below the clock
LETTER, EDGES = 0.0145, 0.006  # of the clock: the width of a letter, and what a box needs beside its text


def clock(groups, end, words, room=0.0):
    """Return a figure, its axes on a clock until ``end``, and the y of each row: {(group, row): y}.

    `groups`: {line of words: [row, ...]}; `words` stand below the clock; ``room``: inches above each row, for words.
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
    """Draw what goes on from ``start`` to ``end``, with its text if it has room for one."""
    box = Rectangle((start, y - 0.42 * ROW), end - start, 0.84 * ROW, facecolor=colour, edgecolor="white")
    axes.add_patch(box)
    if text and end - start >= (LETTER * len(text) + EDGES) * axes.get_xlim()[1]:
        axes.text((start + end) / 2, y, text, ha="center", va="center", color=ink, fontsize=9)


def say_once(axes, boxes, y):
    """Write above a row what its boxes are, each word where the first of them starts.

    `boxes`: [(start, word), ...] in the order of the clock. A word that would cover the one before stands after it.
    """
    said, free = set(), 0.0
    for start, word in boxes:
        if word not in said:
            said.add(word)
            start = max(start, free)
            free = start + LETTER * (len(word) + 1) * axes.get_xlim()[1]
            axes.text(start, y - 0.46 * ROW, word, color=INK, fontsize=9, va="bottom")
