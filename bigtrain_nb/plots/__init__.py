"""Charts of plain data as matplotlib figures: no pyplot, legible on light and dark pages."""

# ruff: noqa: F401, for others to import
from bigtrain_nb.plots.bars import bars_figure
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, Picture, figure_png, figure_svg
from bigtrain_nb.plots.rows import comparison_figure, prediction_figure
from bigtrain_nb.plots.steps import stairs_figure, throughput_figure
