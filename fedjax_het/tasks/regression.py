"""Regression task: a number, or D numbers, per example, with squared errors."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.tasks.labels import check_count, check_rows, check_shape
from fedjax_het.tasks.missing import check_present
from fedjax_het.tasks.task import Task, mean_over, or_one


def regression() -> Task:
  """Regression: labels y, float32 [B] or [B, D], and outputs z, [B, D] (D = 1 for labels [B]).

  The loss is the mean of (z - y)² over examples and dimensions. Metrics of a client: `mse` (also called
  `loss`), `rmse`, `mae`, over all dimensions of all examples, and `r2`, 1 - Σ(z - y)² / Σ(y - ȳ)², the mean
  over those of the D dimensions in which the client's labels differ.
  """

  def losses(outputs: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    total = jnp.sum((flat(outputs) - flat(y)) ** 2, axis=-1)
    return total, jnp.full_like(total, flat(y).shape[-1])

  return Task(
    "regression", losses, scores, metrics, ("rmse",), check, check_outputs,
    outputs=lambda count: count, dtype=np.float32, decide=lambda z: z[:, 0] if z.shape[1] == 1 else z,
    probabilities=None,
  )  # fmt: skip


def flat(values: jax.Array) -> jax.Array:
  """Reshapes [B] or [B, D] to float32 [B, D]."""
  return values.reshape(values.shape[0], -1).astype(jnp.float32)


def scores(outputs: jax.Array, y: jax.Array) -> jax.Array:
  """Returns the absolute errors, [B, D]; inf if an output is NaN."""
  error = jnp.abs(flat(outputs) - flat(y))
  return jnp.where(jnp.isnan(error), jnp.inf, error)


def metrics(errors: jax.Array, y: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
  """Computes the metrics that `regression` lists, for one client's examples in the mask."""
  rows, y = mask[:, None], flat(y)
  mse = mean_over(jnp.mean(errors**2, axis=-1), mask)
  center = jnp.sum(jnp.where(rows, y, 0.0), axis=0) / or_one(jnp.sum(mask, dtype=jnp.float32))
  spread = jnp.sum(jnp.where(rows, (y - center) ** 2, 0.0), axis=0)
  unexplained = jnp.sum(jnp.where(rows, errors**2, 0.0), axis=0)
  differ = jnp.where(rows, y, -jnp.inf).max(0) > jnp.where(rows, y, jnp.inf).min(0)
  r2 = jnp.where(differ, 1.0 - unexplained / or_one(spread), jnp.nan)
  return {
    "loss": mse,
    "mse": mse,
    "rmse": jnp.sqrt(mse),
    "mae": mean_over(jnp.mean(errors, axis=-1), mask),
    "r2": jnp.nanmean(r2),
  }


def check(y: np.ndarray, num_examples: int, rows: np.ndarray, num_classes: int | None = None) -> None:
  """Raises `SettingError`, naming a label and its row, unless y is finite numbers, [N] or [N, D]."""
  check_rows(y, num_examples, rows)
  if y.ndim > 2:
    raise SettingError("y", y.shape, "labels have more than two axes", "Give [N] or [N, D].")
  if y.dtype.kind not in "biuf":
    check_present(y, rows)
    raise SettingError("y", str(y.dtype), "not numbers", "Convert it: y.astype(np.float32).")
  used = y[rows].reshape(len(rows), -1)
  wrong = np.flatnonzero(~np.isfinite(used).all(axis=1))
  if len(wrong):
    at = wrong[np.argmin(rows[wrong])]
    raise SettingError(
      "y", y[rows[at]].tolist(), f"the label of row {rows[at]} is not finite", "Leave such rows out of parts."
    )
  if num_classes is not None:
    if y.ndim == 1 and num_classes > 1 and y.dtype.kind in "biu":
      problem = f"each label is one whole number, but num_classes asks for {num_classes} targets an example"
      raise SettingError(
        "y", y[0].item(), problem,
        "Set num_classes=1 for that number as the target, or leave out the task for classes.",
      )  # fmt: skip
    check_count(int(np.prod(y.shape[1:])), num_classes, "numbers")


def check_outputs(y: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], num_classes: int) -> None:
  """Raises `SettingError` unless the model has as many outputs as an example has numbers."""
  count = int(np.prod(y.shape[1:]))
  if y.dtype.kind != "f":
    raise SettingError(
      "task", "regression", f"is the model's, and the data were made for labels that are {y.dtype}, such as "
      "classes", "Make the data with federate(..., task=fh.tasks.regression()), or the model for their task.",
    )  # fmt: skip
  check_shape("regression", shape, f"[B, {count}]", shape == (count,))
