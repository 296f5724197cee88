"""Sizes of the messages between server and clients, known from shapes alone."""

from typing import Any, NamedTuple

import jax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.border import first_context, one_upload
from fedjax_het.engine.capacity import size
from fedjax_het.engine.state import init_client
from fedjax_het.parts import Algorithm


class MessageBytes(NamedTuple):
  """Bytes of one client in a round.

  They are whole numbers for an algorithm of concrete numbers. In a program that has a transform's settings as
  values, `up` may be a float32 scalar.

  Attributes:
    up: what it sends, as its transforms send it, rounded up to a whole byte.
    down: what it receives.
  """

  up: int | jax.Array
  down: int


def message_bytes(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> MessageBytes:
  """Computes the bytes that one client sends and receives in a round; a first pass counts.

  Args:
    algorithm: the parts.
    data: the clients' data, or their shapes.
    cohort_size: S.
  """
  client = algorithm.client

  def messages(key, data):
    broadcast, own, context = client.init_broadcast(key), data.clients(0), first_context(data, cohort_size)
    first: Any = ()
    if client.first_pass is not None:
      state = init_client(client, key, broadcast, own, context)
      first = client.first_pass(key, broadcast, state, own, context)
    return broadcast, one_upload(client, key, data, broadcast, cohort_size), first

  broadcast, upload, first = jax.eval_shape(messages, jax.random.key(0), data)
  again = broadcast.pooled if client.first_pass else ()  # after the first pass, to train with
  bits = client.needs.upload_bits
  sent = size(upload) if bits is None else -(-bits(upload) // 8)
  return MessageBytes(sent + size(first), size((broadcast, again)))
