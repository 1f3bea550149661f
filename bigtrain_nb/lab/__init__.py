"""Widgets for measurements.

`controls` checks a Lab's settings, `lab` measures them, `runs` describes, draws and exports the results, `view` is the
user interface, built from the widgets in `fields`. `race` finds the fastest of many settings.
"""
