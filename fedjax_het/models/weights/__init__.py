"""Weight files, PyTorch's parameter names, and models whose initial weights are read from a file."""

from fedjax_het.models.weights.starting import by_name, with_weights

__all__ = ["by_name", "with_weights"]
