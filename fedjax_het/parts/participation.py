"""The participation part of an algorithm: who takes part in a round, who arrives, how much each works."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_het.parts.message import PyTree
from fedjax_het.parts.needs import Needs


class Draw(NamedTuple):
  """A round's cohort of S rows.

  Attributes:
    ids: the clients' indices, int32 [S], without repetition, also where nobody is present.
    present: whether the client's upload arrives, bool [S].
    work: share in (0, 1] of its local steps that the client takes, float32 [S].
    probability: the probability with which the client of this row is present in a round, float32 [S].
    state: the part's next state.
  """

  ids: jax.Array
  present: jax.Array
  work: jax.Array
  probability: jax.Array
  state: PyTree = ()


class Participation(NamedTuple):
  """Who takes part in a round; by default S of K clients, uniformly, all of whom arrive.

  Attributes:
    draw: (key, round, state, K, S) -> `Draw`. The key is one for all rounds, so that what stays with a client
      can be drawn from it; fold the round in for the rest. None for the default.
    init: (K) -> state.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`.
    cuts_work: whether `Draw.work` may be below 1, for which client parts need a `LocalTraining`.
  """

  draw: Callable[[jax.Array, jax.Array, PyTree, int, int], Draw] | None = None
  init: Callable[[int], PyTree] = lambda num_clients: ()
  name: str = "uniform"
  needs: Needs = Needs()
  cuts_work: bool = False
