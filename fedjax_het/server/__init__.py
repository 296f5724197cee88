"""How the server moves."""

from fedjax_het.server.fedopt import optimizer, sgd

__all__ = ["optimizer", "sgd"]
