r"""The server step of dynamic regularisation: the cohort's mean plus the mean of all clients' drifts.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, algorithm 1. Client k's drift h_k
is the sum of its updates θ_k - θ over the rounds in which it took part, 0 at first. With the cohort C of S
out of K clients, and H = (1/K) Σ_k h_k,

    H <- H + (S/K) · mean_C (θ_i - θ),      θ <- mean_C θ_i + H.

S/K is the `share` that the engine gives the server, see `ServerUpdate.takes_share`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.parts import Message, ServerUpdate

PyTree = Any


def drift() -> ServerUpdate:
  """Returns the server part that client parts with a drift bring; its state is H, a tree like the model."""

  def init(broadcast: Message) -> PyTree:
    return jax.tree.map(jnp.zeros_like, broadcast.params)

  def update(
    key: jax.Array, state: PyTree, broadcast: Message, aggregate: Message, share: jax.Array
  ) -> tuple[Message, PyTree]:
    mean = jax.tree.map(
      lambda h, new, old: h + share * (new - old), state, aggregate.params, broadcast.params
    )
    return aggregate._replace(params=jax.tree.map(jnp.add, aggregate.params, mean)), mean

  return ServerUpdate(init, update, "drift", takes_share=True)
