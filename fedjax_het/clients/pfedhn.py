r"""pFedHN: a network at the server makes each client's model out of a vector of the client's own.

Shamsian, Navon, Fetaya, Chechik, Personalized Federated Learning using Hypernetworks, ICML 2021, algorithm 1.
The server keeps a hypernetwork h with parameters φ and an embedding v_k of each client. Client i is sent
θ_i = h(v_i; φ), trains it to θ̃_i and sends that. With Δ_i = θ_i - θ̃_i the server steps along

    (1/S) Σ_i (∂θ_i/∂φ)ᵀ Δ_i    for φ,      and (1/S) (∂θ_i/∂v_i)ᵀ Δ_i    for v_i,

by SGD. h is a perceptron with `layers` hidden layers of H units, and a linear map to the P numbers of a
model, H·P numbers in all. A client's model is what it is sent.

Checked against the authors' code (AvivSham/pFedHN): the layers, the size of an embedding, the optimiser with
the norm of its gradient clipped at 50. There one client a round takes a step, for 5000 rounds, and h starts
from a network's usual draw. Here it starts where all clients have one drawn model (its last bias is that
model, its last kernel 0), with He's draws below, momentum is 0 and not 0.9, and the mean of a round's clients
is stepped along. With this the first rounds are near to FedAvg's, at the authors' rate 0.01, and a few rounds
suffice.
"""

from typing import Annotated, Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedjax_het import mixing
from fedjax_het.clients.addressed import count_of
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.objective import momentum_sgd
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.supervised import received, supervised
from fedjax_het.models import Model
from fedjax_het.modes import promoting
from fedjax_het.parts import ClientUpdate, Feedback, Message, ServerUpdate
from fedjax_het.settings import Count, Fraction, NonNegative, Positive, Whole, checked

PyTree = Any
Layers = Annotated[int, Whole(0)]


class Hyper(NamedTuple):
  """What the server trains.

  Attributes:
    embeddings: v, float32 [K, D].
    hidden: (kernel, bias) of each layer below the last.
    kernel: the last layer's, float32 [H, P].
    bias: the last layer's, float32 [P].
  """

  embeddings: jax.Array
  hidden: tuple[tuple[jax.Array, jax.Array], ...]
  kernel: jax.Array
  bias: jax.Array

  def models(self, ids: jax.Array) -> jax.Array:
    """Returns the models of some clients as rows, float32 [..., P], for indices int [...]."""
    found = self.embeddings[ids]
    for place, (kernel, bias) in enumerate(self.hidden):
      found = (found if place == 0 else jax.nn.relu(found)) @ kernel + bias
    return found @ self.kernel + self.bias


@checked
def pfedhn(
  model: Model,
  sizes: ArrayLike,
  *,
  embedding: Count | None = None,
  hidden: Count = 100,
  layers: Layers = 3,
  server_lr: Positive = 0.01,
  server_momentum: Fraction = 0.0,
  server_weight_decay: NonNegative = 1e-3,
  server_clip: Positive | None = 50.0,
  **local: Unpack[LocalSettings],
) -> ClientUpdate:
  """pFedHN's client part, which brings its server; clients keep nothing, and there is no global model.

  Args:
    model: the model that clients train; the server keeps `hidden` times its numbers.
    sizes: training examples of each client, int [K]; configurations give the data's.
    embedding: D, the length of a client's vector; None for ⌊1 + K/4⌋.
    hidden: H, the width of the hypernetwork.
    layers: hidden layers behind the first one.
    server_lr: the server's learning rate.
    server_momentum: the server's momentum, in [0, 1).
    server_weight_decay: L2 weight decay >= 0 of the hypernetwork and the vectors.
    server_clip: the largest norm of the server's gradient; None for no bound.
    **local: local training, see `LocalSettings`.

  Raises:
    SettingError: a setting is out of range.
  """
  recipe, num_clients = recipe_of(model, local), count_of(sizes)
  part = supervised(
    recipe, one_model(recipe), lambda broadcast, *_: received(model)(broadcast), name="pfedhn"
  )
  steps = momentum_sgd(server_momentum, server_weight_decay)(server_lr)
  steps = steps if server_clip is None else optax.chain(optax.clip_by_global_norm(server_clip), steps)
  length = int(1 + num_clients / 4) if embedding is None else embedding
  server = hypernetwork(num_clients, length, hidden, layers, promoting(steps))
  needs = part.needs._replace(brings={"mixing": mixing.uniform(), "server": server}, num_clients=num_clients)
  return part._replace(needs=needs)


def drawn(key: jax.Array, num_clients: int, length: int, width: int, layers: int, model: jax.Array) -> Hyper:
  """Draws a hypernetwork all of whose models are `model`, float32 [P]; He's draws below the last layer."""
  embedding_key, *keys = jax.random.split(key, layers + 2)
  sizes, hidden = [length, *[width] * (layers + 1)], []
  for place, own in enumerate(keys):
    scale = (1.0 if place == 0 else 2.0) / sizes[place]
    kernel = scale**0.5 * jax.random.normal(own, (sizes[place], sizes[place + 1]))
    hidden.append((kernel, jnp.zeros(width)))
  embeddings = jax.random.normal(embedding_key, (num_clients, length))
  return Hyper(embeddings, tuple(hidden), jnp.zeros((width, len(model))), model)


def hypernetwork(
  num_clients: int, length: int, width: int, layers: int, optimizer: optax.GradientTransformation
) -> ServerUpdate:
  """Returns pFedHN's server part, whose state is (`Hyper`, the optimiser's state); see `pfedhn`.

  It has no key: its draws follow from the bits of the first model, which differ between seeds.
  """

  def init(broadcast: Message) -> Any:
    flat = ravel_pytree(broadcast.params)[0]
    bits = jax.lax.bitcast_convert_type(flat, jnp.uint32)
    seed = jax.lax.reduce(bits, jnp.uint32(0), jax.lax.bitwise_xor, (0,))
    hyper = drawn(jax.random.key(seed), num_clients, length, width, layers, flat)
    return hyper, optimizer.init(hyper)

  def update(key: jax.Array, state: Any, broadcast: Message, aggregate: Message, feedback: Feedback):
    hyper, kept = state
    made, back = jax.vjp(lambda own: own.models(feedback.cohort), hyper)
    trained = jax.vmap(lambda own: ravel_pytree(own)[0])(feedback.uploads().params)
    gradient = back((made - trained) * (1.0 / len(made)))[0]
    steps, kept = optimizer.update(gradient, kept, hyper)
    return broadcast._replace(stats=aggregate.stats), (optax.apply_updates(hyper, steps), kept)

  def send(state: Any, broadcast: Message, i: jax.Array) -> Message:
    return broadcast._replace(params=ravel_pytree(broadcast.params)[1](state[0].models(i)))

  return ServerUpdate(init, update, "pfedhn", takes_feedback=True, send=send, uses_aggregate=False)
