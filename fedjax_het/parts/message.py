"""The messages that travel between server and clients, and what accompanies them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any


class Pooled(NamedTuple):
  """Values that a client uploads in `Message.pooled`, with weights of its own.

  Attributes:
    values: a tree of floats v, with the structure and shapes of the broadcast's `pooled`.
    weights: w >= 0, float; a tree prefix of `values`, as in `jax.vmap`: one array stands for a whole subtree.
      Its shape is a leading part of the shape of each value that it weighs: () for one weight for the value,
      [C] for one for each of C rows. A value whose weight is 0 is never read, so that it may be NaN.
  """

  values: PyTree
  weights: PyTree


class Message(NamedTuple):
  """A message from the server to clients (a broadcast) or back (an upload).

  Every field is a pytree. Leaves are floats or integers; an average of integers is rounded to the nearest
  one. The params of an upload have the structure and shapes of the broadcast's, unless they are a signal, see
  `Needs.uploads_model`. p are the mixing coefficients, [S].

  Attributes:
    params: the object that the server part moves: a model, endpoints of a simplex, or synthetic examples.
      Uploads u_i become Σ_i p_i u_i.
    extra: further values that are averaged like `params`, Σ_i p_i u_i.
    stats: a model's running statistics, averaged like `params`; no server optimiser moves them.
    even: values that are averaged with equal weights, Σ_i u_i / S, such as control variates.
    pooled: values that are averaged with weights of their own, whatever p. Uploads `Pooled(v_i, w_i)` become
      Σ_i w_i v_i / Σ_i w_i; where Σ_i w_i = 0, as for a class that no client of the cohort has, the
      broadcast's value is kept. In a broadcast the values v alone. An upload that leaves it out has weight 0.
    wire: numbers that upload transforms share, such as the bound of an adaptive clip, averaged like `even`;
      methods neither read nor write them.
  """

  params: PyTree
  extra: PyTree = ()
  stats: PyTree = ()
  even: PyTree = ()
  pooled: PyTree = ()
  wire: PyTree = ()


class Context(NamedTuple):
  """Client and round indices, cohort and population sizes; int32 scalars.

  The defaults describe a single client in the first round.

  Attributes:
    client: index i of the client, from 0.
    round: index of the round, from 0; in an evaluation the number of finished rounds; 0 in `init`.
    cohort_size: S, the number of clients in a cohort; in a round the number of those whose uploads arrive, or
      beside an aggregation part that is `by_expected` the number that it expects, float32, where it varies.
    num_clients: K, the number of clients.
  """

  client: int | jax.Array = 0
  round: int | jax.Array = 0
  cohort_size: int | jax.Array = 1
  num_clients: int | jax.Array = 1


class Info(NamedTuple):
  """A client's report on its local training, for logging; never fed back into training.

  Attributes:
    loss: mean of the mini-batch losses over the local steps, float32 scalar.
    steps: number of local steps, int32 scalar, whatever number of gradients each computes.
    figures: further diagnostics, name -> float32 scalar, with the same names in every round. Their means over
      the cohort are written to metrics.jsonl.
    sent: bytes of the client's upload, int32 scalar, for a method whose uploads do not have the size that
      their shapes say, such as a rank that depends on the update; () for the others. The run's `bytes` count
      it, a system part's clock goes by the shapes. Such a method lets nothing be transformed, see
      `Needs.transformed`.
  """

  loss: jax.Array
  steps: jax.Array
  figures: Any = ()
  sent: Any = ()

  @classmethod
  def of_sum(cls, total: jax.Array, steps: jax.Array, figures: Any = ()) -> "Info":
    """Returns the report for mini-batch losses that sum to `total`, float32, over `steps` steps, int32."""
    return cls(total / steps.astype(jnp.float32), steps, figures)


class Feedback(NamedTuple):
  """The round's information for a mixing part, and for a server part that asks for it.

  Attributes:
    cohort: indices of the sampled clients, int32 [S], without repetition.
    sizes: their numbers of training examples, int32 [S].
    round: index of the round, from 0, int32 scalar.
    losses: () -> float32 [S], the losses F_i before local training. A call costs one forward pass over the
      cohort's data; without a call nothing is computed. An absent client's is the mean of the others'.
    uploads: () -> the cohort's uploads, each leaf [S, ...]. A call gathers them on every device.
    broadcast: what the cohort received; the clients' updates are uploads minus broadcast. If the server part
      addresses clients (`ServerUpdate.send`), the message that it made each client's of.
    present: whose uploads arrived, bool [S]; None if all clients' do.
    steps: the local steps that each client took, int32 [S].
    probability: see `Draw.probability`; None if all clients' uploads arrive.
  """

  cohort: jax.Array
  sizes: jax.Array
  round: jax.Array
  losses: Callable[[], jax.Array]
  uploads: Callable[[], Message]
  broadcast: Message
  present: jax.Array | None = None
  steps: jax.Array | None = None
  probability: jax.Array | None = None
