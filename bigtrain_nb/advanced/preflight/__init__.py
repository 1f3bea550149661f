"""Checks of a training before it runs: preflight.py lists the files of checks in order."""
