"""Real data on disk, input pipelines built from settings, and their bottlenecks."""
