"""`Model` and micro-batches, devices, schedules, loss scale, small models, and checkpoints.

A training goes on from these at any step: on one device or many, after a crash or after SIGTERM.
"""
