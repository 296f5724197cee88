"""Model factories, one module per family of models."""
