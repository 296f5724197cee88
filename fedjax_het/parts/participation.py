"""The participation part of an algorithm: who takes part in a round, who arrives, how much each works."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_het.parts.message import PyTree
from fedjax_het.parts.needs import Needs
from fedjax_het.parts.privacy import Sampling


class Draw(NamedTuple):
  """A round's cohort, in the R rows that a program has for it; R = S unless `Participation.rows` differs.

  Attributes:
    ids: the clients' indices, int32 [R], without repetition, also where nobody is present.
    present: whether the client's upload arrives, bool [R].
    work: share in (0, 1] of its local steps that the client takes, float32 [R].
    probability: the probability with which the client of this row is present in a round, float32 [R].
    state: the part's next state.
    contacted: whom the server sends its broadcast, bool [R]: those that are present, and those whose upload
      is lost. None for those that are present.
    beyond: how many clients were drawn and had no row, int32 scalar; None for a part that draws R at most.
  """

  ids: jax.Array
  present: jax.Array
  work: jax.Array
  probability: jax.Array
  state: PyTree = ()
  contacted: jax.Array | None = None
  beyond: jax.Array | None = None


class Participation(NamedTuple):
  """Who takes part in a round; by default S of K clients, uniformly, all of whom arrive.

  Attributes:
    draw: (key, round, state, K, R) -> `Draw`. The key is one for all rounds, so that what stays with a client
      can be drawn from it; fold the round in for the rest. None for the default.
    init: (key, sizes int32 [K], S) -> state, for the key of `draw` and the clients' numbers of examples.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`.
    cuts_work: whether `Draw.work` may be below 1, for which client parts need a `LocalTraining`.
    rows: (K, S) -> R, the number of rows that a program has for a cohort, S by default.
    ahead: whether `draw` returns its state unchanged, so that the cohorts of coming rounds are known before
      the rounds are trained, as `device_rows` and `device_states` need; others are refused beside these.
    unbiased: whether the update of a client that arrives counts w_i / `Draw.probability`, w_i =
      `Mixing.population`, so that the expectation of the aggregate is that of all K clients.
    sampling: (K, S) -> what is guaranteed of who takes part, see `Sampling`; None for what `sampled` says.
  """

  draw: Callable[[jax.Array, jax.Array, PyTree, int, int], Draw] | None = None
  init: Callable[[jax.Array, jax.Array, int], PyTree] = lambda key, sizes, cohort_size: ()
  name: str = "uniform"
  needs: Needs = Needs()
  cuts_work: bool = False
  ahead: bool = False
  unbiased: bool = False
  rows: Callable[[int, int], int] = lambda num_clients, cohort_size: cohort_size
  sampling: Callable[[int, int], Sampling] | None = None

  def sampled(self, num_clients: int, cohort_size: int, keeps_state: bool = False) -> Sampling:
    """Returns what is guaranteed of cohorts of S of K clients: of a part that does not say, nothing.

    Clients that keep a state between rounds show by it when they took part, so that their chance of being
    left out protects nobody: then nothing is guaranteed either, but the separation of rounds.
    """
    if self.sampling is not None:
      found = self.sampling(num_clients, cohort_size)
    else:
      whole = self.draw is None
      kind = "fixed" if whole else "any"
      found = Sampling(self.name, kind, num_clients, cohort_size, float(cohort_size), all_arrive=whole)
    return found._replace(kind="any") if keeps_state else found
