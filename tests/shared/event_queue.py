"""An asynchronous run as an event queue in plain Python, beside which tests put the engine's."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
from small_parts import SIZES, one_client

from fedjax_het.engine.asynchronous import idle
from fedjax_het.engine.cohort import START, key_of, round_keys
from fedjax_het.parts import Context, Feedback


def arrivals(seconds, start, rounds: int, buffer_size: int, concurrency: int):
  """Yields of each server step (whom it starts, who arrives: (client, step in which it began), seconds).

  Args:
    seconds: each client's seconds, float32 [K].
    start: (t, number of a batch, clients that work) -> the clients that are to start, [B].
    rounds: number of server steps.
    buffer_size: B.
    concurrency: M.
  """
  queue, begun = [], 0  # (seconds left, number of the start, client, step)
  for t in range(rounds):
    missing, batch, started = concurrency - len(queue), 0 if t == 0 else -1, []
    if t:
      wanted = [buffer_size]
    else:  # all but the last B fill the room of those that will wait
      room = concurrency - buffer_size
      wanted = [min(buffer_size, room - first) for first in range(0, room, buffer_size)] + [buffer_size]
    assert sum(wanted) == missing
    for batch, count in enumerate(wanted):
      number = batch if t == 0 else -(-(concurrency - buffer_size) // buffer_size)
      for i in start(t, number, [client for *_, client, _ in queue])[:count]:
        heapq.heappush(queue, (seconds[i], begun, int(i), t))
        started.append(int(i))
        begun += 1
    first = sorted((heapq.heappop(queue) for _ in range(buffer_size)), key=lambda event: event[1])
    passed = max(max(event[0] for event in first), np.float32(0))
    queue = [(np.float32(left - passed), *rest) for left, *rest in queue]
    heapq.heapify(queue)
    yield started, [(client, step) for *_, client, step in first], passed


def queued_rounds(run, rounds: int):
  """A run of the conformance table as an event queue over single clients.

  Returns (params of the broadcast, clients' states, the arriving clients of each step, their infos).
  """
  algorithm, part = run.algorithm, run.algorithm.asynchronous
  client, mixing, server = algorithm.client, algorithm.mixing, algorithm.server
  key, count = jax.random.wrap_key_data(jnp.asarray(run.first.key)), len(SIZES)

  def start(t, batch, working):
    own = jax.random.fold_in(key_of(START, key, jnp.int32(t)), batch)
    return np.asarray(idle(own, jnp.array(working or [-1], jnp.int32), count, part.buffer_size))

  seconds = np.asarray(run.first.pool.seconds)
  broadcast, states = run.first.broadcast, jax.tree.map(np.array, run.first.clients)
  share = (jnp.float32(part.buffer_size / count),) if server.takes_share else ()
  server_state, mixing_state, sent, cohorts, infos = run.first.server, run.first.mixing, {}, [], []
  steps = arrivals(seconds, start, rounds, part.buffer_size, part.concurrency)
  for t, (started, came, passed) in enumerate(steps):
    keys = {i: jax.random.fold_in(round_keys(key, jnp.int32(t))[1], i) for i in started}
    for i in started:
      own = jax.tree.map(lambda leaf, i=i: leaf[i].copy(), states)  # it is written to below
      now = Context(jnp.int32(i), jnp.int32(t), part.buffer_size, count)
      upload, own, info = client.update(keys[i], broadcast, own, one_client(run.data, i), now)
      jax.tree.map(lambda everybody, one, i=i: everybody.__setitem__(i, one), states, own)
      sent[i, t] = upload, broadcast, info
    uploads = []
    for i, step in came:
      upload, base, _ = sent[i, step]
      weight = part.weight(jnp.array([t - step]))[0]
      own = broadcast._fields if part.of_models else client.needs.replaces
      base = base._replace(**{name: getattr(broadcast, name) for name in own})
      uploads.append(jax.tree.map(lambda u, b, now, w=weight: now + w * (u - b), upload, base, broadcast))
    uploads = jax.tree.map(lambda *leaves: np.stack(leaves), *uploads)
    info = jax.tree.map(lambda *leaves: np.stack(leaves), *(sent[event][2] for event in came))
    ids = jnp.array([i for i, _ in came])
    feedback = Feedback(ids, run.data.train.size[ids], jnp.int32(t), None, None, broadcast, steps=info.steps)
    p, mixing_state = mixing.update(mixing_state, feedback)
    aggregate = jax.tree.map(lambda leaf: jnp.tensordot(p, leaf, 1), uploads)
    aggregate = aggregate._replace(even=jax.tree.map(lambda leaf: leaf.mean(0), uploads.even))
    broadcast, server_state = server.update(None, server_state, broadcast, aggregate, *share)
    cohorts.append((ids, passed))
    infos.append(info)
  return broadcast, states, cohorts, infos
