"""Goodput: the share of a training's time that failures, checkpoints and restarts leave."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import not_negative, positive
from bigtrain_nb.common.words import amount

DEVICE_MTBF_HOURS = 50_700
"""Device hours between unexpected interruptions of Llama 3's pretraining: 419 in 54 days on 16,384 H100
(Grattafiori et al. 2024, section 3.3.4)."""


@dataclass(frozen=True)
class Goodput:
    """The share of wall-clock time spent training; each second of training loses c/t + t/2M + R/M.

    c: seconds per checkpoint; t: seconds between two; M: MTBF of the job, that of a device divided by ``devices``; R:
    seconds to notice a failure and restart. Without ``interval_seconds``, t is √(2 c M), the optimum (Young 1974).
    """

    devices: int
    mtbf_hours: float = DEVICE_MTBF_HOURS
    checkpoint_seconds: float = 60.0
    interval_seconds: float | None = None
    restart_seconds: float = 600.0

    def __post_init__(self):
        positive("mtbf_hours", self.mtbf_hours, "hours between failures of one device")
        positive("checkpoint_seconds", self.checkpoint_seconds, "seconds")
        not_negative("restart_seconds", self.restart_seconds, "seconds")
        if self.interval_seconds is not None:
            positive("interval_seconds", self.interval_seconds, "seconds")

    @property
    def between_failures(self):
        """In seconds."""
        return 3600 * self.mtbf_hours / self.devices

    @property
    def interval(self):
        """Seconds between checkpoints."""
        return self.interval_seconds or (2 * self.checkpoint_seconds * self.between_failures) ** 0.5

    @property
    def lost(self):
        """Seconds lost per second of training: (by checkpoints, by repeated training, by restarts)."""
        again, restarts = self.interval / 2 / self.between_failures, self.restart_seconds / self.between_failures
        return self.checkpoint_seconds / self.interval, again, restarts

    @property
    def share(self):
        return 1 / (1 + sum(self.lost))

    def rows(self):
        saving, again, restarts = self.lost
        every = f"{amount(self.checkpoint_seconds, 's')} each, every {amount(self.interval, 's')}"
        parts = f"{saving:.1%} checkpoints, {again:.1%} trained again, {restarts:.1%} restarts"
        return [
            ["failures", f"one in {amount(self.between_failures, 's')}: {self.mtbf_hours:,.0f} hours of a device each"],
            ["checkpoints", every],
            ["goodput", f"{self.share:.1%}: of 30 days {30 * self.share:.1f} train (lost: {parts})"],
        ]
