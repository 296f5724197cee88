"""Products with a kernel, and barriers that keep XLA from computing a value more than once."""

import jax
import jax.numpy as jnp

SMALL_BATCH = 20  # rows up to which the kernel's gradient is a sum of outer products
apart = jax.lax.optimization_barrier  # keeps XLA from recomputing a value inside each fusion that reads it


def value_barrier(x: jax.Array) -> jax.Array:
  """Returns x unchanged, but stops XLA from recomputing x in the elementwise fusions that read it.

  Without it, XLA recomputes a ReLU's gate for each element of a kernel's gradient. XLA does not duplicate a
  division, which its cost model counts as expensive; the expression hides that the divisor is 1.
  """
  return x / (1.0 + 0.0 * jnp.where(jnp.isfinite(x), x, 0.0))


def divided(x: jax.Array, number: jax.Array) -> jax.Array:
  """Computes x / number with the same bits on any number of CPU devices.

  This also holds under `jax.vmap` over clients, whether each has a number of its own or all share one. XLA
  turns a division by a broadcast number into a product with its reciprocal if the number has a single use,
  and it counts different uses in a program for one device and in one for several. The term of zeros makes
  the divisor an array that is no broadcast.

  Args:
    x: floats of any shape.
    number: the divisor, a scalar of floats.
  """
  return x / (number + _zeros(x)) if jax.default_backend() == "cpu" else x / number


def _zeros(x: jax.Array) -> jax.Array:
  """Returns zeros of the shape of x that XLA does not know to be zeros."""
  x = jax.lax.stop_gradient(x)
  return 0.0 * jnp.where(jnp.isfinite(x), x, 0.0)


@jax.custom_vjp
def quotient(x: jax.Array, number: jax.Array) -> jax.Array:
  """Computes x / number, for clients side by side with the same bits on any number of CPU devices.

  A client by itself gets XLA's own division; under `vmap` it is `divided`. The derivatives use it too.

  Args:
    x: floats of any shape.
    number: the divisor, a scalar of floats, differentiable.
  """
  return _quotient(x, number)


@jax.custom_batching.custom_vmap
def _quotient(x: jax.Array, number: jax.Array) -> jax.Array:
  return x / number


@_quotient.def_vmap
def _side_by_side(count: int, mapped: list[bool], x: jax.Array, number: jax.Array) -> tuple[jax.Array, bool]:
  return jax.vmap(divided, [0 if own else None for own in mapped])(x, number), True


def _quotient_backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
  x, number = residuals
  return quotient(g, number), -jnp.sum(g * jax.lax.integer_pow(number, -2) * x)


quotient.defvjp(lambda x, number: (quotient(x, number), (x, number)), _quotient_backward)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Computes x W over the last axis, [..., inputs] x [inputs, outputs], as one product of all rows.

  On a CPU the kernel's gradient x^T g of up to `SMALL_BATCH` rows is written as a sum of outer products,
  which XLA fuses with the optimiser's arithmetic: one pass over the kernel instead of three (a TwoNN step of
  batch 10 takes 0.63 of the time, of 20 0.85, of 32 the same). `value_barrier` keeps the computation of g
  out of that fusion. More rows, and accelerators (docs/results/gpu.md), take the ordinary product.
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
  own = value_barrier(g)
  first, *rest = (x[b, :, None] * own[b, None, :] for b in range(len(x)))
  return g @ kernel.T, sum(rest, start=first)


_of_rows.defvjp(_forward, _backward)
