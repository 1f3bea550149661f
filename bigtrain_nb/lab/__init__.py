"""Widgets over measuring.

`controls` checks what is chosen in a Lab, `lab` measures it, `runs` says, draws and writes down what came out, `view`
is its screen, of the widgets in `fields`.
"""
