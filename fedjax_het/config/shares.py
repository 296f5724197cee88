"""Converts settings that papers give as a share of the rounds T to numbers of rounds."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_het.errors import SettingError, check_choice, check_range
from fedjax_het.methods import CLIENTS


def in_rounds(algorithm: Mapping[str, Any], rounds: int) -> dict[str, Any]:
  """Returns `algorithm` with shares of T converted to rounds: start = 0.4 -> L = ⌊0.4 T⌋.

  A share of 1 means never, L = ∞, for methods that allow it. A product within 10⁻⁶ of a whole number is
  rounded to it (0.29 · 100 = 28.999...96). None means not set.

  Raises:
    SettingError: the method is unknown, a share is outside [0, 1], or a share and its number of rounds are
      both set.
  """
  check_choice("algorithm.name", algorithm["name"], CLIENTS)
  resolved = dict(algorithm)
  for share, number in CLIENTS[algorithm["name"]].shares.items():
    value = resolved.pop(share, None)
    if value is None:
      continue
    if number in resolved:
      raise SettingError(
        f"algorithm.{number}", resolved[number], f"given beside algorithm.{share} = {value}, a share of T",
        f"Give one of them: algorithm.{share}=None leaves the share out.",
      )  # fmt: skip
    try:
      check_range(f"algorithm.{share}", value, 0.0, 1.0, on_host=True)
    except SettingError as error:
      error.args = (f"{error} {share} is a share of the rounds, {number} a number of rounds.",)
      raise
    resolved[number] = math.inf if value == 1.0 else math.floor(round(value * rounds, 6))
  return resolved


def rounded_to_nothing(algorithm: Mapping[str, Any], rounds: int) -> list[str]:
  """Returns a sentence for each positive share of T that is less than one round."""
  resolved, shares = in_rounds(algorithm, rounds), CLIENTS[algorithm["name"]].shares
  return [
    f"algorithm.{share} = {algorithm[share]} is none of {rounds} rounds: the run is as with 0."
    for share, number in shares.items()
    if algorithm.get(share) and resolved[number] == 0
  ]
