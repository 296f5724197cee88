"""The attack part of an algorithm: what dishonest clients do with their rows, and what they send instead."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_het.parts.message import PyTree
from fedjax_het.parts.needs import Needs


class Attack(NamedTuple):
  """What dishonest clients do; by default there are none.

  round(share·K) of the K clients are dishonest, drawn from the run's key, the same in every round. An attack
  sees what no client sees: the updates of the whole cohort.

  Attributes:
    share: the share of dishonest clients, in [0, 1].
    data: (index int [B], x [B, ...], y [B, ...], number of classes C) -> (x, y), the training rows of a
      dishonest client instead of the real ones; index is a row's number within the client. None for honest
      rows.
    forge: (key, updates, dishonest bool [S], present bool [S]) -> updates, of which those of the dishonest
      clients are read; the attack sees the updates of the clients that are present, whose uploads arrive.
      Updates are trees, each leaf [S, ...], float32: of every field the difference from the broadcast, or the
      upload itself where it is a signal (`Needs.uploads_model`). None for updates as they are.
    name: the attack's name, for reports.
    needs: what the part requires of the run, see `Needs`.
  """

  share: float | jax.Array = 0.0
  data: Callable[..., tuple[PyTree, jax.Array]] | None = None
  forge: Callable[[jax.Array, PyTree, jax.Array, jax.Array], PyTree] | None = None
  name: str = "none"
  needs: Needs = Needs()

  @property
  def there(self) -> bool:
    """Whether the part does something."""
    return self.data is not None or self.forge is not None
