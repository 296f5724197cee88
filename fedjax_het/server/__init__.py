"""How the server moves."""

from fedjax_het.server.fedopt import adagrad, adam, optimizer, sgd, yogi

__all__ = ["adagrad", "adam", "optimizer", "sgd", "yogi"]
