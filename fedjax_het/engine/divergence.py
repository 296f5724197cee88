"""Runs whose training loss became NaN or infinite: where it began, and what is still known of them."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_het.engine.pick import Evaluations
from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import NonFiniteLoss


class Divergence(NamedTuple):
  """The first training loss of a run that was not finite.

  Attributes:
    round: its round, from 1.
    client: its client's number.
    loss: "nan", "inf" or "-inf".
  """

  round: int
  client: int
  loss: str

  def __str__(self) -> str:
    """As a sentence without its end."""
    return f"The training loss became {self.loss} in round {self.round} at client {self.client}"


def divergence(first_round: int, infos: RoundInfo) -> Divergence | None:
  """Where a run's losses stop being finite, if they do, in rounds that follow `first_round` others.

  Args:
    first_round: rounds done before.
    infos: one run's, NumPy arrays [T, S].
  """
  bad = np.argwhere(~np.isfinite(infos.clients.loss))
  if not len(bad):
    return None
  at, slot = bad[0]
  loss = infos.clients.loss[at, slot]
  return Divergence(int(first_round + at + 1), int(infos.cohort[at, slot]), str(loss))


def check_any_left(names: Sequence[str], found: Sequence[Divergence | None]) -> None:
  """Raises `NonFiniteLoss` naming member, round and client of each divergence where no member is without."""
  if all(found):
    where = "; ".join(f"{name}: {own}" for name, own in zip(names, found))
    raise NonFiniteLoss(f"Every member has diverged. {where}. Lower the learning rates.")


def unknown(evaluations: Evaluations) -> Evaluations:
  """NaN for every metric: a diverged model's top-1 would be that of whichever class stands first."""
  return jax.tree.map(lambda values: np.full_like(values, np.nan), evaluations)
