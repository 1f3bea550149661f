"""The Lab: controls for any function and its choices, with an honest measurement behind them.

The first run is measured alone. Every later run is interleaved with the previous run or a chosen baseline, so that both
are measured under the same conditions.
"""

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bigtrain_nb.common.cards import Card
from bigtrain_nb.common.checks import as_path, positive
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import seconds_of_others
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.lab import controls, runs
from bigtrain_nb.lab.race import refuse_too_many, standings_at_checks
from bigtrain_nb.lab.runs import ALL, Run
from bigtrain_nb.measure.results import Race
from bigtrain_nb.measure.rounds import INTERIM_CHECKS, compare, notes_on, share_of_others
from bigtrain_nb.measure.source import is_source
from bigtrain_nb.measure.throughput import throughput
from bigtrain_nb.plots import Picture

LONGEST_STATUS = 600  # characters; TensorFlow's errors can be pages long, with the cause at either end
STEPS_KEPT = 4
"""The most recently built step functions are cached: rebuilding and retracing one takes most of the time of a run."""

_machine = threading.Lock()  # one measurement at a time across all Labs: concurrent ones would distort each other


class Stopped(Exception):
    """Raised within a run that was stopped."""


class Clock:
    """The wall time of a job: `seconds` of measuring, after `overhead` for building and warming up.

    `overhead` is None until it is known, at the latest when measuring begins. After the first round, the time of the
    minimum number of rounds is known too, which may exceed `seconds`.
    """

    def __init__(self, overhead, seconds, longest):
        self.overhead, self.seconds, self.longest = overhead, seconds, max(seconds, longest)
        self._asked = seconds
        self._began = time.perf_counter()
        self._announced = self.total
        self._warm = None

    @property
    def elapsed(self):
        return time.perf_counter() - self._began

    @property
    def total(self):
        return (self.overhead or 0.0) + self.seconds

    @property
    def measures(self):
        """Whether building and warming up are over."""
        return self._warm is not None

    @property
    def left(self):
        """Elapsed and expected time: "4 s of about 9 s"."""
        return f"{self.elapsed:.0f} s of about {max(self.total, self.elapsed):.0f} s"

    @property
    def words(self):
        """The expected time: "about 9 s, up to 26 s where it is close"."""
        words = f"about {_seconds(self.total)}"
        if self.longest > self.seconds:
            words += f", up to {_seconds(self.total - self.seconds + self.longest)} where it is close"
        return words if self.overhead is not None else f"{words}, plus building and warming up"

    def hear(self, words):
        """Update from a progress message of the measurement; return whether the expected time has changed notably."""
        found = re.match(r"round (\d+) of about (\d+)", words)
        if self._warm is None and (found or words.startswith("measuring")):
            self._warm = self.overhead = self.elapsed
        if found and int(found[1]) > 1:
            done, expected = int(found[1]) - 1, int(found[2])
            self.seconds = max(self._asked, (self.elapsed - self._warm) / done * expected)
            self.longest = max(self.longest, self.seconds)
        is_other = not self._announced / 1.2 < self.total < 1.2 * self._announced
        self._announced = self.total if is_other else self._announced
        return is_other


def _ends(words):
    """The words unchanged, or the beginning and end of long ones."""
    if len(words) <= LONGEST_STATUS:
        return words
    return f"{words[: LONGEST_STATUS // 2]} [...] {words[-LONGEST_STATUS // 2 :]}"


def _seconds(value):
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


class Lab:
    """Controls for the choices of a function, whose pipelines or steps are measured and compared.

    `build(**settings)` returns an iterable of batches, a step function, or an object with `.dataset()`. Each choice
    is a list, a range of integers, or True or False. `seconds` is the time to measure one run: the first run alone,
    a later one interleaved with the previous run, for up to four times as long while the two are too close to
    call (see `compare`). `extend` measures the last run longer. The last four step functions are cached and reused when
    their settings recur.

    `notes(source, **settings)` is called once for each new run, after its measurement, with the result of `build`. It
    returns a dictionary of extra columns for the table and the CSV, numbers or strings: `{"MiB": 312}`.

    `runs` lists all runs so far. The next runs are compared with `baseline`; the default, None, is the previous run.
    `standings` is the `Race` in progress, as of its last interim check.

    Settings omitted from `run`, `sweep` and `start` are those that the controls show; before the Lab is displayed, they
    are the controls' defaults.

    Raises ValueError for invalid settings and TypeError for a non-callable `build`. Every method that measures raises
    RuntimeError while a run of this Lab is in progress.

    Example::

        def build(batch, prefetch):
            return tf.data.Dataset.range(1000).batch(batch).prefetch(prefetch)

        lab = bt.Lab(build, seconds=0.5, batch=[10, 100], prefetch=[0, 2])  # alone at the end of a cell: the controls
        lab.run(batch=100)
        print(lab.table())
    """

    def __init__(self, build: Callable, *, seconds: float = 4.0, notes: Callable | None = None, **choices: Any):
        if not callable(build):
            raise TypeError(f"Lab takes a function that builds a source from the choices, not {build!r:.99}")
        if notes is not None and not callable(notes):
            raise TypeError(f"notes={notes!r:.99} must be a function: notes(source, **settings) returns a dictionary")
        self.build = build
        self.notes = notes
        self.seconds = positive("seconds", seconds, "seconds")
        self.controls = {name: controls.control(name, given) for name, given in choices.items()}
        self.runs = []
        self.status = "Ready: choose settings and press Run."
        self.baseline = None
        self.standings = None
        self._job = None  # {name of the run: settings} being measured; None for settings when extending
        self._is_race = False
        self._clock = None
        self._overhead = None  # seconds to build and warm up one source in the last job
        self._lock = threading.RLock()
        self._view = None
        self._steps = []  # (settings, step function), the last built last
        self._sources = []  # (settings, source) of the current job, if there are notes

    @property
    def running(self) -> bool:
        return self._job is not None

    def settings(self, **given: Any) -> dict:
        """A value for every control: the given one, or the one shown.

        Raises ValueError for an unknown name or value.
        """
        shown = self._view.chosen() if self._view else {}
        return controls.settings(self.controls, {**shown, **given})

    def run(self, **given: Any) -> Run:
        """Measure these settings and wait for the result, a `Run`; errors of `build` propagate."""
        return self._measure(self._begin(None, given))[0]

    def sweep(self, control: str, /, **given: Any) -> list[Run]:
        """Measure all values of one control, and the baseline if set, interleaved; return one `Run` each."""
        return self._measure(self._begin(control, given))

    def extend(self, seconds: float | None = None) -> list[Run]:
        """Measure the last run or sweep for ``seconds`` more; wait for the results and return one `Run` each.

        The default is the time measured so far. After a race, the remaining settings or the last two are interleaved as
        in a sweep, by default for half the Lab's ``seconds`` each. Raises RuntimeError if there is nothing to extend.
        """
        return self._measure_on(*self._begin_to_extend(seconds))

    @property
    def can_extend(self) -> bool:
        """Whether the last run was a comparison or a race that `extend` can measure longer."""
        comparison = self.runs[-1].comparison if self.runs else None
        return isinstance(comparison, Race) or (comparison is not None and comparison.extend_with is not None)

    def race(self) -> Race:
        """Race all combinations, like `bigtrain_nb.race`, with a third of `seconds` for each.

        All become runs, the fastest last. Returns the `Race`, whose `finalists` are the settings with no clear
        difference.
        """
        return self._measure(self._begin(ALL, {}))[0].comparison

    def start(self, sweep: Any = None, /, **given: Any) -> None:
        """Start `run`, or the sweep of the named control, in the background; `status` shows errors.

        With `bigtrain_nb.lab.runs.ALL` instead of a name, all combinations race.
        """
        job = self._begin(sweep, given)
        self._in_background(self._measure, job)

    def start_to_extend(self) -> None:
        """Start `extend` in the background; `status` shows errors."""
        self._in_background(self._measure_on, *self._begin_to_extend(None))

    def stop(self) -> None:
        """End the current run and leave `runs` unchanged; returns at once, even if its source blocks."""
        with self._lock:
            if self._job:
                self._end("Stopped; the runs are unchanged.")

    def picture(self) -> Picture:
        """The last run and those interleaved with it, as image/png. Raises RuntimeError if there is no run yet."""
        if not self.runs:
            raise RuntimeError("there is no picture yet: run something first")
        return Picture(runs.figure(self.runs, *runs.headline(self.runs)), repr(self.runs[-1]))

    def table(self) -> Card:
        """The last 24 runs as a table."""
        return runs.table(self.runs)

    def export(self, path: str | os.PathLike) -> str:
        """Write all runs as CSV, one line each, and return the file's full path.

        Raises ValueError for a choice that has the name of another column, such as "unit" or "median".
        """
        path = Path(as_path("path", path)).absolute()
        write_text(path, runs.csv_lines(self.runs))
        return str(path)

    def say(self, status: str) -> None:
        """Show a string as the Lab's status."""
        self.status = status
        if self._view:
            self._view.refresh()

    def __repr__(self):
        return f"Lab of {controls.text(self.build)}, {len(self.runs)} runs. {self.status}"

    def _repr_mimebundle_(self, **kwargs):
        from bigtrain_nb.lab.fields import mime_bundle  # loads ipywidgets
        from bigtrain_nb.lab.view import View

        self._view = self._view or View(self)
        return mime_bundle(self._view.box, repr(self))

    def _begin(self, swept, given):
        """Reserve the Lab for one job: a run, a sweep of the named control, or the race of `ALL`; return the job."""
        chosen = [self.settings(**given)]
        if swept is ALL:
            values = [control.values for control in self.controls.values()]
            refuse_too_many(values)
            chosen = [dict(zip(self.controls, combination, strict=True)) for combination in product(*values)]
        elif swept is not None:
            values = controls.look_up(self.controls, swept).values
            chosen = [{**chosen[0], swept: value} for value in values]
        with self._lock:
            if self._job:
                raise RuntimeError("a run is going on in this Lab: stop it or wait for its end")
            self._is_race = swept is ALL
            job = {}
            before = self.baseline
            if before and not any(before is run for run in self.runs):
                raise ValueError(f"baseline={before!r} is not a run of this Lab: use one of lab.runs, or None")
            if not before and swept is None and self.runs:
                before = self.runs[-1]
            if before and not self._is_race:
                job[before.name] = before.settings
            for number, settings in enumerate(chosen, start=len(self.runs) + 1):
                job[f"run {number}"] = settings
            self._job = job
            self.say("Starting.")
            return job

    def _begin_to_extend(self, seconds):
        """Reserve the Lab to measure the last comparison longer; return the job and its seconds."""
        if seconds is not None:
            positive("seconds", seconds, "seconds")
        with self._lock:
            if self._job:
                raise RuntimeError("a run is going on in this Lab: stop it or wait for its end")
            if not self.can_extend:
                raise RuntimeError("nothing to extend: measure a second run first")
            comparison = self.runs[-1].comparison
            self._is_race = False
            names = comparison.names
            if isinstance(comparison, Race):
                names = names[: max(2, len(comparison.remaining))]
                seconds = seconds or self.seconds * len(names) / 2
            self._job = dict.fromkeys(names)
            self.say("Starting.")
            return self._job, seconds or comparison.seconds

    def _in_background(self, measure, *given):
        def quietly():
            with suppress(Exception):  # the status shows it
                measure(*given)

        threading.Thread(target=quietly, daemon=True, name="lab-run").start()

    def _measure(self, job):
        """Measure; store and return the new runs."""
        with self._on_the_machine(job):
            measured = self._measure_runs(job)
            before = {run.name: run for run in self.runs}
            new = [run for run in measured if run.name not in before]
            for run in new:
                run.notes = self._notes_of(run.settings)
        with self._still(job):
            known = {run.name: run for run in new} | before
            for run in new:
                first = run.comparison.names[0] if run.comparison else run.name
                run.against = None if first == run.name else known[first]
            self._release_sources(self.runs[-1].comparison if self.runs else None)
            self.runs = [*self.runs, *(reversed(new) if self._is_race else new)]
            self._end(runs.answer(new[0].comparison) if self._is_race else repr(new[-1]))
        return new

    def _measure_on(self, job, seconds):
        """Measure the last comparison longer; update its runs and return them."""
        with self._on_the_machine(job):
            before = self.runs[-1].comparison
            if isinstance(before, Race):
                new = [before.settings[name] for name in job]
                self._announce(job, new, scaled_seconds(seconds), max(INTERIM_CHECKS) * scaled_seconds(seconds))
                sources = {name: partial(self._source, **before.settings[name]) for name in job}
                comparison = compare(sources, seconds=seconds, progress=partial(self._progress, job))
            else:
                self._announce(job, [], seconds, seconds)
                comparison = before.extend(seconds, partial(self._progress, job))
        with self._still(job):
            again = [run for run in self.runs if run.comparison is before and run.name in job]
            for run in again:
                run.comparison = comparison
                run.result = comparison.results[run.name]
            self._end(repr(again[-1]))
        return again

    def _release_sources(self, comparison):
        """Keep the result of a comparison, but release the sources for extending it."""
        if comparison is None or comparison.extend_with is None:
            return
        said = replace(comparison, extend_with=None)
        for run in self.runs:
            if run.comparison is comparison:
                run.comparison = said

    @contextmanager
    def _on_the_machine(self, job):
        """Hold the machine's lock while the job measures; end the job with a message if that fails."""
        try:
            while not _machine.acquire(timeout=0.05):
                self._set_status(job, "Waiting for another run to finish.")
            try:
                yield
            finally:
                self._sources = []
                _machine.release()
        except BaseException as error:  # including a kernel interrupt
            with suppress(Stopped), self._still(job):
                notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
                self._end(_ends(f"This run failed{notes}. {type(error).__name__}: {error}"))
            raise

    def _measure_runs(self, job):
        """Measure the settings of a job, interleaved if there are several; return all as runs."""
        sources = {name: partial(self._source, **settings) for name, settings in job.items()}
        seconds = self.seconds * (len(job) / 3 if self._is_race else max(1, len(job) / 2))
        longest = max(INTERIM_CHECKS) if len(job) > 1 and not self._is_race else 1
        self._announce(job, job.values(), scaled_seconds(seconds), longest * scaled_seconds(seconds))
        taken = {"seconds": seconds, "progress": partial(self._progress, job)}
        if len(job) == 1 and not self._is_race:
            [(name, source)] = sources.items()
            since, others = time.perf_counter(), seconds_of_others()
            result = throughput(source(), name=name, **taken)
            return [Run(job[name], result, alone=notes_on(share_of_others(since, others)))]
        comparison = self._last_look(job, **taken) if self._is_race else compare(sources, **taken)
        return [Run(job[name], result, comparison) for name, result in comparison.results.items()]

    def _announce(self, job, settings, seconds, longest):
        """Start the clock of a job that builds and measures these settings, and show the expected time."""
        built = [chosen for chosen, _ in self._steps]
        new = sum(chosen not in built for chosen in settings)
        overhead = self._overhead * new if new and self._overhead is not None else None if new else 0.0
        self._clock, self._to_build = Clock(overhead, seconds, longest), new
        self._set_status(job, f"Measuring {', '.join(job)}: {self._clock.words}.")

    def _last_look(self, job, **taken):
        """Race all settings, show the standings at each interim check, and return the final `Race`."""
        for race in standings_at_checks(self._source, job, **taken):
            with self._still(job):
                self.standings = race
                self.say(runs.answer(race))
        return race

    def _source(self, **settings):
        """Return the source built from the settings, or a cached step; on an error, add a note with the settings."""
        for chosen, step in self._steps:
            if chosen == settings:
                return self._remember(settings, step)
        try:
            source = self.build(**settings)
            if not is_source(source):
                raise TypeError(
                    f"{controls.text(self.build)} returned {source!r:.99}; a Lab's function must return an iterable of"
                    " batches, a step function, or an object with .dataset()"
                )
            if callable(source) and not hasattr(source, "__iter__"):
                self._steps = [*self._steps, (settings, source)][-STEPS_KEPT:]
            return self._remember(settings, source)
        except Exception as error:
            error.add_note(f"raised by {controls.text(self.build)} with {controls.describe(settings)}")
            raise

    def _remember(self, settings, source):
        """Keep the source for its notes until the job ends, instead of an earlier one with these settings."""
        if self.notes:
            self._sources = [each for each in self._sources if each[0] != settings] + [(settings, source)]
        return source

    def _notes_of(self, settings):
        """Return the `notes` for the source measured with these settings."""
        for chosen, source in self._sources:
            if chosen == settings:
                return runs.checked_notes(self.notes(source, **settings), settings)
        return {}

    @contextmanager
    def _still(self, job):
        """Hold the lock while the job changes the Lab; raise `Stopped` if it was stopped."""
        with self._lock:
            if self._job is not job:
                raise Stopped("the run was stopped")
            yield

    def _set_status(self, job, status):
        with self._still(job):
            self.say(status)

    def _progress(self, job, fraction, words):
        with self._still(job):
            clock = self._clock
            if clock.hear(words) and not self.standings:
                self.say(f"Measuring {', '.join(job)}: {clock.words} in all.")
            if clock.measures and self._to_build:
                self._overhead = clock.overhead / self._to_build
            if self._view:
                self._view.show_progress(clock.elapsed / max(clock.total, clock.elapsed), words, clock.left)

    def _end(self, status):
        self._job = self.standings = None
        self.say(status)
