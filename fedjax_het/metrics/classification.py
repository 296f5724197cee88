"""Metrics of a classifier on one client's test set: accuracy, likelihood and calibration."""

import jax
import jax.numpy as jnp

NUM_BINS = 15


def rank_of_label(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Ranks the true label of each example: the number of classes with higher scores, int32 [N].

  rank_n = |{c < y_n : z_nc >= z_ny}| + |{c > y_n : z_nc > z_ny}|

  so that of tied classes the one with the lower number comes first, as in `argmax`, and a constant output is
  right for about 1 example in C. A NaN counts as a higher score: a model that diverged is never right by
  accident.

  Args:
    logits: z, float, [N, C].
    labels: y, int, [N], each in [0, C).

  Returns:
    Ranks in 0 .. C - 1, int32, [N]; an example is top-k correct if its rank is below k.
  """
  classes = jnp.arange(logits.shape[-1])
  own = classes == labels[:, None]
  z = jnp.sum(jnp.where(own, logits, 0), axis=-1, keepdims=True)
  behind = jnp.where(classes < labels[:, None], logits < z, logits <= z)
  return jnp.sum(~behind & ~own, axis=-1, dtype=jnp.int32)


def calibration_errors(
  confidence: jax.Array, correct: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Expected and maximum calibration error over 15 equal-width bins of confidence.

  With B_b the examples whose confidence lies in (b/15, (b+1)/15] and N those in the mask,

    ECE = Σ_b |B_b|/N |acc(B_b) - conf(B_b)| = 1/N Σ_b |s_b|,   MCE = max_{b: B_b not empty} |s_b| / |B_b|,

  where s_b = Σ_{n in B_b} (correct_n - confidence_n).

  Args:
    confidence: probability of the predicted class, float32 in (0, 1], [N].
    correct: whether the predicted class is right, bool, [N].
    mask: which examples count, bool, [N].

  Returns:
    (ECE, MCE), float32 scalars; both 0 if the mask is empty.

  Source: Naeini et al. 2015 (ECE, MCE); Guo et al. 2017, eq. 2, 3, and 5 (the bins).
  """
  edges = jnp.linspace(0.0, 1.0, NUM_BINS + 1)
  confidence = confidence[:, None]
  member = (confidence > edges[:-1]) & (confidence <= edges[1:]) & mask[:, None]
  excess = jnp.abs(jnp.sum(jnp.where(member, correct[:, None].astype(jnp.float32) - confidence, 0.0), axis=0))
  count = jnp.sum(member, axis=0)
  ece = jnp.sum(excess) / jnp.maximum(jnp.sum(count), 1).astype(jnp.float32)
  mce = jnp.max(excess / jnp.maximum(count, 1).astype(jnp.float32))
  return ece, mce


def auroc(scores: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
  """Area under the ROC curve: P(s+ > s-) + ½ P(s+ = s-), for s+ and s- the scores of a random pair.

  With N+ positives, N- negatives, and below(s), upto(s) the numbers of negatives with scores < s and <= s,

    AUROC = U / (N+ N-),   U = Σ_{n: y_n = 1} ½ (below(s_n) + upto(s_n))   (Mann-Whitney),

  exact with ties, in O(N log N) time and O(N) memory. If a client has examples of one class only (or none),
  there is no pair to order: the result is NaN, and summaries over clients leave that client out. A NaN score
  counts as ordered wrongly: a positive's as the lowest, a negative's as the highest.

  Args:
    scores: s, float, [N]; infinities are ordinary scores.
    labels: y, int, [N], 1 positive.
    mask: which examples count, bool, [N].

  Returns:
    float32 scalar in [0, 1], or NaN.

  Source: Mann and Whitney 1947; Hanley and McNeil 1982.
  """
  positive, negative = mask & (labels == 1), mask & (labels != 1)
  scores = jnp.where(jnp.isnan(scores), jnp.where(labels == 1, -jnp.inf, jnp.inf), scores)
  order = jnp.argsort(scores)
  negatives = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(negative[order], dtype=jnp.int32)])
  below, upto = (negatives[jnp.searchsorted(scores[order], scores, side)] for side in ("left", "right"))
  u = jnp.sum(jnp.where(positive, 0.5 * (below.astype(jnp.float32) + upto.astype(jnp.float32)), 0.0))
  pairs = jnp.sum(positive, dtype=jnp.float32) * jnp.sum(negative, dtype=jnp.float32)
  return jnp.where(pairs > 0, u / jnp.maximum(pairs, 1.0), jnp.nan)


def scores(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
  """Computes the per-example quantities that `metrics` needs, [N] each.

  Ties are broken as in `rank_of_label`. An example whose logits are NaN is wrong with full confidence, and
  its loss is inf.

  Args:
    logits: float, [N, C]; cast to float32. One logit z, C = 1, is a binary classifier with P(y = 1) =
      sigmoid(z), equivalent to the two logits (0, z): an example is right if (z > 0) = y, and the loss is the
      binary cross-entropy.
    labels: int, [N], each in [0, C) (C = 1: 0 or 1).

  Returns:
    `top1` and `top5`, bool, whether the label is among the first 1 and min(5, C); `loss`, the cross-entropy
    in nats; `confidence`, the probability of the predicted class; for one or two logits `margin`, z or z_1 -
    z_0.
  """
  logits = logits.astype(jnp.float32)
  if logits.shape[-1] == 1:
    logits = jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)
  num_classes = logits.shape[-1]
  rank = rank_of_label(logits, labels)
  log_p = jax.nn.log_softmax(logits)
  nll = -jnp.sum(jnp.where(jnp.arange(num_classes) == labels[:, None], log_p, 0.0), axis=-1)
  confidence = jnp.exp(jnp.max(log_p, axis=-1))
  broken = jnp.isnan(confidence)
  found = {
    "top1": rank < 1,
    "top5": rank < min(5, num_classes),
    "loss": jnp.where(broken, jnp.inf, nll),
    "confidence": jnp.where(broken, 1.0, confidence),
  }
  return {**found, "margin": logits[:, 1] - logits[:, 0]} if num_classes == 2 else found


def metrics(scores: dict[str, jax.Array], labels: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
  """Computes all classification metrics of one client over its whole test set.

  Safe under jit, vmap (over clients, over a λ grid) and scan. NaN has one meaning: **a client whose examples
  do not define a metric**. This applies to every metric of a client with no example in the mask, and to AUROC
  of a client whose examples are all of one class; summaries over clients (`fairness.summarize`) leave it out,
  and `fairness.left_out` counts it.

  Args:
    scores: per-example quantities, see the function `scores`. Rows outside the mask may hold anything, NaN
      included.
    labels: int, [N].
    mask: which rows are this client's examples, bool, [N].

  Returns:
    float32 scalars: `top1` and `top5` accuracies, `loss` the mean cross-entropy in nats, `ece` and `mce`
      (`calibration_errors`); for binary classifiers also `auroc`, of the margin (NaN if all examples are of
      one class). All but the loss are in [0, 1].
  """
  count = jnp.sum(mask)

  def mean(values: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(mask, values.astype(jnp.float32), 0.0)) / jnp.maximum(count, 1).astype(
      jnp.float32
    )

  found = {name: mean(scores[name]) for name in ("top1", "top5", "loss")}
  found["ece"], found["mce"] = calibration_errors(scores["confidence"], scores["top1"], mask)
  if "margin" in scores:
    found["auroc"] = auroc(scores["margin"], labels, mask)
  return {name: jnp.where(count > 0, value, jnp.nan) for name, value in found.items()}
