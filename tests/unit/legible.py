"""What holds for every figure of a notebook."""

from matplotlib.text import Text

from bigtrain_nb.plots import INK, figure_png, figure_svg


def check_narrow_and_legible(figure):
    """Assert that it fits a page, that no text is small, and that a page gives the ink its own colour."""
    assert figure.get_figwidth() <= 7 and figure_png(figure).startswith(b"\x89PNG")
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 9
    drawing = figure_svg(figure, "words")
    assert "currentColor" in drawing and INK not in drawing
