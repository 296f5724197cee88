"""The arithmetic of a function, with that of its loops as often as they go round."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval


def flops(function: Callable[..., Any], *args: Any) -> float:
  """FLOPs of function(*args), arrays or their shapes, as XLA counts them before it optimises.

  XLA counts the body of a loop once: here that of a `lax.scan`, which `lax.map` and Flax's `scan` are too, is
  counted as often as it goes round. What the results do not need is left out. A `lax.while_loop`, whose
  length nobody knows, stays counted once. NaN where a backend does not count.
  """
  traced = jax.make_jaxpr(function)(*args)
  needed, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True)
  return _counted(ClosedJaxpr(needed, traced.consts))


def _counted(closed: ClosedJaxpr) -> float:
  return _once(closed) + sum(length * _counted(body) - _once(body) for length, body in _scans(closed.jaxpr))


def _once(closed: ClosedJaxpr) -> float:
  """As XLA counts: the body of a loop once, and so of a loop in it."""
  counts = jax.jit(jaxpr_as_fun(closed)).lower(*closed.in_avals).cost_analysis() or {}
  return float(counts.get("flops", math.nan))


def _scans(jaxpr: Jaxpr) -> Iterator[tuple[int, ClosedJaxpr]]:
  """(length, body) of the scans, but for those inside of other scans."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "scan":
      yield equation.params["length"], equation.params["jaxpr"]
    else:
      for inner in jax.tree.leaves(dict(equation.params), is_leaf=_is_jaxpr):
        if _is_jaxpr(inner):
          yield from _scans(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def _is_jaxpr(value: Any) -> bool:
  return isinstance(value, Jaxpr | ClosedJaxpr)
