"""Classifiers whose logits are energies: E(x, y) = -f(x)[y], E(x) = -log Σ_y exp f(x)[y].

Joint energy models (Grathwohl et al., ICLR 2020), as FedEvg's clients train them (thesis, chapter IV): Swish,
so that the energy is smooth in x, and a last layer of spectral norm 1, so that energies cannot run away.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_het.errors import check_range
from fedjax_het.models.base import Layer, Model, dense, perceptron

POWER_ITERATIONS = 8


def spectral_norm(kernel: jax.Array) -> jax.Array:
  """The largest singular value of a kernel [inputs, outputs], float32 scalar.

  Power iterations on the small Gram matrix [outputs, outputs], from a fixed vector; the two singular vectors
  count as constants in gradients, d‖W‖ = u·dW·v (Miyato et al., Spectral Normalization, ICLR 2018).
  """
  fixed = jax.lax.stop_gradient(kernel)
  gram = fixed.T @ fixed
  v = jnp.cos(jnp.arange(gram.shape[0], dtype=kernel.dtype))
  for _ in range(POWER_ITERATIONS):
    v = gram @ v
    v = v / jnp.maximum(jnp.linalg.norm(v), 1e-12)
  u = fixed @ v
  u = u / jnp.maximum(jnp.linalg.norm(u), 1e-12)
  return u @ (kernel @ v)


def spectral_dense(layer: Layer, x: jax.Array) -> jax.Array:
  """x W/‖W‖ + b, [B, inputs] -> [B, outputs]."""
  norm = spectral_norm(layer["kernel"])
  return dense({**layer, "kernel": layer["kernel"] / jnp.maximum(norm, 1e-12)}, x)


def energy_mlp(
  shape: tuple[int, ...] = (8, 8, 1),
  num_classes: int = 10,
  hidden: int = 256,
  layers: int = 2,
  spectral: bool = True,
) -> Model:
  """D-hidden-...-hidden-C with Swish and a last layer of spectral norm 1.

  Args:
    shape: of one example, flattened row-major to D numbers.
    num_classes: C, the number of logits.
    hidden: width of the hidden layers.
    layers: number of hidden layers, at least 1.
    spectral: whether the last layer's spectral norm is 1; False leaves it free.

  Raises:
    SettingError: `hidden` or `layers` is below 1.
  """
  check_range("hidden", hidden, 1)
  check_range("layers", layers, 1)
  widths = [math.prod(shape), *[hidden] * layers, num_classes]
  init, apply = perceptron(widths, last=spectral_dense if spectral else dense)
  return Model(init, apply, "energy_mlp", tuple(shape), num_classes)
