"""Layers above the helper, which imports none: large models, text, plans, measurements, checks before a run."""
