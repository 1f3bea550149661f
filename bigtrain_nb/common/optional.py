"""Optional packages, such as widgets for the workbook: if one is missing, the error says how to install it."""

from contextlib import contextmanager


@contextmanager
def needed_by(what):
    """Import an optional package in this context, for ``what``."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{what} needs {error.name}, which is not installed here: run pip install "PATH[workbook]", where PATH is'
            " the clone or wheel of bigtrain_nb",
            name=error.name,
        ) from None
