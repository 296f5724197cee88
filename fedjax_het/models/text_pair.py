"""A small model for pairs of texts given as token ids: do they say the same?

Sources: the mean of word embeddings as a text's vector is fastText's (Joulin et al. 2017); comparing two of
them by |u - v| and u * v is InferSent's (Conneau et al. 2017).
"""

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.models.base import Model, Params, dense, xavier


def text_pair(
  shape: tuple[int, ...] = (2, 64),
  num_classes: int = 1,
  vocabulary: int = 4096,
  embedding: int = 32,
  hidden: int = 32,
) -> Model:
  """f(a, b) = W2 relu(W1 [|u - v|, u * v] + b1) + b2, where u and v are the means of a's and b's embeddings.

  u = b0 + Σ_l [a_l > 0] E[a_l] / Σ_l [a_l > 0]: token 0 is padding; a text without tokens has the mean 0.
  E ~ N(0, 1); 133,217 parameters as given. Swapping the two texts changes nothing.

  Args:
    shape: of one example, (2, L): the ids of two texts, integers in [0, vocabulary). An id beyond that makes
      the logits NaN, so that data hashed to a larger vocabulary cannot go unnoticed.
    num_classes: the number of logits; one for a binary task.
    vocabulary: V, the rows of E.
    embedding: width of E.
    hidden: width of the hidden layer.

  Raises:
    SettingError: `shape` is not that of two rows of ids.
  """
  if len(shape) != 2 or shape[0] != 2:
    raise SettingError("shape", shape, "not (2, L), two texts of L token ids", "Use the data set mqp.")
  layers = xavier(
    {"embed": (vocabulary, embedding), "fc1": (2 * embedding, hidden), "fc2": (hidden, num_classes)}
  )

  def init(key: jax.Array) -> Params:
    params = layers(key)
    kernel = jax.random.normal(jax.random.fold_in(key, 0), (vocabulary, embedding), jnp.float32)
    return {**params, "embed": {**params["embed"], "kernel": kernel}}

  def apply(params: Params, x: jax.Array) -> jax.Array:
    real = (x > 0)[..., None]
    rows = params["embed"]["kernel"].at[x].get(mode="fill", fill_value=jnp.nan)
    mean = jnp.sum(jnp.where(real, rows, 0.0), axis=-2) / jnp.maximum(jnp.sum(real, axis=-2), 1)
    u, v = jnp.moveaxis(mean + params["embed"]["bias"], -2, 0)
    h = jnp.concatenate([jnp.abs(u - v), u * v], axis=-1)
    return dense(params["fc2"], jax.nn.relu(dense(params["fc1"], h)))

  return Model(init, apply, "text_pair", tuple(shape), num_classes)
