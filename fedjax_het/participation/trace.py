"""Participation by a recorded trace of who was there when."""

import collections
from typing import Unpack

import jax.numpy as jnp
import numpy as np

from fedjax_het.data.lines import numbered_lines
from fedjax_het.errors import DataError, SettingError
from fedjax_het.participation.among import Arrival, among
from fedjax_het.parts import Needs, Participation, Sampling
from fedjax_het.settings import checked, with_defaults


def read_trace(path: str) -> np.ndarray:
  """Reads lines "client, from round, to round"; int32 [lines, 3]. Lines that begin with # are comments.

  Raises:
    SettingError: the file cannot be read.
    DataError: a line is not three whole numbers with client >= 0 and 0 <= from < to.
  """
  found = []
  for number, line in numbered_lines(path):
    try:
      client, first, last = (int(field) for field in line.split(","))
      fits = 0 <= client < 2**31 and 0 <= first < last < 2**31
    except ValueError:
      fits = False
    if not fits:
      raise DataError(
        f"{path}, line {number}: {line!r} is not client, from round, to round, with 0 <= from < to."
      )
    found.append((client, first, last))
  return np.array(found, np.int32)


def mean_size(lines: np.ndarray, cohort_size: int) -> float:
  """Computes the mean of min(S, A_t) over the rounds t up to the last of a file, A_t clients present.

  Args:
    lines: int [lines, 3], see `read_trace`; lines of one client may overlap.
    cohort_size: S.
  """
  changes: collections.Counter[int] = collections.Counter({0: 0})
  counted: dict[int, int] = {}  # client -> the round up to which it is counted
  for client, first, last in sorted(map(tuple, lines.tolist()), key=lambda line: line[1]):
    begin = max(first, counted.get(client, 0))
    if begin < last:
      changes[begin] += 1
      changes[last] -= 1
      counted[client] = last
  times = sorted(changes)
  there = np.cumsum([changes[t] for t in times])[:-1]
  return float(np.average(np.minimum(there, cohort_size), weights=np.diff(times)))


@checked
def trace(path: str = "", **arrival: Unpack[Arrival]) -> Participation:
  """S of the clients that a file has as present: client i in the rounds from <= t < to of its lines.

  An aggregation that divides by the mean size of a cohort takes that of the rounds up to the file's last.

  Args:
    path: a text file with lines "client, from round, to round", all counted from 0.
    **arrival: dropouts and partial work, see `Arrival`.

  Raises:
    SettingError: the file cannot be read; from `check_cohort`, it has a client that does not exist.
    DataError: a line is not three such numbers.
  """
  if not path:
    raise SettingError("path", path, "names no file", 'Name one with lines "client, from round, to round".')
  lines = read_trace(path)

  def check_cohort(size: int, num: int) -> None:
    if (most := int(lines[:, 0].max())) >= num:
      raise SettingError(
        "path", path, f"it has a client {most}, and there are {num}", "Count clients from 0."
      )

  def there(key, round, state, num):
    client, first, last = jnp.asarray(lines).T
    now = jnp.zeros(num, bool).at[client].max((first <= round) & (round < last))
    return now, now.astype(jnp.float32)

  def sampling(num, size):
    return Sampling("trace", "any", num, size, mean_size(lines, size))

  needs = Needs(check_cohort=check_cohort)
  return among(there, "trace", with_defaults(Arrival, arrival), needs, sampling=sampling)
