"""Save a training at any step, and go on from there: on one device or many, after a crash or after SIGTERM."""
