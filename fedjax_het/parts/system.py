"""The system part of an algorithm: how long the clients and the server take."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_het.parts.needs import Needs


class Speeds(NamedTuple):
  """How fast the clients are.

  Attributes:
    step_seconds: seconds in which each client computes one gradient of a mini-batch, > 0, float32 [K].
    bytes_per_second: bytes that each client receives or sends in a second, > 0, float32 [K].
  """

  step_seconds: jax.Array
  bytes_per_second: jax.Array


class System(NamedTuple):
  """How long clients and server take, in simulated seconds; by default nobody asks.

  The clients of a round work side by side. Client i, which receives b bytes, takes n_i local steps of g
  gradients each and sends u bytes, is done after

      (b + u) / (bytes a second of i) + n_i g · (seconds a gradient of i)

  seconds. A round lasts until the last one that arrives is done, or until the `deadline` if one that was
  asked does not arrive, and then the seconds of the server.

  Attributes:
    speeds: (key, sizes int32 [K]) -> `Speeds`, for a key of the run's own and the clients' numbers of
      examples. None for a run that simulates no time.
    server_seconds: seconds that the server takes in a round, >= 0.
    deadline: seconds, > 0, that the server waits. A client takes as many of its local steps as fit before it,
      and one that cannot do one step is lost. Infinity for no deadline.
    over_selection: o >= 1. ⌈o S⌉ clients are asked, the S that are done first arrive, and the uploads of the
      others are dropped.
    name: the part's name, for reports.
    needs: what the part requires of the run, see `Needs`.
  """

  speeds: Callable[[jax.Array, jax.Array], Speeds] | None = None
  server_seconds: float | jax.Array = 0.0
  deadline: float | jax.Array = math.inf
  over_selection: float | jax.Array = 1.0
  name: str = "none"
  needs: Needs = Needs()

  @property
  def there(self) -> bool:
    """Whether the run simulates time."""
    return self.speeds is not None

  @property
  def selects(self) -> bool:
    """Whether who arrives may depend on the time."""
    return self.has_deadline or self.over_selects

  @property
  def has_deadline(self) -> bool:
    """Whether there may be a deadline; a value of a program may be one."""
    return isinstance(self.deadline, jax.Array) or self.deadline != math.inf

  @property
  def over_selects(self) -> bool:
    """Whether more clients than a cohort may be asked; a value of a program may say so."""
    return isinstance(self.over_selection, jax.Array) or self.over_selection != 1.0
