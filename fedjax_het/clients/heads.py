"""Splitting a model's parameters into body and head by parameter path."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import traverse_util

from fedjax_het.clients.objective import check_model
from fedjax_het.errors import SettingError, near
from fedjax_het.models import Model
from fedjax_het.models.features import last_layer
from fedjax_het.models.model import within

PyTree = Any
Path = tuple[str, ...]  # path of a parameter; indices of a list of layers are strings
Head = str | Callable[[Path], bool]


class Parted(NamedTuple):
  """A model's parameters, nested dicts, split into body and head."""

  body: PyTree
  head: PyTree


def joined(*parts: PyTree) -> PyTree:
  """Merges the parameter trees that `parting` split; the inverse of splitting."""
  flat = (traverse_util.flatten_dict(own) for own in parts)
  return traverse_util.unflatten_dict({path: leaf for own in flat for path, leaf in own.items()})


def parting(model: Model, head: Head) -> Callable[[PyTree], Parted]:
  """Returns a function that splits the model's parameters into body and head.

  Args:
    model: a model whose parameters are nested dicts.
    head: comma-separated layers of the head, such as "fc2,fc3" or "block4/conv2"; "" takes `Model.head`, for
      the library's models the last layer. Or a predicate on paths, such as ("fc3", "kernel") or ("layers",
      "2", "bias").

  Returns:
    A function (params) -> `Parted`. It raises `SettingError` if the model lacks a layer, or if head or body
    would be empty, so that a run ends before anything is compiled.

  Raises:
    SettingError: `head` is neither a string nor callable, or `model` is not a `Model`.
  """
  check_model(model)
  if not isinstance(head, str) and not callable(head):
    raise SettingError("head", head, "neither names nor a function of a path", 'Write head="fc2,fc3".')
  names: list[str] = []
  if isinstance(head, str):
    names = [name.strip() for name in head.split(",")] if head else list(model.head)

  def is_head(path: Path) -> bool:
    return any(within(path, name) for name in names) if isinstance(head, str) else head(tuple(map(str, path)))

  def part(params: PyTree) -> Parted:
    flat = traverse_util.flatten_dict(params)
    known = [*dict.fromkeys("/".join(map(str, path[:-1])) for path in flat)]
    layers = ", ".join(known)
    for name in names:
      if not any(within(path, name) for path in flat):
        remedy = near(name, known)
        raise SettingError("head", head or name, f"{model.name} has no layer {name!r}", remedy)
    inside = {path for path in flat if is_head(path)}
    if not 0 < len(inside) < len(flat):
      what = "nothing beside its head" if inside else "no head"
      raise SettingError("head", head, f"{model.name} has {what} then", f"Name some of its layers: {layers}.")
    body = {path: leaf for path, leaf in flat.items() if path not in inside}
    return Parted(*map(traverse_util.unflatten_dict, (body, {path: flat[path] for path in inside})))

  return part


def last_layer_apart(model: Model) -> Callable[[PyTree], Parted]:
  """Returns `parting` with the last layer as head, which asks for the model's head only when it is called."""
  return lambda params: parting(model, last_layer(model))(params)


def layers_of_head(model: Any) -> Callable[[PyTree], dict[Path, Any]]:
  """Returns (params) -> the leaves of `Model.head` found in params, by path, whatever their shapes."""
  head = getattr(model, "head", ())

  def of(params: PyTree) -> dict[Path, Any]:
    flat = traverse_util.flatten_dict(params)
    return {path: leaf for path, leaf in flat.items() if any(within(path, name) for name in head)}

  return of


def with_rest_fixed(model: Model, rest: PyTree) -> Model:
  """Returns a model that is a function of one part of the parameters; the other part, `rest`, is fixed."""
  train = model.train

  def apply(own, x, *stats):
    return model.apply(joined(own, rest), x, *stats)

  return model._replace(apply=apply, train=train and (lambda own, *args: train(joined(own, rest), *args)))
