"""Counts the FLOPs of a function, with loop bodies multiplied by their number of iterations."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval


def flops(function: Callable[..., Any], *args: Any) -> float:
  """Counts the FLOPs of function(*args), for arrays or their shapes, as XLA counts before optimisation.

  XLA counts the body of a loop once; here the body of a `lax.scan`, including `lax.map` and Flax's `scan`, is
  multiplied by its length. Operations that the results do not need are left out. The body of a
  `lax.while_loop`, whose length is unknown, is counted once. NaN if the backend does not count.
  """
  traced = jax.make_jaxpr(function)(*args)
  needed, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
  return _counted(ClosedJaxpr(needed, traced.consts))


def _counted(closed: ClosedJaxpr) -> float:
  return _once(closed) + sum(length * _counted(body) - _once(body) for length, body in _scans(closed.jaxpr))


def _once(closed: ClosedJaxpr) -> float:
  """Counts FLOPs as XLA does, with the body of every loop counted once."""
  counts = jax.jit(jaxpr_as_fun(closed)).lower(*closed.in_avals).cost_analysis() or {}
  return float(counts.get("flops", math.nan))


def _scans(jaxpr: Jaxpr) -> Iterator[tuple[int, ClosedJaxpr]]:
  """Returns (length, body) of the outermost scans."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "scan":
      yield equation.params["length"], equation.params["jaxpr"]
    else:
      for inner in jax.tree.leaves(dict(equation.params), is_leaf=_is_jaxpr):
        if _is_jaxpr(inner):
          yield from _scans(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def _is_jaxpr(value: Any) -> bool:
  return isinstance(value, Jaxpr | ClosedJaxpr)
