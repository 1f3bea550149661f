"""Draw notebooks/images/map.svg: from an engineer's symptom to the notebook that helps.

python tools/series_map.py
"""

from html import escape
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
FILE = NOTEBOOKS / "images" / "map.svg"
COLUMNS = {  # symptom: from top to bottom, the question, the notebook and its subject
    "It is slow": [
        ("Is it, or was that noise?", "00 Measure first", "benchmarks"),
        ("Does it wait for data?", "01 Feed the model", "tf.data pipeline tuning"),
        ("Are batches mostly padding?", "10 Feed a language model", "tokenize and pack"),
        ("Is one device too slow?", "02 Mirror it", "MirroredStrategy"),
        ("Is one machine too slow?", "03 Many workers", "multi-worker training"),
        ("Do all wait for the slowest?", "12 Ask a server", "parameter servers"),
    ],
    "It does not fit": [
        ("Could the numbers be smaller?", "04 Half the bits", "mixed precision"),
        ("Is the batch too large?", "05 A batch that does not fit", "gradient accumulation"),
        ("Are activations too large?", "07 Pay with time", "activation checkpointing"),
        ("Weights and their state?", "08 Share it out", "ZeRO and FSDP"),
        ("Is the model itself too large?", "09 Cut the model", "model parallelism"),
    ],
    "It breaks": [
        ("Is the loss not a number?", "11 When it goes wrong", "debugging and recovery"),
        ("Does it hang?", "11 When it goes wrong", "debugging and recovery"),
        ("Did a worker die?", "03 Many workers", "multi-worker training"),
        ("How often must I save?", "11 When it goes wrong", "debugging and recovery"),
    ],
    "It works. And now?": [
        ("What will the real run cost?", "06 All of it", "plan and tune a whole run"),
        ("Which settings are best?", "13 Choose it", "hyperparameter search"),
        ("Can it be smaller?", "14 Shrink it", "quantization, LoRA"),
        ("How is it served?", "14 Hand it on", "serving"),
    ],
}
BLUE, INK, GREY = "#1f66b5", "#1d2126", "#5b636d"
COLUMN_WIDTH, ROW_HEIGHT, TOP, MARGIN = 256, 92, 60, 12


def text(x, y, words, size, color, weight="normal"):
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" font-weight="{weight}" text-anchor="middle">'
        f"{escape(words)}</text>"
    )


def row(left, top, question, notebook, subject):
    """A question, and below it a box with the notebook and its subject."""
    middle = left + COLUMN_WIDTH // 2
    box = f'<rect x="{left + 12}" y="{top + 26}" width="{COLUMN_WIDTH - 24}" height="50" rx="6" fill="{BLUE}"/>'
    name = text(middle, top + 47, notebook, 14, "white", "bold")
    return [text(middle, top + 17, question, 14, INK), box, name, text(middle, top + 66, subject, 13, "white")]


def drawing():
    """The map as SVG, on a white background, legible on light and dark pages."""
    width = COLUMN_WIDTH * len(COLUMNS) + 2 * MARGIN
    height = TOP + ROW_HEIGHT * max(map(len, COLUMNS.values())) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" rx="8" fill="white"/>',
    ]
    for number, (seen, rows) in enumerate(COLUMNS.items()):
        left = MARGIN + number * COLUMN_WIDTH
        right, middle = left + COLUMN_WIDTH - 12, left + COLUMN_WIDTH // 2
        parts.append(text(middle, 36, seen, 19, INK, "bold"))
        parts.append(f'<path d="M{left + 12} 50H{right}" stroke="{GREY}"/>')
        for place, words in enumerate(rows):
            parts += row(left, TOP + place * ROW_HEIGHT, *words)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
