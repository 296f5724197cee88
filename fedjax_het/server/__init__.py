"""How the server moves."""

from fedjax_het.server.fedopt import adagrad, adam, optimizer, sgd, yogi
from fedjax_het.server.sgld import sgld

__all__ = ["adagrad", "adam", "optimizer", "sgd", "sgld", "yogi"]
