"""`Model` and micro-batches, devices, schedules, loss scale, small models, and checkpoints.

Training resumes from a checkpoint at any step: on one device or many, after a crash or SIGTERM.
"""
