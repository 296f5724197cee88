"""Detects runs that became NaN or infinite, and where this began."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import NonFiniteLoss

PyTree = Any
Seen = TypeVar("Seen", Evaluation, Evaluations)


class Divergence(NamedTuple):
  """The first non-finite value of a run: a training loss, or else the server's next broadcast.

  Attributes:
    round: round of the loss, counted from 1; for a broadcast the number of rounds after which it was noticed.
    client: index of the client with that loss; None for a broadcast.
    loss: "nan", "inf" or "-inf"; None for a broadcast.
    dishonest: whether the client attacks.
  """

  round: int
  client: int | None = None
  loss: str | None = None
  dishonest: bool = False

  def __str__(self) -> str:
    """Returns a sentence without its full stop."""
    if self.client is None:
      return (
        f"What the server sends became NaN or infinite by round {self.round}, though no training loss did: "
        "an upload, a mixing coefficient or the server's step was"
      )
    which = ", which is dishonest" if self.dishonest else ""
    return f"The training loss became {self.loss} in round {self.round} at client {self.client}{which}"

  @property
  def fields(self) -> dict[str, Any]:
    """Fields of summary.json and of checkpoints; `dishonest` only where it is so."""
    return {name: own for name, own in self._asdict().items() if own or name != "dishonest"}


def divergence(first_round: int, infos: RoundInfo, sound: bool) -> Divergence | None:
  """Returns where a run stops being finite in some rounds, or None.

  Args:
    first_round: number of rounds before these.
    infos: the run's infos, NumPy arrays [T, S].
    sound: whether the server's broadcast after these rounds is finite, which the last round's losses do not
      show.
  """
  bad = np.argwhere(~np.isfinite(infos.clients.loss))
  if not len(bad):
    return None if sound else Divergence(int(first_round + len(infos.cohort)))
  at, slot = bad[0]
  loss = infos.clients.loss[at, slot]
  liar = not isinstance(infos.dishonest, tuple) and bool(infos.dishonest[at, slot])
  return Divergence(int(first_round + at + 1), int(infos.cohort[at, slot]), str(loss), liar)


def finite(broadcast: PyTree) -> jax.Array:
  """Returns whether a broadcast is finite, boolean scalar; for compiled programs."""
  return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(broadcast)]).all()


def finite_here(broadcast: PyTree) -> bool:
  """Returns whether a broadcast is finite; by NumPy, so that no program per array is compiled."""
  return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(broadcast))


def check_finite(found: Divergence | None) -> None:
  """Raises `NonFiniteLoss` if a single run has diverged."""
  if found:
    remedy = "Lower the learning rate" + (", or look at that client's data" if found.loss else "s")
    if found.dishonest:
      remedy = (
        "Use an aggregation that withstands the attack, a smaller attack.share, or a lower learning rate"
      )
    raise NonFiniteLoss(f"{found}. {remedy}.")


def check_any_left(names: Sequence[str], found: Sequence[Divergence | None]) -> None:
  """Raises `NonFiniteLoss`, with member, round and client of each divergence, if all members diverged."""
  if all(found):
    where = "; ".join(f"{name}: {own}" for name, own in zip(names, found))
    raise NonFiniteLoss(f"Every member has diverged. {where}. Lower the learning rates.")


def unknown(evaluations: Seen) -> Seen:
  """Returns NaN for every metric, as a diverged model would have the top-1 of the first class."""

  def without_value(values: np.ndarray) -> np.ndarray:
    return values if values.dtype == bool else np.full_like(values, np.nan)  # flags say who was evaluated

  return jax.tree.map(without_value, evaluations)
