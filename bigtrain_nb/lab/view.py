"""The user interface of the Lab.

The view shows the Lab's state and calls its methods; it measures nothing. Its widgets are created once and
then updated, so that nothing accumulates over many runs.
"""

import html

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.fields import LOOK, colored, field, focus, keyboard_guard, row, said, widgets
from bigtrain_nb.plots import figure_svg

EXPORTED = "lab-runs.csv"
BEFORE = "the run before"


class View:
    """The widgets of one `Lab`; `box` is what a notebook displays."""

    def __init__(self, lab):
        self.lab = lab
        self.fields = {name: field(name, control) for name, control in lab.controls.items()}

        self.run = self._button("Run", "Measure these settings", lambda: self._begin(lab.start))
        self.run.button_style = "primary"
        self.stop = self._button("Stop", "Stop the current run and discard its measurements", self._stop)
        longer = "Measure the last run longer if it is too close to call"
        self.more = self._button("Extend", longer, lambda: self._begin(lab.start_to_extend))
        self.progress = widgets.FloatProgress(max=1.0, description="Progress", **LOOK)
        self.happens = widgets.HTML()

        self.swept = widgets.Dropdown(options=list(lab.controls), description="Try all values of", **LOOK)
        together = "Interleave measurements of all these values"
        self.sweep = self._button("Try all", together, lambda: self._begin(lab.start, self.swept.value))
        racing = "Interleave all combinations, and eliminate the slower ones"
        self.race = self._button("Find the best", racing, lambda: self._begin(lab.start, runs.ALL))

        self.baseline = widgets.Dropdown(options=[(BEFORE, BEFORE)], description="Compare with", **LOOK)
        self.baseline.observe(self._choose_baseline, "value")
        self.export = self._button("Export", f"Write all runs to {EXPORTED}", self._export)

        self.status = widgets.HTML()
        self.results = widgets.HTML()
        self.drawn = None
        self.box = widgets.VBox(
            [
                row(*self.fields.values()),
                row(self.run, self.stop, self.more, self.progress),
                self.happens,
                self.status,
                self.results,
                row(self.swept, self.sweep, self.race),
                row(self.baseline, self.export),
                keyboard_guard(),
            ]
        )
        self.box.add_class("bigtrain-lab")
        self.refresh()

    def refresh(self):
        lab = self.lab
        idle = not lab.running
        for button in (self.run, self.sweep, self.race):
            button.disabled = not idle
        self.stop.disabled = idle
        self.more.disabled = not (idle and lab.can_extend)
        self.export.disabled = not lab.runs
        if idle:
            self.show_progress(0.0, "", "")
        self.status.value = said(lab.status)
        state = (len(lab.runs), lab.runs and lab.runs[-1].result, lab.baseline, lab.standings)
        if self.drawn != state:
            self._draw()
            self.drawn = state

    def show_progress(self, fraction, words, clock):
        """Show the progress and time of a measurement, and the rate so far in large type."""
        self.progress.value = fraction
        what, _, rate = words.partition(": ")
        large = _large(html.escape(rate)) if rate else ""
        self.happens.value = colored(f"{large}{html.escape(what)}; {clock}") if words else ""

    def _draw(self):
        lab = self.lab
        if lab.standings:
            self.results.value = colored(runs.standings(lab.standings).html)
            return
        if not lab.runs:
            self.results.value = ""
            return
        figure = runs.figure(lab.runs)
        words = f"{lab.runs[-1]}. The table below the picture has every run."
        rate, verdict = map(html.escape, runs.headline(lab.runs))
        above = f"{_large(rate)}<div>{verdict}</div>"
        self.results.value = colored(above + figure_svg(figure, words) + lab.table().html)
        self.baseline.unobserve(self._choose_baseline, "value")  # setting the options would select the first
        self.baseline.options = [(BEFORE, BEFORE), *((run.name, run) for run in lab.runs)]
        self.baseline.value = lab.baseline or BEFORE
        self.baseline.observe(self._choose_baseline, "value")

    def _button(self, name, tooltip, action):
        """Return a button that runs the action and shows its errors as the status."""

        def clicked(_):
            for one in (*self.fields.values(), self.swept, self.baseline):
                one.send_state("description")  # ipykernel 7.4 receives in the thread that last sent: now this one
            try:
                action()
            except Exception as error:
                self.lab.say(f"{type(error).__name__}: {error}")

        button = widgets.Button(description=name, tooltip=tooltip)
        button.on_click(clicked)
        return button

    def chosen(self):
        """Return the settings shown by the controls."""
        chosen = {}
        for name, one in self.fields.items():
            is_list = isinstance(one, widgets.Dropdown | widgets.SelectionSlider)
            chosen[name] = self.lab.controls[name].values[one.index] if is_list else one.value
        return chosen

    def _begin(self, start, *given):
        """Start a job; ignore a second click, which a page can send before the button is disabled."""
        if not self.lab.running:
            start(*given)
            focus(self.stop)  # or the focus would be lost with the disabled button

    def _stop(self):
        self.lab.stop()
        focus(self.run)

    def _export(self):
        self.lab.say(f"Wrote {self.lab.export(EXPORTED)}")

    def _choose_baseline(self, change):
        chosen = change["new"]
        self.lab.baseline = None if chosen == BEFORE else chosen
        self.lab.say(f"The next runs are compared with {self.lab.baseline.name if self.lab.baseline else BEFORE}.")


def _large(markup):
    return f'<div style="font-size: 1.8em; font-weight: bold">{markup}</div>'
