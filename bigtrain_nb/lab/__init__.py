"""Widgets over measuring and planning.

`controls` checks what is chosen in a Lab, `lab` measures it, `runs` says, draws and writes down what came out, `view`
is its screen. The `planner` needs no measuring. `fields` has the widgets of both.
"""
