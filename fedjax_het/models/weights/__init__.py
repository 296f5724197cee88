"""Files of named arrays, PyTorch's parameter names, and models that start from the weights of a file."""

from fedjax_het.models.weights.starting import by_name, with_weights

__all__ = ["by_name", "with_weights"]
