"""A prediction compared with the measurement, and its error."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.words import interval, quantity

CLOSE = 0.1 + 1e-9
"""Relative error up to which a prediction is a hit."""

NOT_JUDGED = "not judged, the machine was too busy: run the cell again"


@dataclass(frozen=True)
class Prediction:
    """The reader's prediction and, once revealed, the measurement: median with interval, all in `unit`.

    `predicted` is None if left blank. `said` and `revealed` are the times of prediction and reveal, in ISO 8601.
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
        """The prediction divided by the measured median; None unless both are positive."""
        return self.predicted / self.median if self.predicted > 0 and self.median > 0 else None

    @property
    def times_off(self):
        """The error as a factor of at least 1: 2 for both half and double. Infinite without a factor."""
        return max(self.factor, 1 / self.factor) if self.factor else math.inf

    @property
    def is_judged(self):
        """Whether the interval is narrow enough: it must not extend beyond both half and double the median."""
        return not (self.median > 0 and self.low < self.median / 2 and self.high > 2 * self.median)

    @property
    def inside(self):
        """Whether the prediction is in the measured interval; False for an unbounded one, which contains anything."""
        return self.low <= self.predicted <= self.high < math.inf

    @property
    def hit(self):
        """Whether the prediction is in the interval or within 10 % of the median, so narrow intervals are not harder.

        For a median of 0, only 0 is a hit.
        """
        return self.inside or abs(self.predicted - self.median) <= CLOSE * abs(self.median)

    @property
    def within_twice(self):
        """Whether the prediction is a hit, or off by at most a factor of 2."""
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
        """The prediction with its unit, as a string; "none" if left blank."""
        return "none" if self.predicted is None else quantity(self.predicted, self.unit)

    @property
    def measured(self):
        """The measurement with its unit, as a string; "not yet" before it exists."""
        if self.median is None:
            return "not yet"
        return interval(self) if self.unit == "x" else f"{interval(self)} {self.unit}".strip()
