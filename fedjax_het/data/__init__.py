"""Data: loaders of data sets, partitioners, label noise, and the flat container of all clients' examples."""

from fedjax_het.data.clients import label_counts, select, split_clients
from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.data.feature_shift import SHIFTS, feature_shift, growing_noise, rotations
from fedjax_het.data.federate import federate
from fedjax_het.data.folder import from_folder
from fedjax_het.data.huggingface import from_huggingface
from fedjax_het.data.label_noise import LABEL_NOISES, label_noise, pair_flip, symmetric_flip
from fedjax_het.data.own import from_arrays, from_groups
from fedjax_het.data.partition import (
  PARTITIONERS,
  check_tries,
  client_dirichlet,
  dirichlet,
  iid,
  natural,
  partition,
  pathological,
  primary_class,
)
from fedjax_het.data.skews import extended_dirichlet, label_quantity, power_law, quantity_skew
from fedjax_het.data.sources import Source, load, names
from fedjax_het.data.table import from_table
from fedjax_het.data.text import from_text, text_tokenizer

__all__ = [
  "LABEL_NOISES", "PARTITIONERS", "SHIFTS", "ClientData", "FederatedData", "Source", "check_tries",
  "client_dirichlet", "dirichlet", "extended_dirichlet", "feature_shift", "federate", "from_arrays",
  "from_folder", "from_groups", "from_huggingface", "from_table", "from_text", "growing_noise", "iid",
  "label_counts", "label_noise", "label_quantity", "load", "names", "natural", "pair_flip", "partition",
  "pathological", "power_law", "primary_class", "quantity_skew", "rotations", "select", "split_clients",
  "symmetric_flip", "text_tokenizer",
]  # fmt: skip
