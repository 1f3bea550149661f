"""The widgets that the Lab and the planner share: stock ipywidgets, alike in JupyterLab, Notebook and VS Code."""

import html

import ipywidgets as widgets

from bigtrain_nb.lab.controls import text

LOOK = {"style": {"description_width": "11em"}, "layout": {"width": "24em", "max_width": "100%"}}


def field(name, control):
    """Return a labelled widget for a control."""
    values = control.values
    common = {"description": name, "tooltip": control.allowed, **LOOK}
    if isinstance(values, range):
        limits = {"min": values[0], "max": values[-1], "step": values.step}
        return widgets.BoundedIntText(control.default, **limits, **common)
    if all(isinstance(value, bool) for value in values):
        return widgets.Checkbox(control.default, **common)
    labels = [text(value) for value in values]
    return widgets.Dropdown(options=labels, index=values.index(control.default), **common)


def chosen_in(fields, controls):
    """Return the settings that are chosen in the fields."""
    chosen = {}
    for name, one in fields.items():
        is_list = isinstance(one, widgets.Dropdown)
        chosen[name] = controls[name].values[one.index] if is_list else one.value
    return chosen


def row(*parts):
    """Return the widgets side by side, in several lines where the page is narrow."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "grid_gap": "0.3em"})


def colored(markup):
    """In the theme's text colour; where there is no such variable, in the colour of the text around it."""
    look = "color: var(--jp-ui-font-color1, currentColor); line-height: 1.5; overflow-x: auto"
    return f'<div style="{look}">{markup}</div>'


def said(words):
    """A line that a screen reader speaks whenever it changes."""
    return colored(f'<div role="status" aria-live="polite">{html.escape(words)}</div>')
