"""Measuring the speed of pipelines and of `fit`, profiling a step, and finding the origin of a NaN."""
