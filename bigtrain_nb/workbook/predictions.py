"""A prediction beside what was measured, and how far off it was."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.words import interval, quantity

CLOSE = 0.1 + 1e-9
"""Of what was measured: nearer a prediction need not be."""

NOT_JUDGED = "not judged, the machine was too busy: run the cell again"


@dataclass(frozen=True)
class Prediction:
    """What the reader said, and, once revealed, what was measured: median with interval, all in `unit`.

    `predicted` is None for one that was left blank. `said` and `revealed` are when that was, in ISO 8601.
    """

    name: str
    unit: str = ""
    predicted: float | None = None
    said: str | None = None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    revealed: str | None = None

    @property
    def factor(self):
        """How many times the prediction is what was measured; None where one of them is not above zero."""
        return self.predicted / self.median if self.predicted > 0 and self.median > 0 else None

    @property
    def times_off(self):
        """The same for predictions too high and too low: 2 for a half as for a double. Infinite without a factor."""
        return max(self.factor, 1 / self.factor) if self.factor else math.inf

    @property
    def is_judged(self):
        """Whether the measurement can judge a prediction: an interval from half its median to the double cannot."""
        return not (self.median > 0 and self.low < self.median / 2 and self.high > 2 * self.median)

    @property
    def inside(self):
        """Whether the prediction lies in the measured interval, if there is one: one without an end holds anything."""
        return self.low <= self.predicted <= self.high < math.inf

    @property
    def hit(self):
        """Whether the prediction lies in the interval or within 10 % of the median: a narrow interval is no harder.

        Where nothing was measured, 0 alone is right: there is no tenth of it.
        """
        return self.inside or abs(self.predicted - self.median) <= CLOSE * abs(self.median)

    @property
    def within_twice(self):
        """Whether the prediction is a hit, or off by a factor of 2 at most."""
        return self.hit or self.times_off <= 2

    @property
    def verdict(self):
        """In words: "inside the interval", "within 10 %", "off by 1.4x, too low, but within 2x"."""
        if not self.is_judged:
            return NOT_JUDGED
        if self.hit:
            if not self.factor:
                return "right"
            return "inside the interval" if self.inside and self.low < self.high else "within 10 %"
        side = "high" if self.predicted > self.median else "low"
        off = quantity(self.times_off, "x") if self.factor else quantity(abs(self.predicted - self.median), self.unit)
        return f"off by {off}, too {side}{', but within 2x' * self.within_twice}"

    @property
    def in_words(self):
        """What was said, in words, with its unit; "none" for one that was left blank."""
        return "none" if self.predicted is None else quantity(self.predicted, self.unit)

    @property
    def measured(self):
        """What was measured, in words, with its unit; "not yet" before that."""
        if self.median is None:
            return "not yet"
        return interval(self) if self.unit == "x" else f"{interval(self)} {self.unit}".strip()
