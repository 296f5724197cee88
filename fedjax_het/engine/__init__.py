"""Rounds over many clients on many devices; knows no method."""
