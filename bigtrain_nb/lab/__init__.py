"""Widgets over measuring and planning."""
