"""Small binary classifier for pairs of texts given as token ids: are they paraphrases?

Sources: the mean of word embeddings as a text's vector is fastText's (Joulin et al. 2017); comparing two of
them by |u - v| and u * v is InferSent's (Conneau et al. 2017).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.basic import Perceptron, network
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.settings import Count


class MeanEmbedding(nn.Module):
  """Mean of a text's word embeddings plus a bias, [..., L] -> [..., embedding]; token 0 is padding.

  An id beyond the vocabulary makes the result NaN. A text without tokens has the mean 0.
  """

  vocabulary: int
  embedding: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the mean embedding, float32 [..., embedding], of integer token ids x [..., L]."""
    shape = (self.vocabulary, self.embedding)
    table = self.param("embedding", nn.initializers.normal(1.0), shape, jnp.float32)
    real = (x > 0)[..., None]
    rows = table.at[x].get(mode="fill", fill_value=jnp.nan)
    mean = jnp.sum(jnp.where(real, rows, 0.0), axis=-2) / jnp.maximum(jnp.sum(real, axis=-2), 1).astype(
      rows.dtype
    )
    return mean + self.param("bias", nn.initializers.zeros, (self.embedding,), jnp.float32)


@model_factory
def text_pair(
  shape: tuple[int, ...] = (2, 64),
  num_classes: int = 1,
  vocabulary: Count = 4096,
  embedding: Count = 32,
  hidden: Count = 32,
) -> Model:
  """TextPair: W2 relu(W1 [|u - v|, u * v] + b1) + b2, with u and v the mean embeddings of two texts a and b.

  u = b0 + Σ_l [a_l > 0] E[a_l] / Σ_l [a_l > 0]: token 0 is padding; a text without tokens has the mean 0. E ~
  N(0, 1); 133,217 parameters by default. Swapping the two texts does not change the output.

  Args:
    shape: shape of one example, (2, L): the ids of two texts, integers in [0, vocabulary). A larger id makes
      the logits NaN, so that data hashed to a larger vocabulary cannot go unnoticed.
    num_classes: the number of logits; one for a binary task.
    vocabulary: V, the number of rows of E.
    embedding: width of E.
    hidden: width of the hidden layer.

  Raises:
    SettingError: `shape` is not (2, L).
  """
  if len(shape) != 2 or shape[0] != 2:
    raise SettingError("shape", shape, "not (2, L), two texts of L token ids", "Use the data set mqp.")

  def logits(x: jax.Array) -> jax.Array:
    u, v = jnp.moveaxis(MeanEmbedding(vocabulary, embedding, name="embed")(x), -2, 0)
    h = jnp.concatenate([jnp.abs(u - v), u * v], axis=-1)
    return Perceptron((hidden, num_classes), name="head")(h)

  return Model(*network(logits, shape, jnp.int32), "text_pair", tuple(shape), num_classes, head=("head/fc2",))
