"""The widgets that the Lab and the planner share: stock ipywidgets, alike in JupyterLab, Notebook and VS Code."""

import html

import ipywidgets as widgets

from bigtrain_nb.lab.controls import text

LOOK = {"style": {"description_width": "11em"}, "layout": {"width": "24em", "max_width": "100%"}}
WRAPPED = {"flex_flow": "row wrap", "grid_gap": "0.3em"}


def fields_of(controls: dict) -> dict:
    """Return a labelled widget for each control, by its name."""
    return {name: _field(name, control) for name, control in controls.items()}


def chosen_in(fields: dict, controls: dict) -> dict:
    """Return the settings that are chosen in the fields."""
    chosen = {}
    for name, field in fields.items():
        if isinstance(field, widgets.Dropdown):
            chosen[name] = controls[name].values[field.index]
        else:
            chosen[name] = field.value
    return chosen


def row(*parts) -> widgets.HBox:
    """Return the widgets side by side, in several lines where the page is narrow."""
    return widgets.HBox(parts, layout=WRAPPED)


def colored(markup: str) -> str:
    """In the theme's text colour; where there is no such variable, in the colour of the text around it."""
    look = "color: var(--jp-ui-font-color1, currentColor); line-height: 1.5; overflow-x: auto"
    return f'<div style="{look}">{markup}</div>'


def said(words: str) -> str:
    """A line that a screen reader speaks whenever it changes."""
    return colored(f'<div role="status" aria-live="polite">{html.escape(words)}</div>')


def _field(name, control):
    values = control.values
    common = {"description": name, "tooltip": control.allowed, **LOOK}
    if isinstance(values, range):
        limits = {"min": values[0], "max": values[-1], "step": values.step}
        return widgets.BoundedIntText(control.default, **limits, **common)
    if all(isinstance(value, bool) for value in values):
        return widgets.Checkbox(control.default, **common)
    labels = [text(value) for value in values]
    return widgets.Dropdown(options=labels, index=values.index(control.default), **common)
