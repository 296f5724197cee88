"""Client parts of the federated methods (`ClientUpdate`), one module per method."""
