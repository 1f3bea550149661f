"""The exercises of each notebook: solution, check, hint, and wrong answers that the check must refuse."""
