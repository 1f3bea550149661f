"""Packages that only a workbook needs, as widgets: where one is not installed, a sentence says how to get it."""

from contextlib import contextmanager


@contextmanager
def needed_by(what):
    """Import an optional package in this context, for ``what``.

    Raises ModuleNotFoundError that says how to install the package if it is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{what} needs {error.name}, which is not installed here: pip install "PATH[workbook]" brings it; PATH is'
            " the clone or wheel of bigtrain_nb",
            name=error.name,
        ) from None
