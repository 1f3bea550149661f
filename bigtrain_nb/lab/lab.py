"""The Lab: any function and its choices become controls over an honest measurement.

The first run is measured alone and becomes the baseline. Every later run is measured in interleaved rounds with the
baseline, so that its verdict rests on moments they shared.
"""

import contextlib
import threading
import time
from collections.abc import Mapping
from functools import partial

from bigtrain_nb.common.cards import Card
from bigtrain_nb.common.checks import positive
from bigtrain_nb.lab import controls, runs
from bigtrain_nb.lab.runs import Run
from bigtrain_nb.measure import benchmark as measure
from bigtrain_nb.plots import Picture

PATIENCE = 60.0  # seconds that a run waits for earlier ones to let go of the machine
LONGEST_MESSAGE = 600  # characters

_displayed = {}  # the Lab on the screen for each function and title
_machine = threading.Lock()  # held by the one job, of all Labs, that measures


class Stopped(Exception):
    """Ends the measurement of a run that was stopped."""


class Lab:
    """Controls for the choices of a function, whose pipelines or steps are measured and compared.

        bt.Lab(build, batch=[16, 32, 64], prefetch=[0, 2, "AUTOTUNE"], shuffle=True, workers=(1, 8))

    `build(**settings)` returns an iterable of batches, a step function, or an object with `.dataset()`. Each choice
    is a list, True or False, or numbers (low, high[, step]). `seconds` is the time to measure each pipeline: a first
    run takes it once, a later one twice, as the baseline is measured again beside it. `baseline` holds settings to
    compare with, measured together with the first run; without it that is the first run itself. A Lab that is
    displayed takes the place of an earlier one of the same function and title.

    Raises ValueError for settings that make no sense and where choices and function do not fit, TypeError for a `build`
    that is no function.
    """

    def __init__(self, build, *, seconds=4.0, baseline=None, title="", **choices):
        if not (baseline is None or isinstance(baseline, Mapping)):
            raise ValueError(f"baseline={baseline!r} must be a dictionary of settings or None")
        if not isinstance(title, str):
            raise ValueError(f"title={title!r} must be a string")
        self.seconds = positive("seconds", seconds, "seconds")
        self.controls = controls.controls(build, choices)
        self.build, self.title = build, title
        self.status = "Ready: choose settings and press Run."
        self.error = None
        self._first = None if baseline is None else controls.settings(self.controls, baseline)
        self._runs, self._baseline = [], None
        self._job = None
        self._lock = threading.RLock()
        self._view = None

    @property
    def runs(self) -> list[Run]:
        """All runs so far, the oldest first."""
        return list(self._runs)

    @property
    def running(self) -> bool:
        return self._job is not None

    @property
    def baseline(self) -> Run | None:
        """The run that others are compared with; set it to another run or its number."""
        return self._baseline

    @baseline.setter
    def baseline(self, run):
        found = [each for each in self._runs if run is each or run == each.number]
        if not found:
            numbers = ", ".join(str(each.number) for each in self._runs) or "none so far"
            raise ValueError(f"baseline={run!r} is not a run of this Lab: expected one of {numbers}")
        with self._lock:
            self._baseline = found[0]
            self._show()

    def settings(self, **given) -> dict:
        """A value for every control: the given one or its default. Raises ValueError for an unknown name or value."""
        return controls.settings(self.controls, given)

    def run(self, **given) -> Run:
        """Measure these settings and wait for the result; whatever `build` raises comes through."""
        plans = [self.settings(**given)]
        return self._perform(self._begin(), plans)[-1]

    def sweep(self, control, /, **given) -> list[Run]:
        """Measure all values of one control and the baseline in the same rounds, and wait for the results."""
        plans = self._plans(control, given)
        return self._perform(self._begin(), plans)[-len(plans) :]

    def start(self, sweep=None, /, **given) -> None:
        """Do `run`, or the sweep of the named control, in the background; errors appear in `status` and `error`."""
        plans = self._plans(sweep, given) if sweep else [self.settings(**given)]
        job = self._begin()
        threading.Thread(target=self._background, args=(job, plans), daemon=True, name="lab-run").start()

    def stop(self) -> None:
        """End the run that is going on and keep nothing of it; returns at once, even if its source blocks."""
        with self._lock:
            if self._job:
                self._job = None
                self.say("Stopped; nothing of that run was kept.")

    def export(self, path) -> str:
        """Write all runs to a .json or .csv file and return its full path."""
        return str(runs.write(path, self._runs, self._baseline, self.title))

    def table(self) -> Card:
        """The last 24 runs as a table."""
        return runs.table(self._runs, self._baseline)

    def picture(self) -> Picture:
        """The last 24 runs as image/png. Raises RuntimeError if nothing was measured yet."""
        if not self._runs:
            raise RuntimeError("there is no picture yet: run something first")
        return Picture(runs.figure(self._runs, self._baseline), runs.words(self._runs, self._baseline))

    def say(self, status: str) -> None:
        """Show a line of words as the Lab's status."""
        with self._lock:
            self.status = status
            self._show()

    def close(self) -> None:
        """Stop, and take the controls off the screen; the runs stay."""
        self.stop()
        with self._lock:
            if self._view:
                self._view.close()
            self._view = None

    def __repr__(self):
        return f"Lab of {_name(self.build)}, {len(self._runs)} runs. {self.status}"

    def _repr_mimebundle_(self, **kwargs):
        from bigtrain_nb.lab.view import View

        key = (_name(self.build), self.title)
        earlier = _displayed.get(key)
        if earlier is not None and earlier is not self:
            earlier.close()
        _displayed[key] = self
        with self._lock:
            self._view = self._view or View(self)
            self._show()
            return {**self._view.box._repr_mimebundle_(**kwargs), "text/plain": repr(self)}

    def _plans(self, control, given):
        values = controls.look_up(self.controls, control).values
        if control in given:
            raise ValueError(f"{control}={given[control]!r}: the sweep itself varies {control}; leave it out")
        return [self.settings(**given, **{control: value}) for value in values]

    def _begin(self):
        """Take the Lab for one job; return what stands for it."""
        with self._lock:
            if self._job:
                raise RuntimeError("a run is going on in this Lab: stop it or wait for its end")
            self._job, self.error = object(), None
            self.say("Starting.")
            return self._job

    def _background(self, job, plans):
        with contextlib.suppress(BaseException):
            self._perform(job, plans)

    def _perform(self, job, plans):
        try:
            self._take_machine(job)
            try:
                made = self._measure(job, plans)
            finally:
                _machine.release()
            with self._still(job):
                self._keep(made)
            return made
        except BaseException as error:
            self._report(job, error, plans)
            raise
        finally:
            with self._lock:
                self._job = None if self._job is job else self._job
                self._show()

    @contextlib.contextmanager
    def _still(self, job):
        """Hold the lock while the job may speak; raise `Stopped` if it was stopped."""
        with self._lock:
            if self._job is not job:
                raise Stopped("the run was stopped")
            yield

    def _take_machine(self, job):
        """Wait for a run that was stopped in a source that blocks, and for those of other Labs: one at a time."""
        if _machine.acquire(timeout=0.05):
            return
        with self._still(job):
            self.say("Waiting for an earlier run to let go of the machine.")
        deadline = time.monotonic() + PATIENCE
        while not _machine.acquire(timeout=0.05):
            with self._still(job):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"an earlier run has not ended after {PATIENCE:.0f} s (a source that blocks cannot be "
                        "stopped from outside); a measurement beside it would mislead"
                    )

    def _measure(self, job, plans):
        """Measure the plans, beside the baseline if there is one or one was asked for."""
        first = self._first
        if not self._runs and first is not None and not (len(plans) == 1 and controls.equal(plans[0], first)):
            plans = [first, *plans]
        new = dict(enumerate(plans, start=len(self._runs) + 1))
        baseline = self._baseline.number if self._baseline else min(new)
        chosen = {baseline: self._baseline.settings if self._baseline else new[baseline], **new}
        self._announce(job, new, baseline)
        if len(chosen) == 1:
            return [Run(baseline, new[baseline], self._alone(job, new[baseline], runs.run_name(baseline)))]
        comparison = measure.compare(
            {runs.run_name(number): partial(self._source, settings) for number, settings in chosen.items()},
            seconds=self.seconds * len(chosen),
            progress=partial(self._progress, job),
        )
        made = [
            Run(number, settings, comparison.results[runs.run_name(number)], comparison=comparison)
            for number, settings in new.items()
        ]
        for run in made:
            run.baseline = baseline if run.number != baseline else None
        return made

    def _alone(self, job, settings, name):
        source, progress = self._source(settings), partial(self._progress, job)
        return measure.throughput(source, seconds=self.seconds, name=name, progress=progress)

    def _source(self, settings):
        try:
            source = self.build(**settings)
            if callable(getattr(source, "dataset", None)):
                source = source.dataset()
        except Exception as error:
            error.add_note(f"raised by {_name(self.build)} with {controls.describe(settings)}")
            raise
        return source

    def _announce(self, job, new, baseline):
        names = f"run {min(new)}" + (f" to {max(new)}" if len(new) > 1 else "")
        beside = "" if baseline in new else f" beside the baseline, run {baseline}"
        seconds = self.seconds * len({baseline, *new})
        with self._still(job):
            self.say(f"Measuring {names}{beside}, about {seconds:.0f} s.")

    def _progress(self, job, fraction):
        with self._still(job):
            if self._view:
                self._view.progress.value = fraction

    def _keep(self, made):
        self._runs = [*self._runs, *made]
        runs.relabel(self._runs)
        self._baseline = self._baseline or made[0]
        self.say(runs.words(self._runs, self._baseline))

    def _report(self, job, error, plans):
        with self._lock:
            if self._job is not job:
                return
            self.error = error
            if isinstance(error, KeyboardInterrupt):
                self.say("Interrupted; nothing of that run was kept.")
                return
            if not getattr(error, "__notes__", None):
                error.add_note("while measuring " + "; ".join(map(controls.describe, plans)))
            message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
            self.say(f"This run failed, {'; '.join(error.__notes__)}. {message}")

    def _show(self):
        if self._view:
            self._view.refresh()


def _name(build):
    return getattr(build, "__qualname__", type(build).__qualname__)
