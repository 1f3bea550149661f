"""The layer above the helper: models that do not fit, plans, profiles, checks before a run. The helper imports none."""
