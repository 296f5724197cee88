"""Tuning of a configuration's numbers on the clients' validation parts, by Optuna and successive halving."""
