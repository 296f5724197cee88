"""The models by name, one family a file."""
