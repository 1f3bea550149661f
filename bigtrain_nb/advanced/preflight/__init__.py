"""A training that exists is examined before it runs: see preflight.py, which names the files of checks in order."""
