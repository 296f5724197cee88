"""Data: loaders, partitioners and the flat container of all clients."""

from fedjax_het.data.container import ClientData, FederatedData, federate
from fedjax_het.data.partition import (
  PARTITIONERS,
  dirichlet,
  iid,
  natural,
  partition,
  pathological,
  primary_class,
)
from fedjax_het.data.sources import DATASETS, Source, load

__all__ = [
  "DATASETS", "PARTITIONERS", "ClientData", "FederatedData", "Source", "dirichlet", "federate", "iid", "load",
  "natural", "partition", "pathological", "primary_class",
]  # fmt: skip
