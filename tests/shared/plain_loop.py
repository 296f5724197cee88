"""A run as a Python loop over single clients, beside which the conformance table puts the engine's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from small_parts import SIZES, one_client, round_draws

from fedjax_het.engine.cohort import AGGREGATION, ATTACK, FIRST_PASS, PARTICIPATION, key_of, round_keys
from fedjax_het.engine.dishonest import dishonest
from fedjax_het.engine.state import State
from fedjax_het.parts import Context, Feedback


def context_of(run, i, round, count=None):
  return Context(jnp.int32(i), round, count or run.cohort, len(SIZES))


def draws(run, state):
  """Who arrives in a round: clients, their places in the cohort, what they count, keys; the server's key.

  What they count is None where the mixing says it.
  """
  part, mixing = run.algorithm.participation, run.algorithm.mixing
  cohort, keys, server_key = round_draws(state, len(SIZES), run.cohort)
  if part.draw is None:
    return cohort, np.arange(run.cohort), None, keys, server_key
  key, rows = jax.random.fold_in(state.key, PARTICIPATION), part.rows(len(SIZES), run.cohort)
  drawn = part.draw(key, state.round, state.participation, len(SIZES), rows)
  slots = np.flatnonzero(drawn.present)
  cohort, clients_key = np.asarray(drawn.ids)[slots].tolist(), round_keys(state.key, state.round)[1]
  weights = None
  if part.unbiased:
    weights = mixing.population(jnp.asarray(SIZES))[np.array(cohort)] / drawn.probability[slots]
  return cohort, slots, weights, {i: jax.random.fold_in(clients_key, i) for i in cohort}, server_key


def seen_under(attack, data, who):
  """The clients' data with the rows that dishonest clients train on."""
  x, y = np.array(data.x), np.array(data.y)
  for i in np.flatnonzero(who) if attack.data else ():
    rows = slice(int(data.train.start[i]), int(data.train.start[i] + data.train.size[i]))
    x[rows], y[rows] = attack.data(jnp.arange(rows.stop - rows.start), x[rows], y[rows], data.num_classes)
  return dataclasses.replace(data, x=jnp.asarray(x), y=jnp.asarray(y))


def pooled(sent, before):
  """Σ w v / Σ w of values v [S, ...] with weights of a leading shape; the value before where Σ w = 0."""
  if sent == ():
    return before

  def one(weights, values, old):
    own = weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
    total = own.sum(0)
    return jnp.where(total > 0, (own * values).sum(0) / jnp.where(total > 0, total, 1.0), old)

  return jax.tree.map(one, jax.tree.broadcast(sent.weights, sent.values), sent.values, before)


def plain_rounds(run, rounds: int):
  """The run as a Python loop over those of each round's cohort that arrive, in any order.

  Returns (last host state, for each round the places in the cohort, the clients' infos and their losses).
  """
  client, mixing, server, combined, _, attack, *_ = run.algorithm
  key = jax.random.wrap_key_data(jnp.asarray(run.first.key))
  who = (
    np.zeros(len(SIZES), bool) if not attack.there else np.asarray(dishonest(key, attack.share, len(SIZES)))
  )
  data = seen_under(attack, run.data, who)
  asks = not np.isnan(run.infos.losses).any()
  loss = jax.jit(client.loss)
  survey = client.first_pass and jax.jit(client.first_pass)

  @jax.jit
  def serve(keys, round, parts, ids, uploads, losses, steps, weights):
    (mixing_state, server_state, broadcast, kept), (attack_key, own_key, server_key) = parts, keys
    if attack.forge:
      assert client.needs.uploads_model
      updates = jax.tree.map(jnp.subtract, uploads, broadcast)
      sent = attack.forge(attack_key, updates, jnp.asarray(who)[ids], jnp.ones(len(ids), bool))
      pick = lambda own, new, base: jnp.where(  # noqa: E731
        jnp.asarray(who)[ids].reshape(-1, *[1] * (own.ndim - 1)), base + new, own
      )
      uploads = jax.tree.map(pick, uploads, sent, broadcast)
    feedback = Feedback(
      ids, data.train.size[ids], round, lambda: losses, lambda: uploads, broadcast, steps=steps
    )
    p, mixing_state = mixing.update(mixing_state, feedback)
    p = p if weights is None else weights / weights.sum()
    aggregate = jax.tree.map(lambda leaf: jnp.tensordot(p, leaf, 1), uploads._replace(pooled=()))
    aggregate = aggregate._replace(pooled=pooled(uploads.pooled, broadcast.pooled))
    aggregate = aggregate._replace(even=jax.tree.map(lambda leaf: leaf.mean(0), uploads.even))
    if combined.combine:
      more = [run.algorithm.participation.sampled(len(SIZES), run.cohort)] * combined.by_expected
      aggregate, kept = combined.combine(own_key, kept, p, uploads, broadcast, jnp.ones(len(p), bool), *more)
    if mixing.scale or weights is not None:
      base, weights = broadcast.params, p * mixing.scale(feedback) if weights is None else weights
      total = lambda leaf, base: base * (1.0 - weights.sum()) + jnp.tensordot(weights, leaf, 1)  # noqa: E731
      aggregate = aggregate._replace(params=jax.tree.map(total, uploads.params, base))
    heard = (feedback,) if server.takes_feedback else ()
    heard += (jnp.float32(len(p) / len(SIZES)),) if server.takes_share else ()
    broadcast, server_state = server.update(server_key, server_state, broadcast, aggregate, *heard)
    return mixing_state, server_state, broadcast, kept

  state, infos = run.first, []
  for t in range(rounds):
    cohort, slots, weights, keys, server_key = draws(run, state._replace(key=key))
    order = np.random.default_rng(t).permutation(len(cohort)) if t else np.arange(len(cohort))
    clients, results, round = jax.tree.map(np.array, state.clients), {}, jnp.int32(t)
    losses = {}
    if survey:
      first = key_of(FIRST_PASS, key, round)
      found = [
        survey(
          jax.random.fold_in(first, i), state.broadcast, jax.tree.map(lambda leaf, i=i: leaf[i], clients),
          one_client(data, i), context_of(run, i, round, len(cohort)),
        )
        for i in cohort
      ]  # fmt: skip
      found = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
      sent = state.broadcast._replace(pooled=pooled(found, state.broadcast.pooled))
      state = state._replace(broadcast=sent)
    for slot in order:
      i = cohort[slot]
      own, context = jax.tree.map(lambda leaf: leaf[i], state.clients), context_of(run, i, round, len(cohort))
      received = server.received(server.sent(state.broadcast, state.server), i)
      if asks:
        losses[slot] = loss(received, own, one_client(data, i), context)
      upload, own, info = run.update(keys[i], received, own, one_client(data, i), context)
      jax.tree.map(lambda everybody, one: everybody.__setitem__(i, one), clients, own)
      results[slot] = upload, info
    if (
      attack.forge or combined.name == "bulyan"
    ):  # which may look at the order, at least where scores are equal
      order = np.arange(len(cohort))
    uploads, info = jax.tree.map(lambda *leaves: np.stack(leaves), *(results[slot] for slot in order))
    losses = [losses[slot] if asks else np.nan for slot in order]
    parts = state.mixing, state.server, state.broadcast, state.aggregation
    ids, of_attack = jnp.array([cohort[slot] for slot in order]), key_of(ATTACK, key, round)
    parts = serve(
      (of_attack, key_of(AGGREGATION, key, round), server_key),
      round,
      parts,
      ids,
      uploads,
      jnp.stack(losses),
      info.steps,
      weights if weights is None else weights[order],
    )
    mixing_state, server_state, broadcast, kept = jax.tree.map(np.array, parts)
    state = State(
      state.key, np.int32(t + 1), broadcast, server_state, mixing_state, clients, kept, state.participation
    )
    infos.append((slots[order], info, np.stack(losses)))
  return state, infos
