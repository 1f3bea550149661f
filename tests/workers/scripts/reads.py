"""A worker that asks for input."""

input()
