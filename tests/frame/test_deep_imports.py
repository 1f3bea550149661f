"""Names that cells and scripts of notebooks import from inside the package, and which are thereby public.

Names that only one notebook needs are in `bigtrain_nb.series`, and can be imported freely. The rest are listed here;
the list may only get shorter: export a name from ``bt``, or move it to the series.
"""

import ast

from test_lives import NODES

DEEP = {
    "bigtrain_nb.advanced.parallel.cudnn": {"Settings", "backend_config"},
    "bigtrain_nb.advanced.shared.stacked": {"stacked_figure"},
    "bigtrain_nb.common.addresses": {"answers"},
    "bigtrain_nb.common.keras_compat": {"custom_call", "layers_within"},
    "bigtrain_nb.common.quiet": {"keras", "tf"},
    "bigtrain_nb.measure.intervals": {"mean_interval", "median_interval"},
    "bigtrain_nb.measure.results": {"Comparison"},
    "bigtrain_nb.plots": {"Picture", "bars_figure", "figure_svg", "stairs_figure"},
}


def test_no_more_is_imported_from_inside_the_package():
    found = {}
    for node in NODES:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("bigtrain_nb."):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("bigtrain_nb.") for alias in node.names)
    found = {module: names for module, names in found.items() if not module.startswith("bigtrain_nb.series")}
    assert found == DEEP, "take out of DEEP what nobody imports any more, and add nothing"
