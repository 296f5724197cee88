"""A model's parameters in two, its head and its body, by their paths."""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import traverse_util

from fedjax_het.clients.objective import check_model
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.models.model import within

PyTree = Any
Path = tuple[str, ...]  # whole numbers, of a list of layers, as words
Head = str | Callable[[Path], bool]


class Parted(NamedTuple):
  """A model's parameters, nested dicts, in two."""

  body: PyTree
  head: PyTree


def joined(*parts: PyTree) -> PyTree:
  """The parameters that `parting` has parted."""
  flat = (traverse_util.flatten_dict(own) for own in parts)
  return traverse_util.unflatten_dict({path: leaf for own in flat for path, leaf in own.items()})


def parting(model: Model, head: Head) -> Callable[[PyTree], Parted]:
  """Parts the model's parameters.

  Args:
    model: whose parameters are nested dicts.
    head: the head's layers, with commas between them, such as "fc2,fc3" or "block4/conv2"; "" takes the
      model's own, `Model.head`. Or a predicate on paths, such as ("fc3", "kernel")
      or ("layers", "2", "bias").

  Returns:
    A function of the parameters, which raises `SettingError` for a layer that the model has not, where there
    is no head, or nothing beside it: so a run ends before anything is compiled.

  Raises:
    SettingError: `head` is neither, or `model` is none.
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
    layers = ", ".join(dict.fromkeys("/".join(map(str, path[:-1])) for path in flat))
    for name in names:
      if not any(within(path, name) for path in flat):
        raise SettingError("head", head or name, f"{model.name} has no layer {name!r}", f"It has {layers}.")
    inside = {path for path in flat if is_head(path)}
    if not 0 < len(inside) < len(flat):
      what = "nothing beside its head" if inside else "no head"
      raise SettingError("head", head, f"{model.name} has {what} then", f"Name some of its layers: {layers}.")
    body = {path: leaf for path, leaf in flat.items() if path not in inside}
    return Parted(*map(traverse_util.unflatten_dict, (body, {path: flat[path] for path in inside})))

  return part


def layers_of_head(model: Any) -> Callable[[PyTree], dict[Path, Any]]:
  """(params) -> the leaves of the model's own head that are among them, by path; of whatever shape."""
  head = getattr(model, "head", ())

  def of(params: PyTree) -> dict[Path, Any]:
    flat = traverse_util.flatten_dict(params)
    return {path: leaf for path, leaf in flat.items() if any(within(path, name) for name in head)}

  return of


def beside(model: Model, rest: PyTree) -> Model:
  """The model as a function of one part of its parameters, the rest of which stays as it is."""
  train = model.train

  def apply(own, x, *stats):
    return model.apply(joined(own, rest), x, *stats)

  return model._replace(apply=apply, train=train and (lambda own, *args: train(joined(own, rest), *args)))
