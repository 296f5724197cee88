"""Successive halving: at which rounds a batch of trials is compared, how many go on, and what that costs.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
"""

import math
from collections.abc import Sequence

RUNGS = 3
BATCH = 8  # trials that begin together by default


def rung_rounds(rounds: int) -> list[int]:
  """Returns the rounds of the rungs, ⌈kT/3⌉ for k = 1, 2, 3; fewer if T < 3. The last one is T.

  Args:
    rounds: T, the rounds of a whole run.
  """
  return sorted({math.ceil(k * rounds / RUNGS) for k in range(1, RUNGS + 1)})


def batches(trials: int, batch: int) -> list[range]:
  """Returns the numbers of each batch's trials: `batch` of them, and the rest in the last one."""
  return [range(first, min(first + batch, trials)) for first in range(0, trials, batch)]


def members(trials: int, rungs: int) -> list[int]:
  """Returns how many of a batch's trials train up to each rung: all, then ⌈n/2⌉ of the n before."""
  found = [trials]
  while len(found) < rungs:
    found.append(math.ceil(found[-1] / 2))
  return found


def budget(trials: int, batch: int, rounds: int) -> int:
  """Returns the rounds that all trials train together: Σ_batches Σ_k n_k (r_k - r_{k-1})."""
  ends = rung_rounds(rounds)
  lengths = [end - begin for begin, end in zip([0, *ends], ends)]
  return sum(
    n * length for own in batches(trials, batch) for n, length in zip(members(len(own), len(ends)), lengths)
  )


def better_half(values: Sequence[float], maximize: bool) -> list[int]:
  """Returns the places of the ⌈n/2⌉ best of n values, in order; the first of equal ones, and never a NaN.

  Args:
    values: what each trial reached, [n]; NaN for one that diverged.
    maximize: whether higher is better.
  """
  known = [place for place, value in enumerate(values) if not math.isnan(value)]
  best = sorted(known, key=lambda place: -values[place] if maximize else values[place])
  return sorted(best[: math.ceil(len(values) / 2)])
