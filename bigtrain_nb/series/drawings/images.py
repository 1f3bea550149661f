"""Images side by side."""

import numpy as np
from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import INK, canvas


def images_figure(images) -> Figure:
    """Draw each image under its name. `images`: {name: float values in 0..1, [height, width, 3]}."""
    figure, panels = canvas(2.6, len(images))
    for axes, (name, image) in zip(panels, images.items(), strict=True):
        axes.imshow(np.clip(image, 0, 1))
        axes.set_axis_off()
        axes.set_title(name, color=INK, fontsize=10, loc="left")
    return figure
