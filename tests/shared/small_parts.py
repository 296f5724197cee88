"""What the core tests share: small federations, a plain walk through a run's draws, throw-away parts.

The parts have the awkward shapes of methods that the library may hold or not: a control variate in
`Message.even`, coefficients out of a Gram matrix, a broadcast that is data, a broadcast of several models.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.clients.objective import loss_gradient, training_loss
from fedjax_het.data.container import FederatedData, Part
from fedjax_het.engine.cohort import sample_cohort
from fedjax_het.engine.state import State
from fedjax_het.local import for_each_batch, shuffle
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate, Info, Message, Mixing, Needs, ServerUpdate

SIZES = (40, 1, 7, 3, 12, 2, 9, 1, 25, 5, 4, 17)
FEATURES, CLASSES = 4, 3


def mlp(hidden: int = 5) -> Model:
  """A perceptron with two layers, small enough to compile in no time."""

  def init(key):
    keys = jax.random.split(key, 4)
    shapes = {"fc1": (FEATURES, hidden), "fc2": (hidden, CLASSES)}
    return {
      name: {
        "kernel": 0.5 * jax.random.normal(keys[2 * i], shape),
        "bias": 0.1 * jax.random.normal(keys[2 * i + 1], shape[1:]),
      }
      for i, (name, shape) in enumerate(shapes.items())
    }

  def apply(params, x):
    h = jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    return h @ params["fc2"]["kernel"] + params["fc2"]["bias"]

  return Model(init, apply, "mlp", (FEATURES,), CLASSES, head=("fc2",))


def linear() -> Model:
  """Softmax regression, whose gradient is easily written by hand."""

  def init(key):
    return {"fc": {"kernel": jax.random.normal(key, (FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)}}

  return Model(init, linear_logits, "linear", (FEATURES,), CLASSES, head=("fc/bias",))


def federation(sizes, tests=None, order=None, seed: int = 0) -> FederatedData:
  """Clients with `sizes` training and `tests` test examples, laid out in flat arrays in `order`.

  A client's examples depend on its number only, not on where they lie.
  """
  tests = [1 + i % 3 for i in range(len(sizes))] if tests is None else tests
  centers = 1.5 * np.random.default_rng(seed).normal(size=(CLASSES, FEATURES))
  rows, starts, end = [], np.zeros((len(sizes), 2), int), 0
  for i in range(len(sizes)) if order is None else order:
    rng = np.random.default_rng([seed, i])
    y = rng.integers(0, CLASSES, sizes[i] + tests[i])
    x = centers[y] + rng.normal(size=(len(y), FEATURES)) + 0.3 * rng.normal(size=FEATURES)
    rows.append((x, y))
    starts[i] = end, end + sizes[i]
    end += len(y)
  x, y = (np.concatenate(arrays) for arrays in zip(*rows))
  counts = np.stack([sizes, np.zeros_like(sizes), tests])
  starts = np.stack([starts[:, 0], starts[:, 1], starts[:, 1]])
  return FederatedData(
    jnp.asarray(x, jnp.float32),
    jnp.asarray(y, jnp.int32),
    *(Part(jnp.asarray(s, jnp.int32), jnp.asarray(n, jnp.int32)) for s, n in zip(starts, counts)),
    num_classes=CLASSES,
    limits=tuple(int(n.max()) for n in counts),
    uniform=tuple(bool((n == n[0]).all()) for n in counts),
  )


# A run's draws, in plain Python.


@partial(jax.jit, static_argnums=(2, 3))
def _draws(key, round, num_clients, cohort_size):
  key = jax.random.fold_in(key, round)
  cohort_key, clients_key, server_key = (jax.random.fold_in(key, purpose) for purpose in range(3))
  cohort = sample_cohort(cohort_key, num_clients, cohort_size)
  return cohort, jax.vmap(lambda i: jax.random.fold_in(clients_key, i))(cohort), server_key


def round_draws(state: State, num_clients: int, cohort_size: int):
  """(cohort, {client: key}, the server's key) of a state's next round."""
  cohort, keys, server_key = _draws(state.key, state.round, num_clients, cohort_size)
  return cohort.tolist(), {int(i): key for i, key in zip(cohort, keys)}, server_key


def one_client(data: FederatedData, i: int, part: str = "train"):
  """Client i's own view."""
  return data.clients(jnp.int32(i), part)


def rows_of(data: FederatedData, i: int, part: str = "train"):
  """Client i's examples and labels as float64 and int arrays."""
  slices = getattr(data, part)
  rows = slice(int(slices.start[i]), int(slices.start[i] + slices.size[i]))
  return np.asarray(data.x, np.float64)[rows], np.asarray(data.y)[rows]


@partial(jax.jit, static_argnums=(3, 4))
def _epoch_draws(key, e, view, padded, steps):
  order_key, step_key = jax.random.split(jax.random.fold_in(key, e))
  step_keys = jax.vmap(lambda s: jax.random.fold_in(step_key, s))(jnp.arange(steps))
  return shuffle(order_key, view, padded), step_keys


def walk(key, data: FederatedData, i: int, batch_size: int, epochs: int):
  """The mini-batches of client i's local training: x float64 [b, D], y [b], the step's key."""
  x, y = rows_of(data, i)
  most = -(-data.limits[0] // batch_size)
  for e in range(epochs):
    order, step_keys = _epoch_draws(key, e, one_client(data, i), most * batch_size, most)
    order = np.asarray(order)[: len(x)]
    for s, first in enumerate(range(0, len(x), batch_size)):
      rows = order[first : first + batch_size]
      yield x[rows], y[rows], step_keys[s]


# Softmax regression by hand, in float64.


def float64(tree):
  """A tree on the host in float64."""
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def softmax(logits):
  p = np.exp(logits - logits.max(1, keepdims=True))
  return p / p.sum(1, keepdims=True)


def linear_logits(params, x):
  return x @ params["fc"]["kernel"] + params["fc"]["bias"]


def linear_loss_and_gradient(params, x, y):
  """Mean cross-entropy of `linear` and its gradient."""
  p = softmax(linear_logits(params, x))
  residual = (p - np.eye(CLASSES)[y]) / len(x)
  loss = -np.mean(np.log(p[np.arange(len(x)), y]))
  return loss, {"fc": {"kernel": x.T @ residual, "bias": residual.sum(0)}}


# Throw-away parts.


def descend(key, data, batch_size, epochs, start, step):
  """Folds step: (carry, batch) -> (carry, loss) over the local mini-batches: (carry, `Info`)."""

  def count(state, batch):
    carry, total, steps = state
    carry, loss = step(carry, batch)
    return carry, total + loss, steps + 1

  first = (start, jnp.float32(0.0), jnp.int32(0))
  carry, total, steps = for_each_batch(key, data, batch_size, epochs, count, first)
  return carry, Info(total / steps, steps)


def scaffold(model: Model, lr=0.1, epochs=2, batch_size=4) -> ClientUpdate:
  """SCAFFOLD's shape: own control variate c_i in the state, the server's c in `even`.

  y <- y - lr (∇ + c - c_i);  c_i' = c_i - c + (x - y) / (steps lr);  the even mean of what is sent as `even`,
  c + S/K (c_i' - c_i), makes c <- c + S/K mean(c_i' - c_i), whatever the models are mixed by.
  """

  def update(key, broadcast, own, data, context):
    center, control = broadcast.params, broadcast.even
    fraction = context.cohort_size / context.num_clients

    def step(params, batch):
      loss, gradient, _ = loss_gradient(model, params, (), batch)
      return jax.tree.map(lambda p, g, c, o: p - lr * (g + c - o), params, gradient, control, own), loss

    params, info = descend(key, data, batch_size, epochs, center, step)
    scale = 1.0 / (info.steps * lr)
    new = jax.tree.map(lambda o, c, x, y: o - c + (x - y) * scale, own, control, center, params)
    even = jax.tree.map(lambda c, n, o: c + fraction * (n - o), control, new, own)
    return Message(params, even=even), new, info

  def init_broadcast(key):
    params = model.init(key)
    return Message(params, even=jax.tree.map(jnp.zeros_like, params))

  return ClientUpdate(
    init_broadcast=init_broadcast,
    init=lambda key, broadcast, *_: jax.tree.map(jnp.zeros_like, broadcast.even),
    update=update,
    loss=lambda broadcast, own, data, context: training_loss(model, broadcast.params, data),
    personalize=lambda broadcast, *_: broadcast.params,
    global_model=lambda broadcast: broadcast.params,
    apply=model.apply,
  )


def gram() -> Mixing:
  """FedMGDA+'s shape: p out of the Gram matrix of the normalised updates d_i; it counts who was heard.

  p_i ∝ 1 / (1 + S + Σ_j <d_i, d_j>): who points where all do counts less.
  """

  def update(heard, feedback):
    updates = jax.tree.map(lambda u, b: u - b, feedback.uploads().params, feedback.broadcast.params)
    d = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(updates)], axis=1)
    squares = jnp.sum(d**2, axis=1, keepdims=True)
    d = jnp.where(squares > 0, d / jnp.sqrt(jnp.where(squares > 0, squares, 1.0)), 0.0)
    p = 1.0 / (1.0 + len(d) + (d @ d.T).sum(1))
    return p / p.sum(), heard.at[feedback.cohort].add(1)

  return Mixing(lambda sizes: jnp.zeros_like(sizes), update)


SYNTHETIC_LABELS = np.arange(6) % CLASSES


def synthesis(model: Model, lr=0.1, epochs=2, batch_size=4) -> ClientUpdate:
  """FedEvg's shape: the broadcast is data x̃, the upload is (e ∇E, e), the classifier stays at home.

  E(x̃) = -f(x̃)[ỹ],  e = exp(sgn f(x̃)[ỹ]).  The server's own model is x̃ itself, by nearest neighbour.
  """

  def energy(params, x):
    return -model.apply(params, x)[jnp.arange(len(SYNTHETIC_LABELS)), SYNTHETIC_LABELS]

  def update(key, broadcast, own, data, context):
    def step(params, batch):
      loss, gradient, _ = loss_gradient(model, params, (), batch)
      return jax.tree.map(lambda p, g: p - lr * g, params, gradient), loss

    params, info = descend(key, data, batch_size, epochs, own, step)
    gradient = jax.grad(lambda x: energy(params, x).sum())(broadcast.params)
    weight = jnp.exp(jnp.sign(-energy(params, broadcast.params)))
    return Message(weight[:, None] * gradient, weight), params, info

  def apply(params, x):
    if isinstance(params, dict):
      return model.apply(params, x)
    distances = jnp.sum((x[:, None] - params) ** 2, axis=-1)
    return jnp.stack([-distances[:, c == SYNTHETIC_LABELS].min(1) for c in range(CLASSES)], axis=1)

  shape = (len(SYNTHETIC_LABELS), FEATURES)
  return ClientUpdate(
    init_broadcast=lambda key: Message(jax.random.normal(key, shape), jnp.zeros(shape[0])),
    init=lambda key, broadcast, data, context: model.init(jax.random.fold_in(key, context.client)),
    update=update,
    loss=lambda *_: jnp.float32(0.0),
    personalize=lambda broadcast, own, *_: own,
    global_model=lambda broadcast: broadcast.params,
    apply=apply,
    needs=Needs(uploads_model=False),
  )


def sgld(step_size=0.5, noise=0.01) -> ServerUpdate:
  """FedEvg's shape: x̃ <- x̃ - β Σ p e ∇E / Σ p e + δ ε; the state counts the steps."""

  def update(key, count, broadcast, aggregate):
    mean = aggregate.params / aggregate.extra[:, None]
    x = broadcast.params - step_size * mean + noise * jax.random.normal(key, mean.shape)
    return Message(x, aggregate.extra), count + 1

  return ServerUpdate(lambda broadcast: jnp.int32(0), update, takes_models=False)


ENDPOINTS = 3


def blend(endpoints, alpha):
  """Σ_m α_m θ_m."""
  return jax.tree.map(lambda *ends: sum(alpha[m] * end for m, end in enumerate(ends)), *endpoints)


def simplex(model: Model, lr=0.1, epochs=2, batch_size=4) -> ClientUpdate:
  """SosicFL's shape: the broadcast is a tuple of endpoints, each step trains a random point between them.

  w = Σ_m α_m θ_m, one backward pass, θ_m <- θ_m - α_m γ ∇F(w). A client's model is its own fixed point.
  """
  ones = jnp.ones(ENDPOINTS)

  def update(key, broadcast, own, data, context):
    def step(endpoints, batch):
      alpha = jax.random.dirichlet(batch.key, ones)
      point = blend(endpoints, alpha)
      loss, gradient, _ = loss_gradient(model, point, (), batch)
      moved = tuple(
        jax.tree.map(lambda t, g: t - alpha[m] * lr * g, end, gradient) for m, end in enumerate(endpoints)
      )
      return moved, loss

    endpoints, info = descend(key, data, batch_size, epochs, broadcast.params, step)
    return Message(endpoints), own, info

  def center(broadcast):
    return blend(broadcast.params, ones / ENDPOINTS)

  return ClientUpdate(
    init_broadcast=lambda key: Message(tuple(model.init(k) for k in jax.random.split(key, ENDPOINTS))),
    init=lambda key, broadcast, data, context: jax.random.dirichlet(
      jax.random.fold_in(key, context.client), ones
    ),
    update=update,
    loss=lambda broadcast, own, data, context: training_loss(model, center(broadcast), data),
    personalize=lambda broadcast, own, *_: blend(broadcast.params, own),
    global_model=center,
    apply=model.apply,
  )
