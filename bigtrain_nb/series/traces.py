"""Synthetic traces of a worker's training, each with one fault, for an exercise of notebook 11.

A trace is a list of spans (start, end, thread, name), times in milliseconds, for three steps.
"""

import numpy as np

FAULTS = ("input", "op storm", "retracing", "another worker", "compute")
"""The causes of slow traces."""
STEPS = 3


def trace(fault, seed):
    """Return a trace whose steps this fault slows down; it varies with the seed."""
    random = np.random.default_rng([FAULTS.index(fault), seed])
    spans = []
    now = 0.0

    def add(thread, name, milliseconds):
        nonlocal now
        end = now + milliseconds * random.uniform(0.8, 1.2)
        spans.append((now, end, thread, name))
        now = end

    for _ in range(STEPS):
        add("Python", "wait for a batch", 60 if fault == "input" else 0.5)
        if fault == "retracing":
            add("Python", "trace the function", 80)
        operations, each = (400, 0.1) if fault == "op storm" else (8, 2)
        if fault == "compute":
            each = 12
        for _ in range(operations):
            add("operations", "operation", each)
            now += 0.03  # between operations
        add("operations", "wait in all-reduce", 70 if fault == "another worker" else 1)
    return spans
