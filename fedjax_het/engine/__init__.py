"""Rounds of federated training over many clients and devices; independent of the methods."""
