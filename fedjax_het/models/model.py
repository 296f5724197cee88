"""What the engine knows of a model: pure functions, whatever they were written with."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.errors import SettingError, check_range
from fedjax_het.models.shapes import is_shape
from fedjax_het.tasks import Task, classification

PyTree = Any


class Variables(NamedTuple):
  """Parameters with the running statistics that go with them."""

  params: PyTree
  stats: PyTree


class Model(NamedTuple):
  """A model as the engine sees it; stacks of clients are `jax.vmap` of these functions.

  Attributes:
    init: (key) -> params, a fresh pytree of float32 arrays from a typed key.
    apply: (params, x [B, *shape], stats) -> outputs float32 [B, ...], as the model is used and judged, for
      most tasks logits [B, C]; `stats` is left out where a model has none.
    name: for reports and configs.
    shape: of one example, or a tree of shapes where an example is a tree of arrays; () where a model does not
      say.
    num_classes: C, the number of logits; 0 where a model does not say.
    stats: running statistics that training moves and no gradient does, as they start; () for none.
    train: (params, stats, x, real [B], key) -> (logits, stats), the same in training: of a batch whose rows
      with real = 0 only fill it up, with a key for dropout. None for a model that trains as it is used.
    task: what it learns: its loss, its metrics, the labels that it takes.
    head: names of the layers that are its head, for methods that part it; () where a model does not say.
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

  @property
  def stateful(self) -> bool:
    """Whether there are running statistics."""
    return bool(jax.tree.leaves(self.stats))

  def in_training(
    self, params: PyTree, stats: PyTree, x: jax.Array, real: jax.Array, key: jax.Array
  ) -> tuple[jax.Array, PyTree]:
    """(logits, statistics after them) of a batch, by `train` where there is one, else by `apply`."""
    return (self.apply(params, x), stats) if self.train is None else self.train(params, stats, x, real, key)

  def joined(self, params: PyTree, stats: PyTree) -> PyTree:
    """What `logits` takes: the parameters, with their statistics where the model has some."""
    return Variables(params, stats) if self.stateful else params

  def split(self, joined: PyTree) -> Variables:
    """The inverse of `joined`."""
    return joined if isinstance(joined, Variables) else Variables(joined, ())

  def logits(self, joined: PyTree, x: jax.Array) -> jax.Array:
    """`apply` of what `joined` gives."""
    return (
      self.apply(joined.params, x, joined.stats) if isinstance(joined, Variables) else self.apply(joined, x)
    )


def is_array(value: Any) -> bool:
  """Whether this is an array of NumPy's or JAX's, and no keys."""
  keys = isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
  return isinstance(value, np.ndarray | jax.Array) and not keys


def standardized(
  model: Model, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
) -> Model:
  """The same model, shown (x - mean) / std; MNIST's pixels in [0, 1], for example, have 0.1307 and 0.3081.

  Args:
    model: any model of floats.
    mean: what is subtracted from every input; or one a channel, the last axis.
    std: > 0, what it is then divided by; or one a channel.

  Raises:
    SettingError: a std that is not above 0, what is not finite, another number of means or stds than of
      channels, or a model of trees of arrays.
  """
  if not isinstance(model, Model):
    raise SettingError("model", type(model).__name__, "is no fedjax_het.Model", "Give one of fh.models.")
  mean, std = (np.asarray(own).tolist() if is_array(own) else own for own in (mean, std))
  if not isinstance(model.shape, tuple):
    raise SettingError("mean", mean, f"{model.name} takes a tree of arrays", "Scale its arrays before.")
  for name, value in (("mean", mean), ("std", std)):
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
  """Whether a model of float32 examples is one program in training and in use: nothing is drawn or kept."""
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
  """So many examples, as `jax.ShapeDtypeStruct`.

  Args:
    count: B.
    shape: of one example, a tuple of whole numbers, or a tree of such.
    dtype: of all arrays, or a tree like `shape`.
  """
  batch = jax.tree.map(lambda own: jax.ShapeDtypeStruct((count, *own), bool), shape, is_leaf=is_shape)
  return jax.tree.map(lambda own, kind: own.update(dtype=kind), batch, jax.tree.broadcast(dtype, batch))


def count_parameters(params: object) -> int:
  """The number of scalars in a tree of arrays (or of `jax.ShapeDtypeStruct`).

  Raises:
    SettingError: a leaf is no array.
  """
  leaves = jax.tree.leaves(params)
  for leaf in leaves:
    if not isinstance(getattr(leaf, "shape", None), tuple):
      raise SettingError(
        "params", leaf, "not an array", "Give a tree of arrays, as model.init(key) makes it."
      )
  return sum(math.prod(leaf.shape) for leaf in leaves)


def within(path: Sequence[str | int], layer: str) -> bool:
  """Whether a leaf of the parameters, by its path, belongs to a layer such as "block4/conv2"."""
  return f"{'/'.join(map(str, path))}/".startswith(f"{layer}/")
