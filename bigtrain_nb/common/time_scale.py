"""How many times as long everything measures, for a slow or busy machine: one number for all of it.

The environment variable BIGTRAIN_NB_TIME_SCALE holds it and is read at each measurement: 3 is three times as long, 0.5
half as long.
"""

import os

from bigtrain_nb.common.checks import positive

VARIABLE = "BIGTRAIN_NB_TIME_SCALE"


def time_scale():
    """The number; 1 where none is set. Raises ValueError for what is no positive, finite number."""
    said = os.environ.get(VARIABLE, "").strip() or 1
    try:
        return positive(VARIABLE, float(said))
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={said} must be a positive, finite number: with 3 everything measures three times as long"
        ) from None


def scaled_seconds(seconds):
    """The `seconds` of a measurement, times the time scale. Raises ValueError for what is not positive and finite."""
    return positive("seconds", seconds, "seconds") * time_scale()
