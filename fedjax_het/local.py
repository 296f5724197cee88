"""Local training: loops over a client's examples in mini-batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.data.container import Array, ClientData

PyTree = Any


class Batch(NamedTuple):
  """A mini-batch of B examples, some of which may be padding.

  Attributes:
    x: examples, float32 [B, ...].
    y: labels, int32 [B].
    weight: 1 for a real example and 0 for padding in a last partial batch, float32 [B].
    key: typed PRNG key of this step.
  """

  x: jax.Array
  y: jax.Array
  weight: jax.Array
  key: jax.Array


def weighted_mean(values: jax.Array, weight: jax.Array) -> jax.Array:
  """Computes the mean of values [B] over a batch's real examples, float32 scalar."""
  return jnp.sum(values * weight) / jnp.sum(weight)


def sum_over_blocks(data: ClientData, of: Callable[..., PyTree], batch_size: int = 256) -> PyTree:
  """Computes Σ of(x, y, inside) over blocks of all of a client's examples, in their order.

  Args:
    data: the client's examples.
    of: (x [B, ...], y [B, ...], inside bool [B]) -> a tree of arrays. Rows that are not inside are copies of
      the first one, and have to be left out of it.
    batch_size: the most examples in a block, see `ClientData.block`.
  """
  block = data.block(batch_size)

  def found(first: jax.Array) -> PyTree:
    rows = first + jnp.arange(block)
    inside = rows < data.length
    return of(*data.take(jnp.where(inside, rows, 0)), inside)

  starts = jnp.arange(0, data.limit, block)
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(found, starts[0]))
  return lax.scan(lambda sums, first: (jax.tree.map(jnp.add, sums, found(first)), None), nothing, starts)[0]


def batches_of(length: int | Array, batch_size: int) -> int | Array:
  """Returns ceil(n / B), the mini-batches of n examples, int32: a last partial batch is used, not dropped."""
  return (length - 1) // batch_size + 1  # n + B - 1 may be above the largest int32


def steps_per_epoch(data: ClientData, batch_size: int) -> int | Array:
  """Returns ceil(n_i / B), the steps of one epoch, see `batches_of`."""
  return batches_of(data.length, batch_size)


def shuffle(key: jax.Array, data: ClientData, padded: int) -> jax.Array:
  """Returns a random permutation of the client's rows, int32 [padded]; entries from n_i on are padding."""
  draws = jax.random.uniform(key, (padded,))
  outside = jnp.arange(padded) >= data.length
  return jnp.argsort(jnp.where(outside, 2.0, draws))


def unknown(count: int) -> jax.Array:
  """Hides a loop's length from XLA, int32 scalar, so that XLA keeps the loop, however short."""
  return lax.optimization_barrier(jnp.int32(count))


def trips(count: int | Array) -> int | Array:
  """Returns a loop's length, hidden from XLA if it is a single iteration on a CPU.

  XLA would drop a loop that it knows to be a single iteration, and the result would differ in its last bits.
  On accelerators a length that XLA does not know is copied to the host before every iteration.
  """
  if isinstance(count, int) and count == 1 and jax.default_backend() == "cpu":
    return unknown(count)
  return count


def for_each_batch(
  key: jax.Array,
  data: ClientData,
  batch_size: int,
  epochs: int | jax.Array,
  step: Callable[[PyTree, Batch], PyTree],
  carry: PyTree,
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
) -> PyTree:
  """Folds `step` over the mini-batches of `epochs` freshly shuffled epochs of the client's examples.

  A batch size above the client's size is allowed: a batch then holds all its examples, and has no more rows
  than the largest client has examples. Clients of a cohort may differ in size: under `vmap` over clients the
  loop runs as long as the cohort's largest client needs.

  Args:
    key: typed PRNG key; keys of epochs and steps are folded in from it.
    data: the client's examples.
    batch_size: B, mini-batch size.
    epochs: E, number of epochs.
    step: (carry, batch) -> carry.
    carry: its initial value.
    first: the first step to take, of the `epochs` times `steps_per_epoch` steps; requires `last`.
    last: the step before which to stop, at the latest after all steps; None takes all.

  Raises:
    ValueError: `first` is given without `last`.
  """
  if last is None and (not isinstance(first, int) or first):
    raise ValueError(f"first = {first} needs last: without it all steps are taken.")
  batch_size = min(batch_size, data.limit)
  each = steps_per_epoch(data, batch_size)
  padded = -(-data.limit // batch_size) * batch_size
  lane = jnp.arange(batch_size)

  def epoch(e: jax.Array, carry: PyTree) -> PyTree:
    order_key, step_key = jax.random.split(jax.random.fold_in(key, e))
    order = shuffle(order_key, data, padded)

    def batch(s: jax.Array, carry: PyTree) -> PyTree:
      first = s * batch_size
      rows = lax.dynamic_slice_in_dim(order, first, batch_size)
      inside = first + lane < data.length
      x, y = data.take(jnp.where(inside, rows, 0))
      weight = inside.astype(jnp.float32)
      return step(carry, Batch(x, y, weight, jax.random.fold_in(step_key, s)))

    if last is None:
      return lax.fori_loop(0, trips(each), batch, carry)
    start, stop = (jnp.clip(s - e * each, 0, each) for s in (first, last))
    return lax.fori_loop(start, stop, batch, carry)

  if last is None:
    return lax.fori_loop(0, trips(epochs), epoch, carry)
  return lax.fori_loop(first // each, jnp.minimum(-(-last // each), epochs), epoch, carry)


def for_each_drawn_batch(
  key: jax.Array,
  data: ClientData,
  batch_size: int,
  capacity: int,
  steps: int | Array,
  step: Callable[[PyTree, Batch], PyTree],
  carry: PyTree,
  first: int | jax.Array = 0,
  last: int | jax.Array | None = None,
) -> PyTree:
  """Folds `step` over Poisson mini-batches: each holds each example with probability min(1, B/n), by itself.

  Args:
    key: typed PRNG key; keys of steps are folded in from it.
    data: the client's examples, n of them.
    batch_size: B, the expected size of a mini-batch.
    capacity: the most examples of a mini-batch; of more, so many are kept by chance. The examples of a batch
      come first, with weight 1.
    steps: number of steps.
    step: (carry, batch) -> carry.
    carry: its initial value.
    first: the first step to take.
    last: the step before which to stop, at the latest after all steps; None takes all.
  """
  probability = batch_size / jnp.asarray(data.length, jnp.float32)
  outside = jnp.arange(data.limit) >= data.length

  def drawn(s: jax.Array, carry: PyTree) -> PyTree:
    draw_key, step_key = jax.random.split(jax.random.fold_in(key, s))
    draws = jnp.where(outside, 2.0, jax.random.uniform(draw_key, (data.limit,)))
    least, rows = lax.top_k(-draws, min(capacity, data.limit))
    inside = -least < jnp.minimum(probability, 1.0)
    x, y = data.take(jnp.where(inside, rows, 0))
    return step(carry, Batch(x, y, inside.astype(jnp.float32), step_key))

  stop = trips(steps) if last is None else jnp.minimum(last, steps)
  return lax.fori_loop(first, stop, drawn, carry)
