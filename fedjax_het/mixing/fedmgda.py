r"""FedMGDA+: the minimum-norm combination of normalised updates, with λ within ε of static mixing.

Hu, Shaloudegi, Zhang, Yu, Federated Learning Meets Multi-objective Optimization, IEEE TNSE 9(4), 2022:

    d_i = θ_i - θ,   u_i = d_i/‖d_i‖,
    λ = argmin ‖Σ_i λ_i u_i‖²  over  {λ in simplex : |λ_i - n_i/n| <= ε},
    θ <- θ + η Σ_i λ_i u_i.

Σ λ_i u_i is the point of least norm in the convex hull of the clients' normalised updates, as far as ε
permits. ε = 0 leaves λ at static mixing; with ε = 1 the point has <Σ λ_j u_j, u_i> >= ‖Σ λ_j u_j‖² for every
client (Désidéri, Multiple-gradient descent algorithm, Comptes Rendus Mathématique 350, 2012): no client's
update points against it. The property is lost if unnormalised updates are mixed by λ, since a long update
then outweighs a short one.

The paper's updates have length 1, and its server's learning rate η sets the step length. A server that moves
to the average, η = 1, needs updates at their original scale: here u_i is multiplied by the mean length Σ_j
(n_j/n) ‖d_j‖ unless `step="unit"` selects the paper's form. The direction is the same.
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import vectors
from fedjax_het.mixing.responses import beyond_one
from fedjax_het.mixing.simplex import minimise_on_box_simplex
from fedjax_het.mixing.static import shares_of_examples
from fedjax_het.parts import Mixing, Needs, PyTree
from fedjax_het.settings import Choice, Share, checked

STEPS = ("mean", "unit")


def normalised(uploads: PyTree, broadcast: PyTree) -> tuple[PyTree, jax.Array]:
  """Computes normalised updates u_i = d_i/‖d_i‖, float32 [S, ...] per leaf, and ‖d_i‖, float32 [S].

  u_i is 0 if d_i is. Each update is divided by its largest entry first, so that no square over- or
  underflows.

  Args:
    uploads: the clients' parameters, each leaf [S, ...].
    broadcast: the received parameters, each leaf [...].
  """

  def per_client(reduce, leaves):
    return jnp.stack([reduce(leaf.reshape(leaf.shape[0], -1), axis=1) for leaf in leaves])

  def divide(tree, by):  # by a factor: XLA compiles a division differently on several devices
    factor = 1.0 / jnp.where(by < jnp.finfo(by.dtype).tiny, 1.0, by)
    return jax.tree.map(lambda leaf: leaf * vectors.over(factor, leaf), tree)

  update = jax.tree.map(lambda upload, base: (upload - base).astype(jnp.float32), uploads, broadcast)
  largest = per_client(lambda flat, axis: jnp.abs(flat).max(axis), jax.tree.leaves(update)).max(0)
  update = divide(update, largest)
  norm = jnp.sqrt(per_client(lambda flat, axis: jnp.sum(flat * flat, axis), jax.tree.leaves(update)).sum(0))
  return divide(update, norm), largest * norm


def cosines(uploads: PyTree, broadcast: PyTree) -> jax.Array:
  """Computes cosines <u_i, u_j> of the clients' updates, float32 [S, S]; 0 for a client whose update is 0.

  The arguments are those of `normalised`.
  """
  return vectors.products(normalised(uploads, broadcast)[0])


@checked
def fedmgda(epsilon: Share = 0.1, step: Annotated[str, Choice(STEPS)] = "mean") -> Mixing:
  """FedMGDA+'s mixing part, stateless; its coefficients are λ, and it needs no losses.

  An update that is 0 stays 0; an update that is not finite leaves λ at static mixing, and the aggregate is
  not finite.

  Args:
    epsilon: ε in [0, 1], maximum distance of a coefficient from n_i / n.
    step: length of a normalised update: "mean", Σ_j (n_j/n) ‖d_j‖, which with ε = 0 and updates of equal
      length is FedAvg; or "unit", 1, as in the paper, for a server with a separate learning rate.

  Raises:
    SettingError: ε is out of range, or `step` is unknown; from `check_cohort`, the cohort has one client and
      `step` is "mean".
  """

  def update(state, feedback):
    static = shares_of_examples(feedback)
    gram = cosines(feedback.uploads().params, feedback.broadcast.params)
    low, high = jnp.maximum(static - epsilon, 0.0), jnp.minimum(static + epsilon, 1.0)
    return minimise_on_box_simplex(gram, jnp.zeros_like(static), low, high, static), state

  def scale(feedback):
    _, length = normalised(feedback.uploads().params, feedback.broadcast.params)
    wanted = jnp.dot(shares_of_examples(feedback), length) if step == "mean" else 1.0
    factor = jnp.where(length == 0, 0.0, wanted / jnp.where(length == 0, 1.0, length))
    return jnp.minimum(factor, jnp.finfo(jnp.float32).max)

  check_cohort = beyond_one if step == "mean" else None
  return Mixing(lambda sizes: (), update, "fedmgda", scale, needs=Needs(check_cohort=check_cohort))
