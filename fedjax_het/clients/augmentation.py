r"""Augmentation of mini-batches in training: random crops and flips, cutout, and mixup.

Each example has draws of its own, from keys that are folded into the step's key. Evaluation, and the losses
that mixings use, see plain examples.

Sources: crops and flips as He et al., Deep Residual Learning, CVPR 2016, section 4.2; cutout: DeVries and
Taylor, arXiv:1708.04552, 2017; mixup: Zhang et al., ICLR 2018, equation 2.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError, is_zero
from fedjax_het.local import Batch
from fedjax_het.tasks import Task

AUGMENTS = 2  # folded into a step's key, beside `objective.DROPOUT`
OF_IMAGES = ("crop", "flip", "cutout")


def check_augmentation(shape: Any, own: Mapping[str, Any]) -> None:
  """Raises `SettingError` if a setting of images is given for examples that are none, of another `shape`."""
  for name in OF_IMAGES:
    if own[name] and shape != () and not (isinstance(shape, tuple) and len(shape) == 3):
      problem = f"augments images [H, W, C], and the examples are {shape}"
      raise SettingError(name, own[name], problem, "Leave it out.")


def augmented(batch: Batch, own: Mapping[str, Any]) -> Batch:
  """Returns a batch of augmented examples; the batch itself if no setting asks for any.

  With `mixup` the labels are (y, y of the partner, λ), for `mixed`.

  Args:
    batch: examples float32 [B, H, W, C], or [B, ...] for mixup alone.
    own: `crop`, `flip`, `cutout` and `mixup` of `LocalSettings`.
  """
  if is_zero(alpha := own["mixup"]) and not any(own[name] for name in OF_IMAGES):
    return batch
  key = jax.random.fold_in(batch.key, AUGMENTS)
  crop_key, flip_key, cut_key, mix_key, partner_key = (jax.random.fold_in(key, use) for use in range(5))
  x, y = batch.x, cast(Any, batch.y)
  if own["crop"]:
    x = cropped(x, jax.random.randint(crop_key, (len(x), 2), 0, 2 * own["crop"] + 1), own["crop"])
  if own["flip"]:
    x = flipped(x, jax.random.bernoulli(flip_key, shape=(len(x),)))
  if own["cutout"]:
    x = cut(x, jax.random.randint(cut_key, (len(x), 2), 0, jnp.array(x.shape[1:3])), own["cutout"])
  if not is_zero(alpha):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      raise SettingError("mixup", alpha, f"mixes numbers, and the examples are {x.dtype}", "Leave it out.")
    drawn = jnp.where(alpha > 0, alpha, 1.0)  # Beta(0, 0), as one value of a sweep, mixes nothing
    lam = jnp.where(alpha > 0, jax.random.beta(mix_key, drawn, drawn, (len(x),), x.dtype), 1.0)
    draws = jax.random.uniform(partner_key, (len(x),))
    partner = jnp.argsort(jnp.where(batch.weight > 0, draws, 2.0))  # real examples are the first ones
    x, y = mixture(x, lam, partner), (y, y[partner], lam)
  return batch._replace(x=x, y=y)


def cropped(x: jax.Array, corners: jax.Array, padding: int) -> jax.Array:
  """Adds a margin of zeros to images [B, H, W, C], and cuts H x W pixels out of each at the given corner.

  Args:
    x: images.
    corners: row and column of each upper left corner in the padded image, int [B, 2], from 0 to 2·padding.
    padding: width of the margin in pixels.
  """
  wide = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  return jax.vmap(lambda own, at: jax.lax.dynamic_slice(own, (at[0], at[1], 0), x.shape[1:]))(wide, corners)


def flipped(x: jax.Array, flips: jax.Array) -> jax.Array:
  """Mirrors the images [B, H, W, C] for which `flips`, bool [B], is true from left to right."""
  return jnp.where(flips[:, None, None, None], x[:, :, ::-1], x)


def cut(x: jax.Array, centers: jax.Array, side: int) -> jax.Array:
  """Sets a square of each image [B, H, W, C] to 0, as far as it is inside the image.

  Args:
    x: images.
    centers: row and column of each square's centre, int [B, 2].
    side: width of the square in pixels; it begins ⌊side/2⌋ before the centre.
  """

  def inside(axis: int) -> jax.Array:
    away = jnp.arange(x.shape[1 + axis]) - (centers[:, axis, None] - side // 2)
    return (away >= 0) & (away < side)

  return jnp.where((inside(0)[:, :, None] & inside(1)[:, None, :])[..., None], 0.0, x)


def mixture(x: jax.Array, lam: jax.Array, partner: jax.Array) -> jax.Array:
  """Returns λ x + (1 - λ) x[partner] of examples [B, ...] with λ [B]."""
  lam = lam.reshape((-1,) + (1,) * (x.ndim - 1))
  return lam * x + (1.0 - lam) * x[partner]


def mixed(task: Task) -> Task:
  """Returns a task of labels (y, y', λ), whose losses and weights are λ L(y) + (1 - λ) L(y')."""

  def losses(outputs: jax.Array, labels: Any) -> tuple[jax.Array, jax.Array | None]:
    y, other, lam = labels
    (first, weight), (second, other_weight) = task.losses(outputs, y), task.losses(outputs, other)
    both: Callable[[Any, Any], Any] = lambda a, b: lam * a + (1.0 - lam) * b  # noqa: E731
    return both(first, second), None if weight is None else both(weight, other_weight)

  return task._replace(losses=losses)
