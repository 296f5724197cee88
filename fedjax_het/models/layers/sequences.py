"""Flax layers for sequences: embedding table and LSTM.

As in `basic`, parameters have the names of Flax's or Keras's layers, and `vmap` over clients stays fast.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.product import apart, product

Residuals = tuple[jax.Array, ...]


class Embed(nn.Module):
  """Embedding table, [...] -> [..., features], like `linen.Embed`, except that invalid ids give NaN.

  Attributes:
    num_embeddings: V, the number of rows of the table.
    features: width of a row.
    std: standard deviation of the initial rows, which are drawn from N(0, std²).
  """

  num_embeddings: int
  features: int
  std: float = 1.0

  def setup(self) -> None:
    """Declares the table, float32 [V, features]."""
    shape = (self.num_embeddings, self.features)
    self.embedding = self.param("embedding", nn.initializers.normal(self.std), shape, jnp.float32)

  def attend(self, h: jax.Array) -> jax.Array:
    """Returns the products of h [..., features] with all rows, float32 [..., V], as tied logits are."""
    return product(h, self.embedding.T)

  def __call__(self, ids: jax.Array) -> jax.Array:
    """Returns the rows of integer `ids`, float32 [..., features]; an id outside [0, V) gives NaN.

    Raises:
      SettingError: `ids` are not integers.
    """
    if not jnp.issubdtype(ids.dtype, jnp.integer):
      raise SettingError(
        "x", str(ids.dtype), "not token ids, which are integers",
        "Leave mean and std out, and store ids as int8, int16 or int32: uint8 is read as pixels are.",
      )  # fmt: skip
    ids = jnp.where(ids < 0, self.num_embeddings, ids.astype(jnp.int32))
    return jnp.asarray(self.embedding).at[ids].get(mode="fill", fill_value=jnp.nan)


@jax.custom_vjp
def recur(z: jax.Array, kernel: jax.Array) -> jax.Array:
  """Runs an LSTM over pre-computed input projections z, [T, B, 4H], and returns h_1, ..., h_T, [T, B, H].

  (i, f, g, o) = z_t + h_{t-1} W; c_t = σ(f) c_{t-1} + σ(i) tanh(g); h_t = σ(o) tanh(c_t); h_0 = c_0 = 0.
  W's gradient is one product over all steps, instead of a sum of T small products.

  Args:
    z: the inputs' contribution to the four gates, in the order i, f, g, o.
    kernel: W, [H, 4H].
  """
  return _recur_forward(z, kernel)[0]


def _recur_forward(z: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Residuals]:
  def step(carry: tuple[jax.Array, jax.Array], z: jax.Array):
    h, c = carry
    i, f, g, o = jnp.split(z + h @ kernel, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    new = f * c + i * g
    h = o * jnp.tanh(new)
    return (h, new), (h, c, new, i, f, g, o)

  zero = jnp.zeros((z.shape[1], kernel.shape[0]), z.dtype)
  _, (h, *kept) = jax.lax.scan(step, (zero, zero), z)
  return h, (h, kernel, *kept)


def _recur_backward(residuals: Residuals, h_bar: jax.Array) -> tuple[jax.Array, jax.Array]:
  h, kernel, *kept = residuals
  turned = apart(kernel.T)  # the product with an untransposed kernel takes twice as long per step

  def step(carry: tuple[jax.Array, jax.Array], at: Residuals):
    later, c_bar = carry
    h_bar, before, c, i, f, g, o = at
    h_bar = h_bar + later
    tanh = jnp.tanh(c)
    c_bar = c_bar + h_bar * o * (1.0 - tanh * tanh)
    gates = (
      c_bar * g * i * (1.0 - i), c_bar * before * f * (1.0 - f), c_bar * i * (1.0 - g * g),
      h_bar * tanh * o * (1.0 - o),
    )  # fmt: skip
    z_bar = jnp.concatenate(gates, axis=-1)
    return (z_bar @ turned, c_bar * f), z_bar

  zero = jnp.zeros_like(h[0])
  _, z_bar = jax.lax.scan(step, (zero, zero), (h_bar, *kept), reverse=True)
  return z_bar, jnp.einsum("tbh,tbg->hg", h[:-1], z_bar[1:])


recur.defvjp(_recur_forward, _recur_backward)


class LSTM(nn.Module):
  """LSTM layer (long short-term memory), [B, T, inputs] -> [B, T, features], see `recur`.

  It is PyTorch's `LSTM` of one layer, with two biases, z_t = x_t K + b + b': only their sum matters, and SGD
  moves the sum twice as far as a single bias. All parameters are drawn from U(-1/√H, 1/√H).

  Attributes:
    features: H, the width of the hidden state.
    use_bias: whether b and b' are added.
  """

  features: int
  use_bias: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the hidden states h_1, ..., h_T of x [B, T, inputs], float32 [B, T, features]."""
    draw = nn.initializers.uniform(2.0 * self.features**-0.5)

    def symmetric(key, shape, dtype):
      return draw(key, shape, dtype) - self.features**-0.5

    gates = 4 * self.features
    kernel = self.param("kernel", symmetric, (x.shape[-1], gates), jnp.float32)
    recurrent = self.param("recurrent_kernel", symmetric, (self.features, gates), jnp.float32)
    z = product(jnp.moveaxis(x, 1, 0), kernel)
    if self.use_bias:
      for name in ("bias", "recurrent_bias"):
        z = z + self.param(name, symmetric, (gates,), jnp.float32)
    return jnp.moveaxis(recur(z, recurrent), 0, 1)
