"""Measuring the speed of `fit`, profiling a step, and finding the origin of a NaN."""
