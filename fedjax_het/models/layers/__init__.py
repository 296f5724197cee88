"""Layers that stay fast when clients are stacked."""
