"""Widgets over measuring and planning.

The Lab in the order in which things happen: `controls` checks what is chosen, `jobs` measures it, `runs` says, draws
and writes down what came out. `lab` holds these together, `view` is its screen. The `planner` needs no measuring.
`fields` has the widgets of both.
"""
