"""Comparison of runs: the differences between their configurations and between their results."""
