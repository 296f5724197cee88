"""The mixing part of an algorithm: how much each client of a cohort counts."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from fedjax_het.errors import renamed
from fedjax_het.parts.client import ClientUpdate
from fedjax_het.parts.message import Feedback, PyTree
from fedjax_het.parts.needs import Needs


@renamed(**{name: f"needs.{name}" for name in Needs._fields})
class Mixing(NamedTuple):
  """How much each client of a cohort counts.

  Attributes:
    init: (sizes int32 [K]) -> state.
    update: (state, feedback) -> (coefficients p, float32 [S], >= 0 with sum 1; state).
    name: the method's name, for reports.
    scale: (feedback) -> s, float32 [S], for a part that lengthens or shortens the clients' updates before
      they are mixed: the server part then receives θ + Σ_i p_i s_i (θ_i - θ) for the broadcast's params θ.
      None mixes the uploads as they are, bit for bit.
    figures: (feedback) -> name -> float32 scalar, per-round diagnostics for logging; never fed back into
      training. None for none.
    needs: what the part requires of the run, see `Needs`.
    even: whether p_i = 1/S in every round, whatever the clients' data.
    takes_absent: whether p is right where clients are absent, because p_i is the client's own weight over the
      cohort's sum, which is renormalised over those that arrive, or because the part reads
      `Feedback.present`; others are refused where clients may be absent.
    population: (sizes int32 [K]) -> w, float32 [K], the coefficients if all K clients took part, for a part
      whose coefficients depend on the sizes alone; None for others, which `Participation.unbiased` refuses.
    adapt_to: (client part) -> the mixing part for it, if it depends on it, for example on how its local steps
      add up; `federated` calls it. None for most methods.
  """

  init: Callable[[jax.Array], PyTree]
  update: Callable[[PyTree, Feedback], tuple[jax.Array, PyTree]]
  name: str = "custom"
  scale: Callable[[Feedback], jax.Array] | None = None
  figures: Callable[[Feedback], Mapping[str, jax.Array]] | None = None
  needs: Needs = Needs()
  even: bool = False
  takes_absent: bool = False
  population: Callable[[jax.Array], jax.Array] | None = None
  adapt_to: "Callable[[ClientUpdate], Mixing] | None" = None
