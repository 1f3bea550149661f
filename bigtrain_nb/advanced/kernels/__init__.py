"""Custom CUDA kernels, written as strings in a notebook."""
