"""The factor by which all measurements take longer, for a slow or busy machine.

It is the environment variable BIGTRAIN_NB_TIME_SCALE, read at each measurement: 3 is three times as long, 0.5 half.
"""

import os

from bigtrain_nb.common.checks import positive

VARIABLE = "BIGTRAIN_NB_TIME_SCALE"


def time_scale():
    """Return the factor, by default 1; raise ValueError unless it is positive and finite."""
    said = os.environ.get(VARIABLE, "").strip() or 1
    try:
        return positive(VARIABLE, float(said))
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={said} must be a positive, finite number: with 3, measurements take three times as long"
        ) from None


def scaled_seconds(seconds):
    """Return `seconds` times the time scale; raise ValueError unless both are positive and finite."""
    return positive("seconds", seconds, "seconds") * time_scale()
