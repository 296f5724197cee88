"""Runs beside one another: what differs between their configurations, and between what came out."""
