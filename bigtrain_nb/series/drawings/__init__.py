"""Pictures that one notebook draws."""
