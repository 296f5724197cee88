"""Products with a kernel, and what keeps XLA from computing a value more than once."""

import jax
import jax.numpy as jnp

SMALL_BATCH = 20  # rows up to which the kernel's gradient is a sum of outer products
apart = jax.lax.optimization_barrier  # keeps XLA from computing a value anew inside each fusion that reads it


def settled(x: jax.Array) -> jax.Array:
  """The same numbers, computed once where many elements of what follows read each of them.

  XLA would compute a ReLU's gate anew for each element of a kernel's gradient. It does not do so with a
  division, which it takes for dear; that it is one by 1 is hidden from it.
  """
  return x / (1.0 + 0.0 * jnp.where(jnp.isfinite(x), x, 0.0))


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x W over the last axis, [..., inputs] x [inputs, outputs], all other axes being rows of one product.

  On a CPU the kernel's gradient x^T g of few rows is written as a sum of outer products, which XLA fuses
  with the optimiser's arithmetic: one pass over the kernel instead of three (a TwoNN step of batch 10 takes
  0.63 of the time, of 20 0.85, of 32 the same). What makes g is not fused with the sum, see `settled`. More
  rows, and accelerators (docs/results/gpu.md), take the ordinary product.
  """
  return _of_rows(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], kernel.shape[1])


@jax.custom_vjp
def _of_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
  return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return x @ kernel, (x, kernel)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
  x, kernel = residuals
  if len(x) > SMALL_BATCH or jax.default_backend() != "cpu":
    return g @ kernel.T, x.T @ g
  own = settled(g)
  first, *rest = (x[b, :, None] * own[b, None, :] for b in range(len(x)))
  return g @ kernel.T, sum(rest, start=first)


_of_rows.defvjp(_forward, _backward)
