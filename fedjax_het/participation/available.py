"""Participation by chance or by the clock: clients that are available now and then, or in turns."""

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, is_one, is_zero
from fedjax_het.participation.among import Arrival, UpToOne, among, everybody_arrives, expected
from fedjax_het.parts import Needs, Participation, Sampling
from fedjax_het.settings import Count, Share, checked, with_defaults


@checked
def uniform(**arrival: Unpack[Arrival]) -> Participation:
  """S of K clients, uniformly without replacement; with the defaults, all arrive and the part is left out.

  Args:
    **arrival: dropouts and partial work, see `Arrival`.
  """
  arrival = with_defaults(Arrival, arrival)
  if everybody_arrives(arrival):
    return Participation()
  return drawn_uniformly(arrival)


def drawn_uniformly(arrival: Arrival) -> Participation:
  """Returns the part that draws S of K clients uniformly, also where all arrive."""
  there = lambda key, round, state, num: (jnp.ones(num, bool), jnp.ones(num))  # noqa: E731
  return among(
    there, "uniform", arrival,
    sampling=lambda num, size: Sampling("uniform", "fixed", num, size, float(size)),
  )  # fmt: skip


@checked
def available(probability: UpToOne = 0.5, spread: Share = 0.0, **arrival: Unpack[Arrival]) -> Participation:
  """S of the clients that are available in a round, each with its probability, independently of the others.

  Args:
    probability: q in (0, 1], the probability for all clients, or the middle of theirs.
    spread: client i has q_i, drawn once, uniform on q ± spread and cut to [0, 1]; 0 for q_i = q. q is also
      their mean unless they are cut on one side.
    **arrival: dropouts and partial work, see `Arrival`.
  """
  arrival = with_defaults(Arrival, arrival)
  if is_one(probability) and is_zero(spread) and everybody_arrives(arrival):
    return Participation()

  def chances_of(key, sizes, cohort_size):
    own = 2.0 * jax.random.uniform(jax.random.fold_in(key, 2**32 - 1), sizes.shape) - 1.0
    return jnp.clip(jnp.float32(probability) + jnp.float32(spread) * own, 0.0, 1.0)

  def there(key, round, state, num):
    chances = jnp.full(num, probability, jnp.float32) if is_zero(spread) else state
    now = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, round), 3), (num,))
    return now < chances, chances

  def sampling(num, size):
    mean = probability if is_zero(spread) else mean_of_cut(probability, spread)
    return Sampling("available", "any", num, size, expected(jnp.full(num, mean, jnp.float32), size))

  if is_zero(spread):
    return among(there, "available", arrival, sampling=sampling)
  return among(there, "available", arrival, init=chances_of, sampling=sampling)


def mean_of_cut(middle: float | jax.Array, spread: float | jax.Array) -> jax.Array:
  """Computes the mean of a uniform variable on middle ± spread that is cut to [0, 1], float32 scalar.

  Args:
    middle: q in [0, 1].
    spread: s in [0, 1].
  """
  q, s = jnp.float32(middle), jnp.float32(spread)
  low, high = jnp.maximum(q - s, 0.0), jnp.minimum(q + s, 1.0)
  cut = (0.5 * (high**2 - low**2) + q + s - high) / jnp.maximum(2.0 * s, 1e-30)
  return jnp.where((q - s < 0.0) | (q + s > 1.0), cut, q)


@checked
def cyclic(blocks: Count = 2, period: Count = 1, **arrival: Unpack[Arrival]) -> Participation:
  """Blocks of clients take turns, as day and night; the block of round t is ⌊t/period⌋ mod `blocks`.

  Args:
    blocks: number of blocks; client i of K is in block ⌊i·blocks/K⌋.
    period: rounds after which the next block comes.
    **arrival: dropouts and partial work, see `Arrival`.

  Raises:
    SettingError: from `check_cohort`, there are more blocks than clients.
  """
  arrival = with_defaults(Arrival, arrival)
  if blocks == 1 and everybody_arrives(arrival):
    return Participation()

  def check_cohort(size: int, num: int) -> None:
    if blocks > num:
      raise SettingError("blocks", blocks, f"there are {num} clients", f"Use at most {num}.")

  def there(key, round, state, num):
    block = jnp.asarray([i * blocks // num for i in range(num)], jnp.int32)
    now = block == (round // period) % blocks
    return now, now.astype(jnp.float32)

  def sampling(num, size):
    counts = np.bincount(np.arange(num) * blocks // num, minlength=blocks)
    mean = float(np.minimum(counts, size).mean())
    return Sampling("cyclic", "any", num, size, mean, separation=blocks if period == 1 else 1)

  return among(there, "cyclic", arrival, Needs(check_cohort=check_cohort), sampling=sampling)
