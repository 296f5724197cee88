"""The launcher: configuration, checkpoints, progress, report."""
