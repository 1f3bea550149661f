"""The scripts that the notebooks show and run. A package, so that no other `scripts` is imported instead."""
