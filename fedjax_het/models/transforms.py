r"""Models of which a part is trained: frozen layers, and low-rank adapters (LoRA).

A transform makes a `Model` whose parameters are only what is trained, for any method. The rest are constants
of the model: they are neither broadcast nor uploaded, and no bytes are counted for them.

LoRA (Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, equation 3) replaces a weight
matrix W0 [m, n] by

    W = W0 + (α/r)·A B,    A [m, r] drawn from U(-1/√m, 1/√m),  B [r, n] = 0 at the start,

with W0 frozen. Two variants are made for federated learning. FFA-LoRA (Sun et al., Improving LoRA in
Privacy-Preserving Federated Learning, ICLR 2024) freezes A too, so that the mean of W over clients is that of
B. FedSA-LoRA (Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025)
shares A, and every client keeps its B.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_het.errors import SettingError, near
from fedjax_het.models.model import Model, within
from fedjax_het.settings import Choice, Count, Positive, checked

PyTree = Any
Path = tuple[Any, ...]
Flat = dict[Path, Any]
VARIANTS = ("standard", "ffa", "shared_a")
A, B = "_a", "_b"  # behind the name of a weight: "fc1/kernel_a" and "fc1/kernel_b" adapt "fc1/kernel"


def merged(model: Model, params: PyTree) -> PyTree:
  """Returns the parameters of the model as it was before `frozen` or `lora`: frozen ones too, adapters added.

  Args:
    model: a model, also one that no transform made, whose parameters are returned unchanged.
    params: its parameters.
  """
  return params if model.merge is None else model.merge(params)


@checked
def frozen(model: Model, layers: str) -> Model:
  """Returns a model in which some layers are not trained.

  Their weights are those that the model starts from: of its file of weights, or drawn from
  `jax.random.key(0)` whatever the run's seed. Running statistics, of frozen layers too, follow the data as
  before.

  Args:
    model: any model whose parameters are nested dicts.
    layers: comma-separated names of layers, such as "conv1,block2/conv1".

  Raises:
    SettingError: the model has no such layer (the error names the nearest), or no other.
  """
  return freeze(model, layers, "layers")


def freeze(model: Model, layers: str, setting: str) -> Model:
  """Returns `frozen` of a model; errors call the argument `layers` by the name `setting`."""
  if not isinstance(layers, str):
    raise SettingError(setting, layers, "not names of layers", "Write them with commas, such as conv1,conv2.")
  kept, flat = _start_of(model)
  names = _names(setting, layers, model, flat)
  rest = {path: leaf for path, leaf in kept.items() if _inside(path, names)}
  if len(rest) == len(kept):
    raise SettingError(setting, layers, f"{model.name} has no other layers to train", "Name fewer.")

  def own(params: Flat, key: jax.Array | None = None) -> Flat:
    return {path: leaf for path, leaf in params.items() if path not in rest}

  return _transformed(model, own, lambda params: {**rest, **params}, names)


@checked
def lora(
  model: Model,
  *,
  rank: Count,
  layers: str = "",
  alpha: Positive | None = None,
  variant: Annotated[str, Choice(VARIANTS)] = "standard",
  trained: str | None = None,
) -> Model:
  """Returns a model that is trained by low-rank adapters of its weights, W0 + (α/r)·A B.

  The weights W0 are those that the model starts from, as those of `frozen` layers, and the new model starts
  as that one. A weight [..., n] is the matrix of all its other axes together and n columns.

  Args:
    model: any model whose parameters are nested dicts.
    rank: r, the rank of the adapters, at most the least axis of an adapted matrix.
    layers: comma-separated names of the layers with adapters, whose weights of two or more axes are adapted;
      "" for each `kernel` of all layers that are not trained in full.
    alpha: α > 0 of the factor α/r; None for r, a factor of 1.
    variant: "standard"; "ffa": A is frozen, drawn from `jax.random.key(0)`; "shared_a": the adapters' B are
      the model's head, which methods such as fedper keep at the clients while they share A.
    trained: comma-separated names of layers that are trained in full; None for those of the model's head that
      are not in `layers`, "" for none.

  Raises:
    SettingError: the model has no such layer (the error names the nearest), a layer is in both lists or has
      no matrix, or the rank is too high.
  """
  start, flat = _start_of(model)
  names = _names("layers", layers, model, flat) if layers else ()
  if trained is None:
    full: tuple[str, ...] = tuple(own for own in model.head if not _inside(tuple(own.split("/")), names))
  else:
    full = _names("trained", trained, model, flat) if trained else ()
  whole = {path for path in flat if _inside(path, full)}
  adapted = [
    path for path, leaf in flat.items()
    if leaf.ndim >= 2 and (_inside(path, names) if names else path[-1] == "kernel" and path not in whole)
  ]  # fmt: skip
  if both := [path for path in adapted if path in whole]:
    raise SettingError("trained", trained, f"{_text(both[0])} is in layers too", "Name it once.")
  for name in names or ("",):
    if not any(not name or within(path, name) for path in adapted):
      problem = f"{model.name} has no matrix {f'in {name} ' if name else ''}to adapt"
      raise SettingError("layers", layers, problem, "Name layers with a kernel.")
  for path in adapted:
    if rank > (most := min(_matrix(flat[path]))):
      problem = f"above {most}, the rank of {_text(path)} {[*flat[path].shape]}"
      raise SettingError("rank", rank, problem, "Lower it, or name other layers.")
  scale = 1.0 if alpha is None else alpha / rank
  fixed = {path: leaf for path, leaf in start.items() if path not in whole}
  factors = _first_factors(jax.random.key(0), flat, adapted, rank)
  held = {path: np.asarray(leaf) for path, leaf in factors.items()} if variant == "ffa" else {}

  def own(params: Flat, key: jax.Array | None = None) -> Flat:
    """The layers that are trained in full, and adapters."""
    key = jax.random.key(0) if key is None else key
    first = {} if variant == "ffa" else _first_factors(jax.random.fold_in(key, rank), flat, adapted, rank)
    last = {_adapter(path, B): jnp.zeros((rank, flat[path].shape[-1]), flat[path].dtype) for path in adapted}
    return {path: leaf for path, leaf in params.items() if path in whole} | first | last

  def full_of(params: Flat) -> Flat:
    factors = {**held, **params}
    moved = {
      path: fixed[path] + scale * (factors[_adapter(path, A)] @ factors[_adapter(path, B)]).reshape(
        flat[path].shape
      )
      for path in adapted
    }  # fmt: skip
    return {**fixed, **moved, **{path: params[path] for path in whole}}

  made = _transformed(model, own, full_of, ())
  if variant == "shared_a":
    return made._replace(head=tuple(_text(_adapter(path, B)) for path in adapted))
  known = [*traverse_util.flatten_dict(jax.eval_shape(made.init, jax.random.key(0)))]
  return made._replace(head=tuple(own for own in model.head if any(within(path, own) for path in known)))


def _transformed(
  model: Model, own: Callable[..., Flat], full_of: Callable[[Flat], Flat], gone: Collection[str]
) -> Model:
  """Returns the model of the parameters that `own` makes of the model's, which `full_of` completes."""
  train = model.train

  def init(key: jax.Array) -> PyTree:
    return traverse_util.unflatten_dict(own(traverse_util.flatten_dict(model.init(key)), key))

  def whole(params: PyTree) -> PyTree:
    full = full_of(traverse_util.flatten_dict(params))
    return traverse_util.unflatten_dict({path: jnp.asarray(leaf) for path, leaf in full.items()})

  return model._replace(
    init=init,
    apply=lambda params, x, *stats: model.apply(whole(params), x, *stats),
    train=train and (lambda params, *rest: train(whole(params), *rest)),
    head=tuple(name for name in model.head if not _inside(tuple(name.split("/")), gone)),
    merge=lambda params: merged(model, whole(params)),
  )


def _start_of(model: Model) -> tuple[Flat, Flat]:
  """Returns (the weights that a model starts from, on the host, and their shapes), by path."""
  if not isinstance(model, Model):
    raise SettingError("model", type(model).__name__, "is no fedjax_het.Model", "Give one of fh.models.")
  shapes = traverse_util.flatten_dict(jax.eval_shape(model.init, jax.random.key(0)))
  if not all(hasattr(leaf, "shape") for leaf in shapes.values()):
    raise SettingError("model", model.name, "has parameters that are no nested dicts", "Use another model.")
  start = traverse_util.flatten_dict(jax.jit(model.init)(jax.random.key(0)))
  return {path: np.asarray(leaf) for path, leaf in start.items()}, shapes


def _names(setting: str, given: str, model: Model, flat: Flat) -> tuple[str, ...]:
  """Returns the names of layers in a comma-separated list; raises `SettingError` for unknown ones."""
  names = tuple(name.strip() for name in given.split(","))
  known = [*dict.fromkeys(_text(path[:-1]) for path in flat)]
  for name in names:
    if not any(within(path, name) for path in flat):
      raise SettingError(setting, given, f"{model.name} has no layer {name!r}", near(name, known))
  return names


def _inside(path: Path, names: Collection[str]) -> bool:
  return any(within(path, name) for name in names)


def _text(path: Sequence[Any]) -> str:
  return "/".join(map(str, path))


def _adapter(path: Path, which: str) -> Path:
  return (*path[:-1], f"{path[-1]}{which}")


def _matrix(leaf: Any) -> tuple[int, int]:
  """Returns (m, n) of a weight [..., n] as a matrix."""
  return math.prod(leaf.shape[:-1]), leaf.shape[-1]


def _first_factors(key: jax.Array, flat: Flat, adapted: Sequence[Path], rank: int) -> Flat:
  """Draws A [m, r] of each adapted weight from U(-1/√m, 1/√m)."""
  found = {}
  for number, path in enumerate(adapted):
    rows = _matrix(flat[path])[0]
    draws = jax.random.uniform(jax.random.fold_in(key, number), (rows, rank), flat[path].dtype, -1.0, 1.0)
    found[_adapter(path, A)] = draws / math.sqrt(rows)
  return found
