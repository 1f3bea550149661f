"""Figures used by a single notebook."""
