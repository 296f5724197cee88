"""Metrics of one client (`classification`) and of all of them together (`fairness`)."""
