"""A small model for pairs of texts given as token ids: do they say the same?

Sources: the mean of word embeddings as a text's vector is fastText's (Joulin et al. 2017); comparing two of
them by |u - v| and u * v is InferSent's (Conneau et al. 2017).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers import Perceptron, network
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory


class MeanEmbedding(nn.Module):
  """The mean of a text's word embeddings, [..., L] -> [..., embedding]; token 0 is padding.

  An id beyond the vocabulary makes it NaN. A text without tokens has the mean 0.
  """

  vocabulary: int
  embedding: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes it for integers x."""
    shape = (self.vocabulary, self.embedding)
    table = self.param("embedding", nn.initializers.normal(1.0), shape, jnp.float32)
    real = (x > 0)[..., None]
    rows = table.at[x].get(mode="fill", fill_value=jnp.nan)
    mean = jnp.sum(jnp.where(real, rows, 0.0), axis=-2) / jnp.maximum(jnp.sum(real, axis=-2), 1)
    return mean + self.param("bias", nn.initializers.zeros, (self.embedding,), jnp.float32)


class TextPair(nn.Module):
  """See `text_pair`."""

  num_classes: int
  vocabulary: int
  embedding: int
  hidden: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Logits of pairs [B, 2, L]."""
    u, v = jnp.moveaxis(MeanEmbedding(self.vocabulary, self.embedding, name="embed")(x), -2, 0)
    h = jnp.concatenate([jnp.abs(u - v), u * v], axis=-1)
    return Perceptron((self.hidden, self.num_classes), name="head")(h)


@model_factory
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
  module = TextPair(num_classes, vocabulary, embedding, hidden)
  return Model(*network(module, shape, jnp.int32), "text_pair", tuple(shape), num_classes, head=("head/fc2",))
