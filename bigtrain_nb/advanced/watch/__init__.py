"""How fast `fit` is, where the time of a step goes, where a NaN comes from."""
