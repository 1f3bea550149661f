"""Predictions of the memory, operations and time of a training step, from a few numbers or a model's graph."""
