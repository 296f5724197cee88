"""Clients that train while the server moves, and their uploads, which have not arrived."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.border import one_result
from fedjax_het.engine.clock import done_after, work
from fedjax_het.engine.cohort import participation_key
from fedjax_het.engine.state import State
from fedjax_het.parts import Algorithm, Info, Message, PyTree


class Flights(NamedTuple):
  """The work of n clients that is under way.

  Attributes:
    ids: the clients' indices, int32 [n]; -1 in a row that is empty.
    started: index of the server step whose broadcast a client trains on, int32 [n].
    remaining: seconds until its upload arrives, float32 [n].
    uploads: what it then sends, each leaf [n, ...]: as it is, or once the server has moved as the difference
      from the broadcast that the client trained on, unless the server moves towards models.
    info: the clients' reports, each leaf [n].
  """

  ids: jax.Array
  started: jax.Array
  remaining: jax.Array
  uploads: Message
  info: Info


class Pool(NamedTuple):
  """What an asynchronous run carries from step to step.

  Attributes:
    seconds: each client's seconds from its start until its upload arrives, float32 [K].
    waiting: those M - B whose uploads have not arrived.
  """

  seconds: jax.Array
  waiting: Flights


def with_pool(
  state: State, algorithm: Algorithm, sizes: jax.Array, data: FederatedData, cohort_size: int
) -> State:
  """Returns the first state of a run with the pool that an asynchronous server needs, in which nobody works.

  Args:
    state: the first state.
    algorithm: the parts.
    sizes: the clients' numbers of training examples, int32 [K].
    data: the clients' data, or their shapes.
    cohort_size: S.
  """
  part, client = algorithm.asynchronous, algorithm.client
  if not part.overlaps:
    return state
  own = work(algorithm, participation_key(state.key), sizes, data, cohort_size)

  def result(key: jax.Array, data: FederatedData) -> tuple[Message, PyTree, Info]:
    return one_result(client, key, data, client.init_broadcast(key), cohort_size)

  upload, _, info = jax.eval_shape(result, jax.random.key(0), data)
  room = part.concurrency - part.buffer_size

  def empty(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros((room, *shape.shape), shape.dtype)

  nobody = jnp.full(room, -1, jnp.int32)
  waiting = Flights(nobody, nobody, jnp.zeros(room), *jax.tree.map(empty, (upload, info)))
  return state._replace(pool=Pool(done_after(own.transfer, own.step, own.steps), waiting))
