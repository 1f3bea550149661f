"""Shared utilities: TensorFlow without its messages, checks of settings, number formatting, cards, hardware."""
