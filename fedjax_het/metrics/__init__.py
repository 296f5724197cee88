"""Metrics of one client (`classification`), of all together (`fairness`), and their names (`catalogue`)."""
