"""Real data on disk, and input pipelines built from settings."""
