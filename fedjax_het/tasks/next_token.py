"""Next-token task: the next token at every position of a text, V logits at each of T positions."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, check_whole, listed
from fedjax_het.metrics.classification import rank_of_label
from fedjax_het.tasks.labels import check_axes, check_classes, check_rows, check_shape, check_whole_labels
from fedjax_het.tasks.task import Task, or_one


def next_token(ignore: Sequence[int] = (-1,)) -> Task:
  """Next-token prediction: labels y, int [B, T], in [0, V) or ignored, and logits [B, T, V].

  The loss is the mean of -log P over all tokens of a batch that are not ignored. Metrics of a client, over
  its tokens that are not ignored: `top1`, `top5` (min(5, V)), `loss` in nats and `perplexity`, exp(loss).

  Args:
    ignore: ids whose positions are ignored in training and in metrics, such as those of padding and of
      unknown words; they may lie outside [0, V).

  Raises:
    SettingError: `ignore` is not a sequence of ids, or an id is not an integer.
  """
  if isinstance(ignore, int):
    raise SettingError("ignore", ignore, "not a row of ids", f"Write ignore=({ignore},).")
  tokens = listed("ignore", ignore, "ids")
  for token in tokens:
    check_whole("ignore", token)
  ids = tuple(int(token) for token in tokens)

  def counts(y) -> jax.Array:
    return jnp.all(y[..., None] != jnp.asarray(ids, y.dtype), axis=-1)

  def nll(logits: jax.Array, y: jax.Array) -> jax.Array:
    own = jnp.arange(logits.shape[-1]) == y[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(own, logits, 0.0), axis=-1)

  def losses(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    there = counts(y)
    return jnp.sum(jnp.where(there, nll(logits, y), 0.0), axis=-1), jnp.sum(there, axis=-1, dtype=jnp.float32)

  def scores(logits: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    logits, there = logits.astype(jnp.float32), counts(y)
    rank = jax.vmap(rank_of_label)(logits, y)
    loss = nll(logits, y)
    each = {
      "top1": rank < 1, "top5": rank < min(5, logits.shape[-1]),
      "loss": jnp.where(jnp.isnan(loss), jnp.inf, loss), "tokens": jnp.ones_like(there),
    }  # fmt: skip
    return {
      name: jnp.sum(jnp.where(there, own.astype(jnp.float32), 0.0), axis=-1) for name, own in each.items()
    }

  def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
    check_rows(y, num_examples, rows)
    check_axes(y, "[N, T]")
    check_whole_labels(y, rows)
    if num_classes is not None:
      check_classes(np.where(np.isin(y, ids), 0, y), num_classes, rows)

  def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
    fits = len(shape) == 2 and shape[0] == y.shape[1]
    check_shape("next_token", shape, f"[B, {y.shape[1]}, V]", fits)
    because = f", which the model's {shape[1]} logits stand for"
    check_classes(np.where(np.isin(y, ids), 0, y), shape[1], rows, because, "give the model {} logits")
    if not np.isin(y[rows], ids, invert=True).any():
      raise SettingError("ignore", ids, "no token of any client counts", "Ignore fewer ids.")

  return Task("next_token", losses, scores, metrics, ("top1",), check, check_outputs)


def metrics(scores: dict[str, jax.Array], y: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
  """Computes the metrics that `next_token` lists, for one client's texts in the mask."""
  sums = {name: jnp.sum(jnp.where(mask, own, 0.0)) for name, own in scores.items()}
  tokens = sums.pop("tokens")
  found = {name: jnp.where(tokens > 0, total / or_one(tokens), jnp.nan) for name, total in sums.items()}
  return {**found, "perplexity": jnp.exp(found["loss"])}
