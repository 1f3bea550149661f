"""The widgets of the Lab: stock ipywidgets, identical in JupyterLab, Notebook and VS Code."""

import html

from bigtrain_nb.common.optional import needed_by
from bigtrain_nb.lab.controls import text

with needed_by("the screen of bt.Lab"):
    import ipywidgets as widgets

TOOLTIP = "tooltip" if "tooltip" in widgets.Dropdown.class_trait_names() else "description_tooltip"  # ipywidgets 7
LOOK = {"style": {"description_width": "11em"}, "layout": {"width": "24em", "max_width": "100%"}}


def field(name, control):
    """Return a labeled widget for a control: a slider for ascending numbers, a checkbox or a dropdown list."""
    values = control.values
    common = {"description": name, TOOLTIP: control.allowed, **LOOK}
    if isinstance(values, range):
        limits = {"min": min(values), "max": max(values), "step": abs(values.step)}
        return widgets.IntSlider(control.default, **limits, **common)
    if len(values) == 2 and all(isinstance(value, bool) for value in values):
        return widgets.Checkbox(control.default, **common)
    kind = widgets.SelectionSlider if control.is_scale else widgets.Dropdown
    return kind(options=[text(value) for value in values], index=values.index(control.default), **common)


def row(*parts):
    """Return the widgets side by side, wrapped into several lines on a narrow page."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "grid_gap": "0.3em"})


def keyboard_guard():
    """Return an invisible widget that keeps JupyterLab's shortcuts away from the controls in the box around it.

    Without it, a letter typed in a dropdown is a command for the cell: "m" turns it into Markdown and removes the Lab.
    JupyterLab and Notebook 7 ignore shortcuts from an element with this attribute, which must be on the focused element
    itself. ipywidgets cannot set it, but the load handler of a style sheet can. A focused button that is disabled, such
    as Stop at the end of a run, passes the focus to the first enabled one: Run. If the page does not execute the
    handler, nothing changes.
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
    """Return the MIME bundle that a notebook shows: the widget, or the words where widgets are not available.

    ipywidgets 7 has no method for this. The format is version 2.0 of Jupyter's widgets.
    """
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view, "text/plain": words}


def focus(widget):
    """Give a widget the keyboard focus; ipywidgets 7 cannot."""
    if hasattr(widget, "focus"):
        widget.focus()


def colored(markup):
    """Markup in the theme's text color, or in the color of the surrounding text where the theme defines none."""
    width = "width: 0; min-width: 100%; overflow-x: auto"  # or wide content would widen the whole Lab
    look = f"color: var(--jp-ui-font-color1, currentColor); line-height: 1.5; {width}"
    return f'<div style="{look}">{markup}</div>'


def said(words):
    """A status line that a screen reader speaks whenever it changes."""
    return colored(f'<div role="status" aria-live="polite" style="white-space: pre-line">{html.escape(words)}</div>')
