"""Configurations as files return them, with other values of some fields."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.config import values
from fedjax_het.config.plan import written


def with_values(config: ConfigDict, changes: Mapping[str, Any]) -> ConfigDict:
  """A copy with other values of some dotted fields."""
  return ConfigDict(values.with_values(written(config), changes), type_safe=False)
