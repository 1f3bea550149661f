"""The Lab: any function and its choices become controls over an honest measurement.

The first run is measured alone and becomes the baseline. Every later run is measured in interleaved rounds with the
baseline, so that its verdict rests on moments they shared.
"""

import contextlib
import threading
from functools import partial
from pathlib import Path

from bigtrain_nb.common.cards import Card
from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.files import write_text
from bigtrain_nb.lab import controls, jobs, runs
from bigtrain_nb.lab.runs import Run
from bigtrain_nb.plots import Picture

LONGEST_STATUS = 600  # characters; TensorFlow's errors can be pages long


class Lab:
    """Controls for the choices of a function, whose pipelines or steps are measured and compared.

        bt.Lab(build, batch=[16, 32, 64], prefetch=[0, 2, "AUTOTUNE"], shuffle=True, workers=(1, 8))

    `build(**settings)` returns an iterable of batches, a step function, or an object with `.dataset()`. Each choice
    is a list, True or False, or whole numbers (low, high[, step]). `seconds` is the time to measure each pipeline: a
    first run takes it once, a later one twice, as the baseline is measured again beside it.

    `runs` has all runs so far, `baseline` the one that others are compared with: the first, or what you set it to.

    Raises ValueError for settings that make no sense and where choices and function do not fit.
    """

    def __init__(self, build, *, seconds=4.0, **choices):
        self.build = build
        self.seconds = positive("seconds", seconds, "seconds")
        self.controls = controls.controls(build, choices)
        self.runs = []
        self.status = "Ready: choose settings and press Run."
        self.baseline = None
        self._job = None
        self._lock = threading.RLock()
        self._view = None

    @property
    def running(self) -> bool:
        return self._job is not None

    def settings(self, **given) -> dict:
        """A value for every control: the given one or its default. Raises ValueError for an unknown name or value."""
        return controls.settings(self.controls, given)

    def run(self, **given) -> Run:
        """Measure these settings and wait for the result; whatever `build` raises comes through."""
        return self._measure(self._begin(None, given))[0]

    def sweep(self, control, /, **given) -> list[Run]:
        """Measure all values of one control and the baseline in the same rounds, and wait for the results."""
        return self._measure(self._begin(control, given))

    def start(self, sweep=None, /, **given) -> None:
        """Do `run`, or the sweep of the named control, in the background; errors appear in `status`."""
        job = self._begin(sweep, given)
        threading.Thread(target=self._in_background, args=[job], daemon=True, name="lab-run").start()

    def stop(self) -> None:
        """End the run that is going on and keep nothing of it; returns at once, even if its source blocks."""
        with self._lock:
            if self._job:
                self._end("Stopped; nothing of that run was kept.")

    def picture(self) -> Picture:
        """The last 24 runs as image/png. Raises RuntimeError if nothing was measured yet."""
        if not self.runs:
            raise RuntimeError("there is no picture yet: run something first")
        return Picture(runs.figure(self.runs, self.baseline), runs.words(self.runs, self.baseline))

    def table(self) -> Card:
        """The last 24 runs as a table."""
        return runs.table(self.runs, self.baseline)

    def export(self, path) -> str:
        """Write all runs to a .csv file, a line for each, and return its full path."""
        path = Path(path).absolute()
        if path.suffix != ".csv":
            raise ValueError(f"path={str(path)!r}: expected a name that ends in .csv")
        write_text(path, runs.csv_lines(self.runs))
        return str(path)

    def say(self, status: str) -> None:
        """Show a line of words as the Lab's status."""
        self.status = status
        if self._view:
            self._view.refresh()

    def __repr__(self):
        return f"Lab of {controls.text(self.build)}, {len(self.runs)} runs. {self.status}"

    def _repr_mimebundle_(self, **kwargs):
        from bigtrain_nb.lab.view import View

        self._view = self._view or View(self)
        return {**self._view.box._repr_mimebundle_(**kwargs), "text/plain": repr(self)}

    def _begin(self, swept, given):
        """Take the Lab for one job, a run or the sweep of the named control; return the job."""
        chosen = [self.settings(**given)]
        if swept:
            values = controls.look_up(self.controls, swept).values
            chosen = [{**chosen[0], swept: value} for value in values]
        with self._lock:
            if self._job:
                raise RuntimeError("a run is going on in this Lab: stop it or wait for its end")
            job = {self.baseline.number: self.baseline.settings} if self.baseline else {}
            job.update(enumerate(chosen, start=len(self.runs) + 1))
            self._job = job
            self.say("Starting.")
            return job

    def _in_background(self, job):
        with contextlib.suppress(Exception):  # the status has said it
            self._measure(job)

    def _measure(self, job):
        """Measure, keep the new runs and return them."""
        try:
            say, progress = partial(self._tell, job), partial(self._progress, job)
            measured = jobs.measure(job, self.build, self.seconds, say, progress)
            with self._still(job):
                new = [run for run in measured if run.number > len(self.runs)]  # without the baseline's repetition
                self.runs = [*self.runs, *new]
                self.baseline = self.baseline or new[0]
                self._end(runs.words(self.runs, self.baseline))
            return new
        except BaseException as error:  # a kernel's interrupt too
            with contextlib.suppress(jobs.Stopped), self._still(job):
                notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
                self._end(f"This run failed{notes}. {type(error).__name__}: {error}"[:LONGEST_STATUS])
            raise

    @contextlib.contextmanager
    def _still(self, job):
        """Hold the lock while the job changes the Lab; raise `Stopped` if it was stopped."""
        with self._lock:
            if self._job is not job:
                raise jobs.Stopped("the run was stopped")
            yield

    def _tell(self, job, status):
        with self._still(job):
            self.say(status)

    def _progress(self, job, fraction):
        with self._still(job):
            if self._view:
                self._view.progress.value = fraction

    def _end(self, status):
        self._job = None
        self.say(status)
