"""Results drawn as matplotlib figures: pure functions, no pyplot, legible on a light and on a dark page."""

from bigtrain_nb.figures.canvas import INK, MEASURED, PREDICTED, figure_png, figure_svg
from bigtrain_nb.figures.rates import comparison_figure, prediction_figure, throughput_figure

__all__ = [
    "INK",
    "MEASURED",
    "PREDICTED",
    "comparison_figure",
    "figure_png",
    "figure_svg",
    "prediction_figure",
    "throughput_figure",
]
