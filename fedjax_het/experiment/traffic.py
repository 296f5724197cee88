"""Bytes between server and clients, counted on the host in whole numbers."""

from typing import Any

import jax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.border import first_context, one_upload
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.state import init_client
from fedjax_het.parts import Algorithm


def traffic(algorithm: Algorithm, data: FederatedData, cohort_size: int, rounds: int = 1) -> dict[str, int]:
  """Computes the bytes that the algorithm sends to (down) and receives from (up) clients in some rounds.

  An upload counts as its transforms send it, values, indices and scales, rounded up to a whole byte.

  Args:
    algorithm: the parts, made of concrete numbers.
    data: the clients' data.
    cohort_size: S, how many clients a round has.
    rounds: number of rounds.
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
  sent = bytes_of(upload) if bits is None else -(-bits(upload) // 8)
  count = cohort_size * rounds
  return {"up": count * (sent + bytes_of(first)), "down": count * bytes_of((broadcast, again))}


def visits(infos: RoundInfo) -> int:
  """Returns how many clients some rounds sent the broadcast to, also those whose upload was lost."""
  return infos.cohort.size if isinstance(infos.contacted, tuple) else int(infos.contacted.sum())


def bytes_of(message: Any) -> int:
  """Returns the bytes of all leaves of a tree of arrays or their shapes."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
