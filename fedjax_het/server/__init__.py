"""Server parts: steps of the global state along the clients' aggregate (`ServerUpdate`)."""

from fedjax_het.server.drift import drift
from fedjax_het.server.fedopt import adagrad, adam, avgm, optimizer, sgd, yogi
from fedjax_het.server.particles import particles
from fedjax_het.server.sgld import sgld

__all__ = ["adagrad", "adam", "avgm", "drift", "optimizer", "particles", "sgd", "sgld", "yogi"]
