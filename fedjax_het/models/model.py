"""The model interface that the engine uses: pure functions, whatever framework they were written in."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.errors import SettingError, check_number, check_range
from fedjax_het.models.shapes import is_shape
from fedjax_het.tasks import Task, classification

PyTree = Any


class Variables(NamedTuple):
  """Model parameters together with running statistics, such as those of batch normalisation."""

  params: PyTree
  stats: PyTree


class Model(NamedTuple):
  """A model as pure functions of its parameters; `jax.vmap` of them runs many clients at once.

  Attributes:
    init: (key) -> params, a fresh pytree of float32 arrays from a typed PRNG key.
    apply: (params, x [B, *shape], stats) -> outputs float32 [B, ...] in inference mode; for most tasks logits
      [B, C]. `stats` is omitted if the model has no running statistics.
    name: name of the model in reports and configurations.
    shape: shape of one example, or a tree of shapes if an example is a tree of arrays; () if unspecified.
    num_classes: C, the number of logits; 0 if unspecified.
    stats: initial running statistics, updated by training steps but not by gradients; () for none.
    train: (params, stats, x, real [B], key) -> (outputs, stats) in training mode. Rows with real = 0 are
      padding; the key is for dropout. None if training mode and inference mode are the same function.
    task: the learning task, which defines the loss, the metrics and the valid labels.
    head: names of the layers that form the head, for methods that split a model into body and head; () if
      unspecified.
    merge: (params) -> the parameters of the model that this one was made of, see `transforms.merged`; None
      for a model whose parameters are all trained.
  """

  init: Callable[[jax.Array], PyTree]
  apply: Callable[..., jax.Array]
  name: str = ""
  shape: Any = ()
  num_classes: int = 0
  stats: PyTree = ()
  train: Callable[..., tuple[jax.Array, PyTree]] | None = None
  task: Task = classification()
  head: tuple[str, ...] = ()
  merge: Callable[[PyTree], PyTree] | None = None

  @property
  def stateful(self) -> bool:
    """Whether the model has running statistics."""
    return bool(jax.tree.leaves(self.stats))

  def in_training(
    self, params: PyTree, stats: PyTree, x: jax.Array, real: jax.Array, key: jax.Array
  ) -> tuple[jax.Array, PyTree]:
    """Returns (outputs, updated statistics) of a batch in training mode: `train` if defined, else `apply`."""
    return (self.apply(params, x), stats) if self.train is None else self.train(params, stats, x, real, key)

  def joined(self, params: PyTree, stats: PyTree) -> PyTree:
    """Packs parameters and statistics into a tree: `Variables` for a stateful model, else the parameters."""
    return Variables(params, stats) if self.stateful else params

  def split(self, joined: PyTree) -> Variables:
    """Unpacks a tree that `joined` made into `Variables(params, stats)`; `stats` is () if there are none."""
    return joined if isinstance(joined, Variables) else Variables(joined, ())

  def logits(self, joined: PyTree, x: jax.Array) -> jax.Array:
    """Returns the inference-mode outputs, float32 [B, ...], for a tree that `joined` made."""
    return (
      self.apply(joined.params, x, joined.stats) if isinstance(joined, Variables) else self.apply(joined, x)
    )


def is_array(value: Any) -> bool:
  """Returns whether a value is a NumPy or JAX array other than an array of PRNG keys."""
  keys = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
  return isinstance(value, np.ndarray | jax.Array) and not keys


def standardized(
  model: Model, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
) -> Model:
  """Returns a model that standardises its input: it applies `model` to (x - mean) / std.

  For MNIST's pixels in [0, 1], for example, mean is 0.1307 and std is 0.3081.

  Args:
    model: any model whose examples are one floating-point array.
    mean: the number subtracted from every input, or one number per channel (last axis).
    std: > 0, the number by which inputs are then divided, or one number per channel.

  Raises:
    SettingError: a std is not above 0, a number is not finite, the count of means or stds is not the number
      of channels, or the model's examples are trees of arrays.
  """
  if not isinstance(model, Model):
    raise SettingError("model", type(model).__name__, "is no fedjax_het.Model", "Give one of fh.models.")
  mean, std = (np.asarray(own).tolist() if is_array(own) else own for own in (mean, std))
  if not isinstance(model.shape, tuple):
    raise SettingError("mean", mean, f"{model.name} takes a tree of arrays", "Scale its arrays before.")
  for name, value in (("mean", mean), ("std", std)):
    if isinstance(value, str):
      check_number(name, value)
    for each in value if isinstance(value, Sequence) else (value,):
      check_range(name, each, above=0.0 if name == "std" else -np.inf, below=np.inf)
    if isinstance(value, Sequence) and len(value) != (model.shape or (0,))[-1]:
      raise SettingError(
        name,
        value,
        f"{len(value)} numbers for examples of shape {model.shape}",
        "Give one, or one a channel.",
      )
  middle, width = (np.asarray(value, np.float32) for value in (mean, std))

  def shown(x: jax.Array) -> jax.Array:
    return (x - middle) / width

  train = model.train
  return model._replace(
    apply=lambda params, x, *stats: model.apply(params, shown(x), *stats),
    train=train and (lambda params, stats, x, *rest: train(params, stats, shown(x), *rest)),
  )


def trains_as_used(model: Model) -> bool:
  """Returns whether training and inference mode lower to the same program for float32 examples.

  It is False for a model with running statistics or dropout.
  """
  if model.stateful:
    return False
  if model.train is None:
    return True
  train, params = model.train, jax.eval_shape(model.init, jax.random.key(0))
  real, key = jax.ShapeDtypeStruct((2,), np.float32), jax.eval_shape(jax.random.key, 0)

  def program(function: Callable[..., jax.Array]) -> str:
    given = params, batch_of(2, model.shape, np.float32), real, key
    return jax.jit(lambda *own: function(*own)).lower(*given).as_text()

  used = program(lambda params, x, real, key: model.apply(params, x))
  return program(lambda params, x, real, key: train(params, (), x, real, key)[0]) == used


def batch_of(count: int, shape: PyTree, dtype: Any) -> PyTree:
  """Returns the abstract values (`jax.ShapeDtypeStruct`) of a batch of `count` examples.

  Args:
    count: B, the number of examples.
    shape: shape of one example, a tuple of integers, or a tree of such tuples.
    dtype: dtype of every array, or a tree of dtypes with the structure of `shape`.
  """
  batch = jax.tree.map(lambda own: jax.ShapeDtypeStruct((count, *own), bool), shape, is_leaf=is_shape)
  return jax.tree.map(lambda own, kind: own.update(dtype=kind), batch, jax.tree.broadcast(dtype, batch))


def count_parameters(params: object) -> int:
  """Returns the number of scalars in a tree of arrays or of `jax.ShapeDtypeStruct`.

  Raises:
    SettingError: a leaf is not an array.
  """
  leaves = jax.tree.leaves(params)
  for leaf in leaves:
    if not isinstance(getattr(leaf, "shape", None), tuple):
      raise SettingError(
        "params", leaf, "not an array", "Give a tree of arrays, as model.init(key) makes it."
      )
  return sum(math.prod(leaf.shape) for leaf in leaves)


def within(path: Sequence[str | int], layer: str) -> bool:
  """Returns whether the parameter at `path` belongs to the layer `layer`, such as "block4/conv2"."""
  return f"{'/'.join(map(str, path))}/".startswith(f"{layer}/")
