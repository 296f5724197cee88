r"""Membership inference: how well a score of examples tells members of the training data from others.

By loss (Yeom et al., CSF 2018): the score is -ℓ. LiRA (Carlini et al., Membership Inference Attacks From
First Principles, IEEE S&P 2022, algorithm 1, online): shadow runs, of which some trained on an example and
some did not, give Gaussians of its logit-scaled confidence φ = log(p / (1 - p)), and the score is

    Λ = log N(φ; μ_in, σ_in²) - log N(φ; μ_out, σ_out²).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

RATES = {"tpr_1": 0.01, "tpr_01": 0.001}  # figure -> the false positive rate that it is at
ENOUGH = 32  # with fewer runs on a side, all examples share a variance, as in the paper with few shadows


def attack_figures(members: ArrayLike, others: ArrayLike) -> dict[str, float]:
  """Returns `auc`, and the true positive rates `tpr_1` and `tpr_01` at false positive rates of 1 % and 0.1 %.

  A rate r is at the lowest threshold that at most ⌊r N⌋ of the N others are above.

  Args:
    members: scores of training examples, [M]; a higher one says "member".
    others: scores of examples that were not trained on, [N].
  """
  inside, outside = (np.asarray(own, np.float64) for own in (members, others))
  inside, outside = inside[~np.isnan(inside)], outside[~np.isnan(outside)]
  if not len(inside) or not len(outside):
    return dict.fromkeys(("auc", *RATES), float("nan"))
  ordered = np.sort(outside)
  below, upto = (np.searchsorted(ordered, inside, side) for side in ("left", "right"))
  found = {"auc": float((below + upto).mean() / (2 * len(outside)))}
  for name, rate in RATES.items():
    threshold = ordered[len(ordered) - 1 - int(rate * len(ordered))]
    found[name] = float((inside > threshold).mean())
  return found


def confidence(outputs: jax.Array, y: jax.Array) -> jax.Array:
  """Computes φ = log(p_y / (1 - p_y)) of class logits [B, C], or of one logit [B, 1]; float32 [B]."""
  if outputs.shape[-1] == 1:
    return jnp.where(y > 0, outputs[:, 0], -outputs[:, 0])
  own = jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
  others = jnp.where(jnp.arange(outputs.shape[1]) == y[:, None], -jnp.inf, outputs)
  return own - jax.nn.logsumexp(others, axis=1)


def likelihood_ratios(scores: ArrayLike, members: ArrayLike) -> np.ndarray:
  """Computes LiRA's Λ of each example in each run, with all other runs as shadows, float64 [R, N].

  NaN where an example is not in the run, or where fewer than two other runs are on either side. With fewer
  than 32 shadow runs on a side σ_in and σ_out are pooled over all examples.

  Args:
    scores: φ, [R, N]; NaN for an example that is not in a run.
    members: whether the run trained on the example, bool [R, N].
  """
  phi, inside = np.asarray(scores, np.float64), np.asarray(members, bool)
  known = np.isfinite(phi)
  found = np.full(phi.shape, np.nan)
  for r in range(len(phi)):
    sides = []
    shadows = known.copy()
    shadows[r] = False
    for side in (inside, ~inside):
      there = shadows & side
      count = there.sum(0)
      mean = np.where(there, phi, 0.0).sum(0) / np.maximum(count, 1)
      square = np.where(there, (phi - mean) ** 2, 0.0).sum(0)
      enough = count >= 2
      variance = square / np.maximum(count - 1, 1)
      if count[enough].min(initial=ENOUGH) < ENOUGH:
        variance = np.full_like(variance, square[enough].sum() / max((count[enough] - 1).sum(), 1))
      sides.append((enough, mean, np.maximum(variance, 1e-12)))
    (one, mean, own), (other, away, spread) = sides
    ratio = 0.5 * ((phi[r] - away) ** 2 / spread - (phi[r] - mean) ** 2 / own + np.log(spread / own))
    found[r] = np.where(one & other & known[r], ratio, np.nan)
  return found


class Observed(NamedTuple):
  """Scores of a run's examples.

  Attributes:
    ids: what identifies an example in several runs, [N], such as a digest of its pixels.
    member: whether the run trained on it, bool [N].
    score: its score, such as φ, [N].
  """

  ids: np.ndarray
  member: np.ndarray
  score: np.ndarray


def lira(runs: Sequence[Observed]) -> dict[str, Any]:
  """Attacks each of several runs with all others as shadows; returns means of `attack_figures` over the runs.

  The runs differ by who is a member, such as seeds that divide the same rows into training and test parts
  otherwise. `runs` in the result is how many there were, and `std` the deviation of `auc` over them.
  """
  ids = np.unique(np.concatenate([run.ids for run in runs]))
  phi, member = np.full((len(runs), len(ids)), np.nan), np.zeros((len(runs), len(ids)), bool)
  for r, run in enumerate(runs):
    at = np.searchsorted(ids, run.ids)
    phi[r, at], member[r, at] = run.score, run.member
  ratios = likelihood_ratios(phi, member)
  each = [attack_figures(own[inside], own[~inside]) for own, inside in zip(ratios, member)]
  found: dict[str, Any] = {name: float(np.mean([own[name] for own in each])) for name in each[0]}
  return found | {"std": float(np.std([own["auc"] for own in each])), "runs": len(runs)}
