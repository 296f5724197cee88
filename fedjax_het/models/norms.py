"""Normalisation, with Flax's own names: over a batch's real rows, or over an image's groups of channels."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import check_choice
from fedjax_het.models.real_rows import real_rows

NORMS = ("batch", "group", "none")
GROUP = 8  # channels of a group, at most


def norm(
  kind: str, x: jax.Array, train: bool, name: str, epsilon: float = 1e-5, momentum: float = 0.9
) -> jax.Array:
  """x normalised by a layer `name` of the calling module: `BatchNorm`, `GroupNorm` of groups of 8, or none.

  Channels that 8 does not divide are grouped by the largest number that divides both.

  Args:
    kind: one of `NORMS`.
    x: float32 [B, ..., C].
    train: whether a batch's own statistics are used, see `BatchNorm`.
    name: of the layer.
    epsilon: ε.
    momentum: see `BatchNorm`.
  """
  check_choice("norm", kind, NORMS)
  if kind == "none":
    return x
  if kind == "batch":
    return BatchNorm(momentum, epsilon, name=name)(x, train)
  return GroupNorm(x.shape[-1] // math.gcd(x.shape[-1], GROUP), epsilon, name=name)(x)


class BatchNorm(nn.Module):
  """(x - mean) / √(var + ε)·scale + bias, a channel at a time; `linen.BatchNorm`.

  In training mean and var are those of the n values of a channel in the batch's real rows, and the running
  ones move to mean and n / (n - 1) var, the unbiased one, as in PyTorch. In use they are the running ones.

  Attributes:
    momentum: the share that the running statistics keep; PyTorch's momentum is 1 less this.
    epsilon: ε.
  """

  momentum: float = 0.9
  epsilon: float = 1e-5

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Computes it for [B, ..., C]."""
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

    def over_rows(sums: jax.Array) -> jax.Array:  # of single rows, [B, C]; a pass over x has all of them
      return (sums if rows is None else jnp.where(rows, sums, 0.0)).sum(0) / divisor

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
  """(x - mean) / √(var + ε)·scale + bias, over an image's groups of channels; `linen.GroupNorm`.

  Attributes:
    num_groups: a divisor of C.
    epsilon: ε.
    affine: whether there are a scale and a bias.
  """

  num_groups: int
  epsilon: float = 1e-5
  affine: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it for [B, ..., C]."""
    channels, axes = x.shape[-1], tuple(range(1, x.ndim - 1))
    scale, bias = (
      (
        self.param("scale", nn.initializers.ones, (channels,), jnp.float32),
        self.param("bias", nn.initializers.zeros, (channels,), jnp.float32),
      )
      if self.affine
      else (1.0, 0.0)
    )

    def over_group(means: jax.Array) -> jax.Array:  # of single channels; a pass over x has all C
      pooled = means.reshape(len(x), self.num_groups, -1).mean(2, keepdims=True)
      return jnp.broadcast_to(pooled, (*pooled.shape[:2], channels // self.num_groups)).reshape(means.shape)

    centred = x - over_group(x.mean(axes, keepdims=True))
    variance = over_group(jnp.square(centred).mean(axes, keepdims=True))
    return centred * (jax.lax.rsqrt(variance + self.epsilon) * scale) + bias
