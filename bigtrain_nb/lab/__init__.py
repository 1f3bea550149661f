"""Widgets over measuring and planning.

The Lab in the order in which things happen: `controls` checks what is chosen, `jobs` plans the measurement and does it,
`runs` says and draws what came out, `export` writes it down. `lab` holds these together, `view` is its screen. The
`planner` needs no measuring. `fields` has the widgets of both.
"""
