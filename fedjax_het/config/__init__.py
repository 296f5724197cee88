"""Turns a configuration from a file and the command line into the typed plan of a run."""
