"""Throughput measurements and comparisons, without importing TensorFlow."""
