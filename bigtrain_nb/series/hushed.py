"""Silence exporters and 8-bit kernels, which print many warnings, logs and lines on file descriptor 2."""

import logging
import warnings
from contextlib import contextmanager

from bigtrain_nb.common.quiet import quiet_start


@contextmanager
def hushed():
    """Suppress this output while the block runs; if the block raises, file descriptor 2's is written after all."""
    logging.disable(logging.CRITICAL)
    try:
        with quiet_start(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
