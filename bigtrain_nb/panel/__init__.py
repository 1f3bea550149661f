"""The parts of a Lab: its controls, its runs, what it shows."""
