"""Goodput: the share of a training's time that failures, checkpoints and restarts leave."""

from bigtrain_nb.common.checks import not_negative, positive
from bigtrain_nb.common.words import amount

DEVICE_MTBF_HOURS = 50_700
"""Device hours between unexpected interruptions of Llama 3's pretraining: 419 in 54 days on 16,384 H100
(Grattafiori et al. 2024, section 3.3.4)."""


def goodput(devices, mtbf_hours, checkpoint_seconds, interval_seconds, restart_seconds):
    """Return the share of wall-clock time spent training, and rows of a table that explain it.

    Each second of training loses c/t + t/2M + R/M. c: seconds per checkpoint; t: seconds between two; M: MTBF of the
    job, that of a device divided by ``devices``; R: seconds to notice a failure and restart. Without
    ``interval_seconds``, t is √(2 c M), the optimum (Young 1974).
    """
    positive("mtbf_hours", mtbf_hours, "hours between failures of one device")
    positive("checkpoint_seconds", checkpoint_seconds, "seconds")
    not_negative("restart_seconds", restart_seconds, "seconds")
    if interval_seconds is not None:
        positive("interval_seconds", interval_seconds, "seconds")
    between_failures = 3600 * mtbf_hours / devices
    interval = interval_seconds or (2 * checkpoint_seconds * between_failures) ** 0.5
    saving, again, restarts = (
        checkpoint_seconds / interval,
        interval / 2 / between_failures,
        restart_seconds / between_failures,
    )
    share = 1 / (1 + (saving + again + restarts))
    parts = f"{saving:.1%} checkpoints, {again:.1%} trained again, {restarts:.1%} restarts"
    rows = [
        ["failures", f"one in {amount(between_failures, 's')}: {mtbf_hours:,.0f} hours of a device each"],
        ["checkpoints", f"{amount(checkpoint_seconds, 's')} each, every {amount(interval, 's')}"],
        ["goodput", f"{share:.1%}: of 30 days {30 * share:.1f} train (lost: {parts})"],
    ]
    return share, rows
