"""Feature extractors for comparing synthetic and real images.

Distances in different features are not comparable with one another; reports name the features.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from fedjax_het.models.layers.basic import Conv, Dense, Perceptron, flatten, network
from fedjax_het.models.layers.norms import GroupNorm
from fedjax_het.models.zoo.resnet10 import GROUP
from fedjax_het.modes import promoting
from fedjax_het.studies.inception import inception_features, read_weights

BATCH, EPOCHS, WIDTH, SIZE = 128, 2, 32, 128
BLOCK = 250


class Features(NamedTuple):
  """A feature extractor: a function from images to feature vectors, and its name.

  Attributes:
    of: images [N, ...] in [0, 1] -> float32 [N, d].
    name: name of the features, for reports.
  """

  of: Callable[[np.ndarray], np.ndarray]
  name: str


class Convolutions(nn.Module):
  """Convolutional network [B, *shape] -> [B, outputs]: three 3 x 3 convolutions with stride 2, a dense layer.

  The convolutions have h, 2h, 4h channels, each followed by normalisation in groups of four channels, a bias,
  and Swish.

  Attributes:
    outputs: number of outputs per image.
    width: h.
  """

  outputs: int
  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the outputs, float32 [B, outputs], of images [B, *shape]."""
    h = x
    for i in range(3):
      channels = 2**i * self.width
      norm = GroupNorm(channels // GROUP, affine=False)
      h = nn.swish(Conv(channels, (3, 3), 2, 1, before_bias=norm, name=f"conv{i + 1}")(h))
    return Dense(self.outputs, name="fc")(flatten(h))


def in_blocks(function: Callable[[np.ndarray], jax.Array]) -> Callable[[np.ndarray], np.ndarray]:
  """Wraps a function of images so that it processes `BLOCK` images at a time."""

  def of(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(function(x[i : i + BLOCK])) for i in range(0, len(x), BLOCK)])

  return of


def read_inception(path: str | os.PathLike[str]) -> Features:
  """Returns InceptionV3's 2048 pooled features, with weights from a file; see `inception.read_weights`."""
  weights = read_weights(path)
  return Features(in_blocks(jax.jit(lambda x: inception_features(weights, x))), "inception_v3")


def classifier_features(
  key: jax.Array, prepare: Callable[[np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray, num_classes: int
) -> Features:
  """Returns the last 128 hidden units of a classifier trained on real examples, as features.

  Training takes two epochs of Adam with batches of 128. Images (with sides divisible by 8) pass three
  stride-2 convolutions of 32, 64 and 128 channels, other examples a dense layer of 256.

  Args:
    key: typed PRNG key of the parameters and the order of examples.
    prepare: rows of x -> floats in [0, 1].
    x: real training examples, [N, ...].
    y: their labels, int [N].
    num_classes: C, the number of classes.
  """
  shape = x.shape[1:]
  image = len(shape) == 3 and not shape[0] % 8 and not shape[1] % 8 and shape[0] > 8
  body = Convolutions(SIZE, WIDTH) if image else Perceptron((256, SIZE), jax.nn.swish)
  (body_init, features), (head_init, classify) = network(body, shape), network(Dense(num_classes), (SIZE,))

  def hidden(params, x: jax.Array) -> jax.Array:
    return jax.nn.swish(features(params["body"], x))

  def loss(params, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = classify(params["head"], hidden(params, x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

  optimizer = promoting(optax.adam(1e-3))

  @jax.jit
  def step(params, state, x, y):
    updates, state = optimizer.update(jax.grad(loss)(params, x, y), state)
    return optax.apply_updates(params, updates), state

  body_key, head_key = jax.random.split(key)
  params = {"body": body_init(body_key), "head": head_init(head_key)}
  state = optimizer.init(params)
  order = np.random.default_rng(int(jax.random.bits(key)))
  batch = min(BATCH, len(y))
  for _ in range(EPOCHS):
    rows = order.permutation(len(y))
    for i in range(0, len(y) - batch + 1, batch):
      own = rows[i : i + batch]
      params, state = step(params, state, prepare(x[own]), jnp.asarray(y[own]))
  return Features(
    in_blocks(jax.jit(lambda x: hidden(params, x))), "a classifier trained on the real training examples"
  )
