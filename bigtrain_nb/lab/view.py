"""The Lab on the screen: stock ipywidgets, which work alike in JupyterLab, Notebook and VS Code.

The view shows the Lab's state and calls its methods; it measures nothing. Its widgets are made once and then only
change their values, so that nothing piles up over many runs.
"""

import html

import ipywidgets as widgets

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.controls import Choices, text
from bigtrain_nb.plots import figure_svg

LABEL = {"description_width": "11em"}
WIDE = {"width": "24em", "max_width": "100%"}
ROW = {"flex_flow": "row wrap", "grid_gap": "0.3em"}
EXPORTED = ("lab-runs.json", "lab-runs.csv")


class View:
    """The widgets of one `Lab`; `box` is what a notebook displays."""

    def __init__(self, lab):
        self.lab = lab
        self.fields = {name: field_of(control) for name, control in lab.controls.items()}
        self.run = _button("Run", "Measure these settings", self._run, "primary")
        self.stop = _button("Stop", "End the run that is going on; nothing of it is kept", self._stop)
        self.swept = _dropdown("Try all values of", list(lab.controls), next(iter(lab.controls), None))
        self.sweep = _button("Try all", "Measure all values of the chosen control in the same rounds", self._sweep)
        self.baseline = _dropdown("Baseline", [], None)
        self.baseline.observe(self._choose_baseline, "value")
        self.export = _button("Export", f"Write all runs to {' and '.join(EXPORTED)}", self._export)
        self.progress = widgets.FloatProgress(max=1.0, description="Progress", style=LABEL, layout=WIDE)
        self.status, self.picture, self.table = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.box = self._arranged()
        self._refreshing, self._drawn = False, None

    def refresh(self):
        """Show the Lab's state as it is now."""
        lab, idle = self.lab, not self.lab.running
        self.run.disabled = not idle
        self.sweep.disabled = not (idle and lab.controls)
        self.export.disabled = not lab.runs
        self.stop.disabled = idle
        if idle:
            self.progress.value = 0.0
        self.status.value = colored(f'<div role="status" aria-live="polite">{html.escape(lab.status)}</div>')
        if self._drawn != (len(lab.runs), lab.baseline) and lab.runs:
            self._draw()

    def close(self):
        close(self.box)

    def _arranged(self):
        title = [widgets.HTML(colored(f"<h3>{html.escape(self.lab.title)}</h3>"))] if self.lab.title else []
        sweep = [widgets.HBox([self.swept, self.sweep], layout=ROW)] if self.fields else []
        rows = [
            *title,
            widgets.HBox(list(self.fields.values()), layout=ROW),
            widgets.HBox([self.run, self.stop, self.progress], layout=ROW),
            *sweep,
            widgets.HBox([self.baseline, self.export], layout=ROW),
            self.status,
            self.picture,
            self.table,
        ]
        return widgets.VBox(rows)

    def _draw(self):
        lab = self.lab
        self._drawn = (len(lab.runs), lab.baseline)
        label = runs.words(lab.runs, lab.baseline) + " The table below the picture has every run."
        self.picture.value = colored(figure_svg(runs.figure(lab.runs, lab.baseline), label))
        self.table.value = colored(lab.table().html)
        self._refreshing = True
        self.baseline.options = [(f"run {run.number}", run.number) for run in lab.runs]
        self.baseline.value = lab.baseline.number
        self._refreshing = False

    def _run(self, _):
        self._try(lambda: self.lab.start(**chosen_in(self.fields, self.lab.controls)), then=self.stop)

    def _sweep(self, _):
        others = chosen_in(self.fields, self.lab.controls)
        others.pop(self.swept.value)
        self._try(lambda: self.lab.start(self.swept.value, **others), then=self.stop)

    def _stop(self, _):
        self._try(self.lab.stop, then=self.run)

    def _export(self, _):
        self._try(lambda: self.lab.say("Wrote " + " and ".join(map(self.lab.export, EXPORTED))))

    def _choose_baseline(self, change):
        if not self._refreshing and change["new"] is not None:
            self.lab.baseline = change["new"]

    def _try(self, action, then=None):
        """Do what a button asks and show what it raises; `then` takes over the focus of a button now switched off."""
        try:
            action()
        except Exception as error:
            self.lab.say(f"{type(error).__name__}: {error}")
        else:
            if then:
                then.focus()


def field_of(control):
    """Return the widget of a `Choices` or a `Range`."""
    common = {"description": control.name, "style": LABEL, "layout": WIDE}
    if not isinstance(control, Choices):
        kind = widgets.BoundedIntText if control.whole else widgets.BoundedFloatText
        limits = {"min": control.low, "max": control.high, "step": control.step}
        return kind(value=control.default, tooltip=control.allowed, **limits, **common)
    if control.is_switch:
        return widgets.Checkbox(value=control.default, indent=True, tooltip=control.allowed, **common)
    places = [(text(value), place) for place, value in enumerate(control.values)]
    default = control.accept(control.default)
    return _dropdown(control.name, places, next(place for _, place in places if control.values[place] is default))


def chosen_in(fields, controls):
    """Return what is chosen in each field; that of a list holds the place of it."""
    values = {name: field.value for name, field in fields.items()}
    lists = [name for name, field in fields.items() if isinstance(field, widgets.Dropdown)]
    return values | {name: controls[name].values[values[name]] for name in lists}


def _dropdown(description, options, value):
    return widgets.Dropdown(options=options, value=value, description=description, style=LABEL, layout=WIDE)


def _button(description, tooltip, clicked, button_style=""):
    button = widgets.Button(description=description, tooltip=tooltip, button_style=button_style)
    button.on_click(clicked)
    return button


def colored(markup):
    """In the theme's text colour; where there is no such variable, in the colour of the text around it."""
    return f'<div style="color: var(--jp-ui-font-color1, currentColor); overflow-x: auto">{markup}</div>'


def close(widget):
    """Take a widget and all in it off the screen and out of the kernel."""
    for child in getattr(widget, "children", ()):
        close(child)
    for part in (widget.layout, getattr(widget, "style", None), widget):
        if part is not None:
            part.close()
