"""Batch and group normalisation with Flax's parameter names; batch statistics ignore padding rows."""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice
from fedjax_het.models.layers.product import divided
from fedjax_het.models.layers.real_rows import real_rows
from fedjax_het.settings import Choice

NORMS = ("batch", "group", "none")
Norm = Annotated[str, Choice(NORMS)]
GROUP = 8  # maximum number of channels per group


def norm(
  kind: str, x: jax.Array, train: bool, name: str, epsilon: float = 1e-5, momentum: float = 0.9
) -> jax.Array:
  """Normalises x by `BatchNorm`, by `GroupNorm` with groups of 8 channels, or not at all.

  The group size is gcd(C, 8), so that it divides the number of channels.

  Args:
    kind: one of `NORMS`.
    x: float32 [B, ..., C].
    train: whether batch normalisation uses the batch's statistics, see `BatchNorm`.
    name: name of the layer within the calling module.
    epsilon: ε, added to the variance.
    momentum: decay of the running statistics, see `BatchNorm`.
  """
  check_choice("norm", kind, NORMS)
  if kind == "none":
    return x
  if kind == "batch":
    return BatchNorm(momentum, epsilon, name=name)(x, train)
  return GroupNorm(x.shape[-1] // math.gcd(x.shape[-1], GROUP), epsilon, name=name)(x)


class BatchNorm(nn.Module):
  """Batch normalisation, (x - mean) / √(var + ε)·scale + bias per channel, like `linen.BatchNorm`.

  In training mode, mean and var are those of a channel's n values in the batch's real rows, and the running
  statistics move towards mean and the unbiased variance n / (n - 1) var, as in PyTorch. In inference mode,
  mean and var are the running statistics.

  Attributes:
    momentum: fraction of the running statistics that a step keeps; PyTorch's momentum is 1 - momentum.
    epsilon: ε, added to the variance.
  """

  momentum: float = 0.9
  epsilon: float = 1e-5

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Returns x [B, ..., C] normalised; with `train` it uses and updates the batch statistics."""
    channels = x.shape[-1:]
    scale = self.param("scale", nn.initializers.ones, channels, jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, channels, jnp.float32)
    mean = self.variable("batch_stats", "mean", jnp.zeros, channels, jnp.float32)
    var = self.variable("batch_stats", "var", jnp.ones, channels, jnp.float32)
    if not train:
      return (x - mean.value) * (jax.lax.rsqrt(var.value + self.epsilon) * scale) + bias
    rows = real_rows(jax.ShapeDtypeStruct((len(x), 1), bool))
    count = x[..., 0].size if rows is None else jnp.maximum(rows.sum(), 1) * (x[0, ..., 0].size)
    divisor, rest = (jnp.asarray(own, jnp.float32) for own in (count, jnp.maximum(count - 1, 1)))

    def over_rows(sums: jax.Array) -> jax.Array:  # takes sums per row, [B, C], so that x is read in one pass
      return divided((sums if rows is None else jnp.where(rows, sums, 0.0)).sum(0), divisor)

    axes = tuple(range(1, x.ndim - 1))
    own_mean = over_rows(x.sum(axes))
    centred = x - own_mean
    own_var = over_rows(jnp.square(centred).sum(axes))
    if not self.is_initializing():
      unbiased = own_var * (divisor / rest)
      mean.value = self.momentum * mean.value + (1 - self.momentum) * own_mean
      var.value = self.momentum * var.value + (1 - self.momentum) * unbiased
    return centred * (jax.lax.rsqrt(own_var + self.epsilon) * scale) + bias


class GroupNorm(nn.Module):
  """Group normalisation, (x - mean) / √(var + ε)·scale + bias per image and group, like `linen.GroupNorm`.

  Attributes:
    num_groups: number of groups, a divisor of C.
    epsilon: ε, added to the variance.
    affine: whether scale and bias are learnt; otherwise they are 1 and 0.
  """

  num_groups: int
  epsilon: float = 1e-5
  affine: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns x [B, ..., C] normalised over the channels of each group and all pixels."""
    channels, axes = x.shape[-1], tuple(range(1, x.ndim - 1))
    scale, bias = (
      (
        self.param("scale", nn.initializers.ones, (channels,), jnp.float32),
        self.param("bias", nn.initializers.zeros, (channels,), jnp.float32),
      )
      if self.affine
      else (1.0, 0.0)
    )

    def over_group(means: jax.Array) -> jax.Array:  # takes means per channel, so that x is read in one pass
      pooled = means.reshape(len(x), self.num_groups, -1).mean(2, keepdims=True)
      return jnp.broadcast_to(pooled, (*pooled.shape[:2], channels // self.num_groups)).reshape(means.shape)

    centred = x - over_group(x.mean(axes, keepdims=True))
    variance = over_group(jnp.square(centred).mean(axes, keepdims=True))
    return centred * (jax.lax.rsqrt(variance + self.epsilon) * scale) + bias
