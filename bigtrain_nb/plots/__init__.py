"""Results drawn as matplotlib figures: pure functions, no pyplot, legible on a light and on a dark page."""

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, Picture, figure_png, figure_svg
from bigtrain_nb.plots.rates import comparison_figure, prediction_figure, throughput_figure

__all__ = [
    "INK",
    "MEASURED",
    "PREDICTED",
    "Picture",
    "comparison_figure",
    "figure_png",
    "figure_svg",
    "prediction_figure",
    "throughput_figure",
]
