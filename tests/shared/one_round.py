"""One client's round of a part, and the same by plain SGD in float64 on softmax regression."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from small_parts import float64, linear_loss_and_gradient, one_client, walk

import fedjax_het as fh

LR, BATCH, CLIENT, SHARE = 0.1, 4, 8, 3 / 12
LOCAL = dict(lr=LR, batch_size=BATCH, epochs=2, momentum=0.0, weight_decay=0.0)
add = lambda a, b, by=1.0: jax.tree.map(lambda u, v: u + by * v, a, b)  # noqa: E731


def like(tree, scale=1.0, seed=0):
  """A tree of random numbers in the form of another one."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), tree)


def one_round(part, data, broadcast=None, state=None, key=0, client=CLIENT):
  """(first broadcast, first state, upload, next state, info) of one client's round."""
  key, context = jax.random.key(key), fh.Context(client, 0, 3, 12)
  broadcast = part.init_broadcast(key) if broadcast is None else broadcast
  state = part.init(key, broadcast, None, context) if state is None else state
  return broadcast, state, *jax.jit(part.update)(key, broadcast, state, one_client(data, client), context)


def sgd(params, data, along, key=0):
  """Plain SGD with the gradient `along(∇F, params)`, float64: (parameters, number of steps)."""
  params, taken = float64(params), 0
  for x, y, _ in walk(jax.random.key(key), data, CLIENT, BATCH, LOCAL["epochs"]):
    gradient = linear_loss_and_gradient(params, x, y)[1]
    params, taken = add(params, along(gradient, params), -LR), taken + 1
  return params, taken


def close(found, wanted, rtol=1e-5, atol=2e-6):
  chex.assert_trees_all_close(float64(found), wanted, rtol=rtol, atol=atol)
