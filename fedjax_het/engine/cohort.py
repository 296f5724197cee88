"""Which clients take part in a round."""

import jax
import jax.numpy as jnp
from jax import lax


def sample_cohort(key: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
  """S different clients of K, uniformly: int32 [S]. Everybody, in order, where S = K.

  Small cohorts are the first S cards of a Fisher-Yates shuffle that notes only the cards it has moved, in
  time S² whatever K; for large ones all K are shuffled, in time K log K.
  """
  if cohort_size == num_clients:
    return jnp.arange(num_clients, dtype=jnp.int32)
  if cohort_size**2 > 256 * num_clients:
    return jax.random.choice(key, num_clients, (cohort_size,), replace=False).astype(jnp.int32)
  targets = jax.random.randint(key, (cohort_size,), jnp.arange(cohort_size), num_clients, jnp.int32)
  turns = jnp.arange(cohort_size)

  def swap(turn, moved):
    cards, drawn = moved

    def card_at(place):
      last = jnp.where((targets == place) & (turns < turn), turns, -1).max()
      return jnp.where(last < 0, jnp.int32(place), cards[last])

    drawn = drawn.at[turn].set(card_at(targets[turn]))
    return cards.at[turn].set(card_at(turn)), drawn

  nothing = jnp.zeros(cohort_size, jnp.int32)
  return lax.fori_loop(0, cohort_size, swap, (nothing, nothing))[1]


def round_keys(key: jax.Array, round: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The keys of a round's cohort, of its clients (to fold their numbers in) and of the server."""
  key = jax.random.fold_in(key, round)
  cohort, clients, server = (jax.random.fold_in(key, purpose) for purpose in range(3))
  return cohort, clients, server


def cohort_of(key: jax.Array, round: jax.Array, num_clients: int, cohort_size: int) -> jax.Array:
  """The cohort of a round of the run with `key`, int32 [S]; nothing else decides it."""
  return sample_cohort(round_keys(key, round)[0], num_clients, cohort_size)
