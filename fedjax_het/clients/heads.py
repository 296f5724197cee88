"""A model's parameters in two, its head and its body, by their paths."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import traverse_util

from fedjax_het.errors import SettingError
from fedjax_het.models import Model

PyTree = Any
Path = tuple[str, ...]
Head = str | Callable[[Path], bool]


class Parted(NamedTuple):
  """A model's parameters, nested dicts, in two."""

  body: PyTree
  head: PyTree


def joined(*parts: PyTree) -> PyTree:
  """The parameters that `part` has parted."""
  flat = (traverse_util.flatten_dict(own) for own in parts)
  return traverse_util.unflatten_dict({path: leaf for own in flat for path, leaf in own.items()})


def part(params: PyTree, is_head: Callable[[Path], bool]) -> Parted:
  """The parameters whose paths, such as ("fc3", "kernel"), are not the head's, and those whose are."""
  flat = traverse_util.flatten_dict(params)
  body, head = ({path: flat[path] for path in flat if is_head(path) == own} for own in (False, True))
  return Parted(traverse_util.unflatten_dict(body), traverse_util.unflatten_dict(head))


def head_of(model: Model, head: Head) -> Callable[[Path], bool]:
  """Whether a path is the head's.

  Args:
    model: whose parameters are nested dicts.
    head: the head's layers, with commas between them, such as "fc2,fc3" or "block4/conv2"; "" takes the
      model's own, `Model.head`. Or a predicate on paths.

  Raises:
    SettingError: a layer that the model has not, no head, or nothing beside it.
  """
  params = jax.eval_shape(model.init, jax.random.key(0))
  paths = list(traverse_util.flatten_dict(params)) if isinstance(params, dict) else []
  names = (head.split(",") if head else list(model.head)) if isinstance(head, str) else []
  layers = ", ".join(dict.fromkeys("/".join(path[:-1]) for path in paths))

  def within(path: Path, name: str) -> bool:
    return f"{'/'.join(path)}/".startswith(f"{name}/")

  for name in names:
    if not any(within(path, name) for path in paths):
      raise SettingError("head", head or name, f"{model.name} has no layer {name!r}", f"It has {layers}.")
  is_head = (lambda path: any(within(path, name) for name in names)) if isinstance(head, str) else head
  inside = sum(map(is_head, paths))
  if not 0 < inside < len(paths):
    what = "no head" if not inside else "nothing beside its head"
    raise SettingError("head", head, f"{model.name} has {what} then", f"Name some of its layers: {layers}.")
  return is_head


def beside(model: Model, rest: PyTree) -> Model:
  """The model as a function of one part of its parameters, the rest of which stays as it is."""
  train = model.train

  def apply(own, x, *stats):
    return model.apply(joined(own, rest), x, *stats)

  return model._replace(apply=apply, train=train and (lambda own, *args: train(joined(own, rest), *args)))
