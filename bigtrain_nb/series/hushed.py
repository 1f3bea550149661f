"""Exporters and 8-bit kernels talk much: through warnings, through logs, and on file descriptor 2."""

import logging
import warnings
from contextlib import contextmanager

from bigtrain_nb.common.quiet import quiet_start


@contextmanager
def hushed():
    """Hear none of it while the block runs. What raises still raises, and then says what it has to say."""
    logging.disable(logging.CRITICAL)
    try:
        with quiet_start(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
