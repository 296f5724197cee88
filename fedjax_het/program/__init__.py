"""Shared parts of all command-line programs: devices, signals, and the reporting of mistakes."""
