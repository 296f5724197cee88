"""The aggregation part of an algorithm: how a cohort's uploads become one message."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from fedjax_het.parts.message import Message, PyTree
from fedjax_het.parts.mixing import Mixing
from fedjax_het.parts.needs import Needs
from fedjax_het.parts.privacy import Mechanism, Sampling


class Aggregation(NamedTuple):
  """How a cohort's uploads become the one that the server part moves by; by default their weighted mean.

  Attributes:
    init: (first broadcast) -> state.
    combine: (key, state, p, uploads, broadcast, present) -> (aggregate, state). p are the mixing
      coefficients, float32 [S]; the uploads, each leaf [S, ...], may be scaled by the mixing part; the
      broadcast is what the cohort received. `present`, bool [S], says whose uploads arrived, at least one:
      the rows of the others are zeros with p = 0, and no votes. The aggregate has the form of one upload. The
      uploads are gathered on every device. None for the mean Σ_i p_i u_i, with `even` and `pooled` as
      `Message` says, for which nothing is gathered.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`; `Needs.covers` are the fields that it combines.
    uses_mixing: whether p changes the aggregate.
    of_updates: whether the part combines differences from the broadcast, so that clients have to upload what
      they received after local training, see `Needs.uploads_model`.
    is_mean: (mixing part) -> whether the aggregate is the weighted mean with it, as of a trimmed mean that
      trims nothing; `federated` then leaves the part out.
    figures: (state after the round) -> name -> float32 scalar, per-round diagnostics for logging; never fed
      back into training. None for none.
    by_expected: whether `combine` divides by how many clients a round is expected to have, not by who came:
      it then takes the run's `Sampling` as a seventh argument, `present` may be False for all, and its
      aggregate moves the server in a round in which nobody arrives, too. `is_mean` then holds only where a
      whole cohort arrives.
    mechanism: how the aggregate is noised, for the privacy ledger; None for a part that promises no privacy.
    check_sampling: (`Sampling`) -> None; refuses participations with which the part cannot keep its promise.
  """

  init: Callable[[Message], PyTree] = lambda broadcast: ()
  combine: Callable[..., tuple[Message, PyTree]] | None = None
  name: str = "mean"
  needs: Needs = Needs()
  uses_mixing: bool = True
  of_updates: bool = False
  is_mean: Callable[[Mixing], bool] = lambda mixing: False
  figures: Callable[[PyTree], Mapping[str, jax.Array]] | None = None
  by_expected: bool = False
  mechanism: Mechanism | None = None
  check_sampling: Callable[[Sampling], None] | None = None
