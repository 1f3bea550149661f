"""Custom CUDA kernels, written as text in a notebook."""
