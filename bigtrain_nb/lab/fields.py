"""The widgets of the Lab: stock ipywidgets, alike in JupyterLab, Notebook and VS Code."""

import html

from bigtrain_nb.common.optional import needed_by
from bigtrain_nb.lab.controls import text

with needed_by("the screen of bt.Lab"):
    import ipywidgets as widgets

TOOLTIP = "tooltip" if "tooltip" in widgets.Dropdown.class_trait_names() else "description_tooltip"  # ipywidgets 7
LOOK = {"style": {"description_width": "11em"}, "layout": {"width": "24em", "max_width": "100%"}}


def field(name, control):
    """Return a labelled widget for a control: a slider for numbers that rise, a box to tick, or a list."""
    values = control.values
    common = {"description": name, TOOLTIP: control.allowed, **LOOK}
    if isinstance(values, range):
        limits = {"min": min(values), "max": max(values), "step": abs(values.step)}
        return widgets.IntSlider(control.default, **limits, **common)
    if len(values) == 2 and all(isinstance(value, bool) for value in values):
        return widgets.Checkbox(control.default, **common)
    kind = widgets.SelectionSlider if control.is_scale else widgets.Dropdown
    return kind(options=[text(value) for value in values], index=values.index(control.default), **common)


def chosen_in(fields, controls):
    """Return the settings that are chosen in the fields."""
    chosen = {}
    for name, one in fields.items():
        is_list = isinstance(one, widgets.Dropdown | widgets.SelectionSlider)
        chosen[name] = controls[name].values[one.index] if is_list else one.value
    return chosen


def row(*parts):
    """Return the widgets side by side, in several lines where the page is narrow."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "grid_gap": "0.3em"})


def keyboard_guard():
    """Return an invisible widget that keeps JupyterLab's shortcuts away from the controls in the box around it.

    Without it, a letter that is typed at a dropdown is a command for the cell: "m" makes it Markdown, and the Lab is
    gone. JupyterLab and Notebook 7 take no shortcut from an element with this attribute, which must be on the focused
    element itself. ipywidgets cannot set it; the handler of a style sheet that has loaded can. And a button that is
    switched off while it has the focus, as Stop at the end of a run, hands it to the first one that is on: Run. Where a
    page runs no such handler, nothing changes.
    """
    guard = "event.target.setAttribute('data-lm-suppress-shortcuts', '')"
    is_lost = "changes.some(change => change.target.disabled && change.target === document.activeElement)"
    hand_on = f"changes => {is_lost} && box.querySelector('button:enabled')?.focus()"
    loaded = (
        "const box = this.closest('.widget-vbox');"
        f"box.addEventListener('focusin', event => {guard});"
        f"new MutationObserver({hand_on}).observe(box, {{subtree: true, attributeFilter: ['disabled']}})"
    )
    ring = ".bigtrain-lab button:focus-visible {outline: 3px solid #d4690f; outline-offset: 2px}"
    return widgets.HTML(f'<style onload="{html.escape(loaded)}">{ring}</style>', layout={"display": "none"})


def mime_bundle(widget, words):
    """Return what a notebook shows: the widget, or the words where there are no widgets.

    ipywidgets 7 has no method for it. The format is that of Jupyter's widgets, version 2.0.
    """
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": words}


def focus(widget):
    """Let the keyboard act on a widget; ipywidgets 7 cannot."""
    if hasattr(widget, "focus"):
        widget.focus()


def colored(markup):
    """In the theme's text colour; where there is no such variable, in the colour of the text around it."""
    width = "width: 0; min-width: 100%; overflow-x: auto"  # or what is wide would make all of the Lab as wide
    look = f"color: var(--jp-ui-font-color1, currentColor); line-height: 1.5; {width}"
    return f'<div style="{look}">{markup}</div>'


def said(words):
    """A line that a screen reader speaks whenever it changes."""
    return colored(f'<div role="status" aria-live="polite" style="white-space: pre-line">{html.escape(words)}</div>')
