"""Speeds of clients by a recorded trace."""

import math
from typing import Unpack

import jax.numpy as jnp
import numpy as np

from fedjax_het.data.lines import numbered_lines
from fedjax_het.errors import DataError, SettingError
from fedjax_het.parts import Needs, Speeds, System
from fedjax_het.settings import checked
from fedjax_het.system.speeds import Timing, check_deadline, system_of


def read_speeds(path: str) -> np.ndarray:
  """Reads lines "client, seconds a gradient, bytes a second"; float32 [K, 2], in the order of the clients.

  Lines that begin with # are comments.

  Raises:
    SettingError: the file cannot be read.
    DataError: a line is not a client's number and two numbers above 0, names a client again, or a client
      between the least and the largest has no line.
  """
  found: dict[int, tuple[float, float]] = {}
  for number, line in numbered_lines(path):
    try:
      first, *fields = line.split(",")
      client, (step, link) = int(first), (float(np.float32(field)) for field in fields)
      fits = 0 <= client < 2**31 and 0 < step < math.inf and 0 < link < math.inf
    except ValueError:
      fits = False
    if not fits:
      raise DataError(
        f"{path}, line {number}: {line!r} is not client, seconds a gradient, bytes a second, both above 0."
      )
    if client in found:
      raise DataError(f"{path}, line {number}: client {client} has a line already.")
    found[client] = step, link
  if missing := sorted({*range(max(found))} - {*found})[:1]:
    raise DataError(f"{path}: client {missing[0]} has no line; clients are counted from 0.")
  return np.array([found[client] for client in range(len(found))], np.float32)


@checked
def trace(path: str = "", **timing: Unpack[Timing]) -> System:
  """Each client as fast as its line of a file says.

  Args:
    path: a text file with a line "client, seconds a gradient, bytes a second" for each client, counted from
      0; the seconds are those of one gradient of a mini-batch. Of more clients than there are, the first ones
      count.
    **timing: see `Timing`.

  Raises:
    SettingError: the file cannot be read; from `check_cohort`, it has fewer clients than there are.
    DataError: a line is not three such numbers, or a client has none or two.
  """
  check_deadline(timing)
  if not path:
    problem = 'Name one with lines "client, seconds a gradient, bytes a second".'
    raise SettingError("path", path, "names no file", problem)
  own = read_speeds(path)

  def speeds(key, sizes):
    return Speeds(*jnp.asarray(own[: len(sizes)]).T)

  def check_cohort(size: int, num: int) -> None:
    if len(own) < num:
      problem = f"has {len(own)} clients, and there are {num}"
      raise SettingError("path", path, problem, "Write a line for each client.")

  return system_of("trace", speeds, timing, Needs(check_cohort=check_cohort))
