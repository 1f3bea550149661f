"""The exercises of each notebook: solution, check, hint, and what the check must refuse."""
