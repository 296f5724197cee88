"""Conversion of Flax modules, `linen` or `nnx`, to `Model`, with batch statistics and dropout."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import linen as nn
from flax import nnx

from fedjax_het.errors import SettingError, check_whole, shown
from fedjax_het.models.layers.basic import check_declared
from fedjax_het.models.layers.real_rows import only, real_rows
from fedjax_het.models.model import Model, batch_of
from fedjax_het.models.tried import check_training
from fedjax_het.modes import in_float32
from fedjax_het.tasks import Task, for_model

PyTree = Any
STATISTICS = "batch_stats"
IN_TRAINING = {  # names of the training-mode argument of `__call__`, with its value in training
  "train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False,
}  # fmt: skip


@in_float32()
def from_flax(
  module: nn.Module | nnx.Module | Callable[[nnx.Rngs], nnx.Module],
  shape: PyTree,
  num_classes: int,
  *,
  dtype: Any = jnp.float32,
  name: str = "",
  task: Task | None = None,
  head: Sequence[str] = (),
) -> Model:
  """Converts a user's Flax module to a `Model`.

  Running statistics of batch normalisation become the model's `stats`. `train` normalises by the real rows of
  a batch only: padding rows are masked in every Flax `BatchNorm`. `apply` uses the running statistics.
  Dropout is on in `train`, with the step's key (also under other names of its rng stream), and off in
  `apply`. The module is tried in both modes, in training with its gradient, before it is accepted. The mode
  of a `linen` module is set through the argument of its `__call__` named train, training, is_training,
  deterministic or use_running_average, the mode of an `nnx` module through its `train()` and `eval()`. A
  module may compute in another floating-point dtype: parameters are float32, and outputs are converted to
  float32.

  Args:
    module: a `linen` module instance, or a function of `nnx.Rngs` that builds an `nnx` module, `lambda rngs:
      Net(rngs=rngs)`. An `nnx` module instance keeps its current parameters: `init` returns them for every
      key.
    shape: shape of one example, without the batch axis; a tree of shapes for a module that takes a tree of
      arrays, such as {"tokens": (20,), "mask": (20,)}.
    num_classes: C, the number of logits; for other outputs the length of their last axis.
    dtype: dtype of examples, such as `jnp.int32` for token ids, or a tree of dtypes with the structure of
      `shape`.
    name: name of the model in reports; by default the module's class name.
    task: the learning task, see `tasks`; by default binary for one logit, else classification.
    head: names of the layers that form the head, for methods that split a model, such as ("Dense_1",).

  Raises:
    SettingError: `module` is not a Flax module, cannot be called or trained with such examples, has
      parameters that are not float32, keeps collections other than parameters and batch statistics, or its
      output is not [B, C] ([B, ..., C] for a given task).
  """
  model, example, found = _built(module, shape, num_classes, dtype, name, task, head)
  check_training(model, example, found)
  return _declared(model, dtype)


class _Layers(nn.Module):
  """`layers.basic.Layers` of a function (examples, whether in training) -> outputs."""

  function: Callable[[Any, bool], jax.Array]

  @nn.compact
  def __call__(self, x: Any, train: bool) -> jax.Array:
    return self.function(x, train)


def of_flax(
  module: nn.Module | Callable[[Any, bool], jax.Array], shape: PyTree, num_classes: int, *,
  dtype: Any = jnp.float32, name: str = "", head: Sequence[str] = (), task: Task | None = None,
) -> Model:  # fmt: skip
  """Makes a model of one of the library's own modules: `from_flax` without trying its training.

  The tests train each of these modules, and tracing the gradient of a large one takes seconds. A function
  (examples, whether in training) -> outputs that calls named layers serves as a module too.
  """
  module = module if isinstance(module, nn.Module) else _Layers(module)
  return _declared(_built(module, shape, num_classes, dtype, name, task, head)[0], dtype)


def _built(
  module: Any, shape: PyTree, num_classes: int, dtype: Any, name: str, task: Task | None, head: Sequence[str]
) -> tuple[Model, PyTree, Any]:
  """Builds the model of a module; returns it, a batch of two abstract examples, and their outputs."""
  if isinstance(module, type):
    raise SettingError(
      "module", module.__name__, "is a class", "Give linen's instance, or `lambda rngs: Net(rngs=rngs)`."
    )
  if not callable(module):
    raise SettingError("module", type(module).__name__, "is no Flax module", "Give a linen or nnx module.")
  make: Callable[..., Model] = _linen if isinstance(module, nn.Module) else _nnx
  check_whole("num_classes", num_classes, 1)
  shape = tuple(shape) if isinstance(shape, list) else shape
  try:
    example = batch_of(2, shape, dtype)
    model = make(module, shape, num_classes, dtype)
    model = model._replace(name=name or model.name, task=task or for_model(num_classes), head=tuple(head))
    params = jax.eval_shape(model.init, jax.random.key(0))
    _check_float32(model.name, params)
    found = jax.eval_shape(model.apply, params, example, model.stats)
  except SettingError:
    raise
  except Exception as error:  # the module may raise anything
    said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
    raise SettingError(
      "module", name if isinstance(module, _Layers) else type(module).__name__,
      f"cannot be called with examples of shape {shown(shape)} ({said})",
      "Give the shape and dtype of one example; a module with batch norm or dropout takes `train`.",
    ) from error  # fmt: skip
  outputs = getattr(found, "shape", ())
  if outputs != (2, num_classes) and not (
    task and outputs[:1] == (2,) and outputs[1:][-1:] == (num_classes,)
  ):
    raise SettingError(
      "num_classes", num_classes, f"{model.name} returns {outputs or found} for a batch of two",
      "Give the number of logits that the module returns.",
    )  # fmt: skip
  return model, example, found


def _declared(model: Model, dtype: Any) -> Model:
  """Returns the model with a check of its inputs: images of whole numbers are refused."""
  used, trained = model.apply, model.train or model.in_training

  def apply(params, x, stats=None):
    check_declared(x, dtype)
    return used(params, x, stats)

  def train(params, stats, x, real, key):
    check_declared(x, dtype)
    return trained(params, stats, x, real, key)

  return model._replace(apply=apply, train=model.train and train)


def _check_float32(name: str, params: PyTree) -> None:
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if leaf.dtype != jnp.float32:
      where = jax.tree_util.keystr(path, simple=True, separator="/")
      raise SettingError(
        "module", name, f"its {where} is {leaf.dtype}, and parameters are averaged in float32",
        "Give its layers param_dtype=jnp.float32; their dtype, which they compute in, may be another.",
      )  # fmt: skip


def _float32(outputs: PyTree) -> PyTree:
  """Casts floating-point outputs to float32, the dtype that losses and metrics take."""
  return jax.tree.map(
    lambda own: own.astype(jnp.float32) if jnp.issubdtype(own.dtype, jnp.floating) else own, outputs
  )


def _given(stats: PyTree, stateful: bool) -> PyTree:
  """Returns `stats`; raises `SettingError` if a stateful model is called without them."""
  if stateful and stats is None:
    raise SettingError("stats", stats, "the model has running statistics", "Call apply(params, x, stats).")
  return stats


# --------------------------------------------------------------------------------------------- linen


def _masked(next_call, args, kwargs, context):
  """Flax interceptor that passes every linen BatchNorm the mask of its batch's real rows."""
  if isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__" and "mask" not in kwargs:
    kwargs = {**kwargs, "mask": real_rows(args[0] if args else kwargs["x"])}
  return next_call(*args, **kwargs)


def _linen(module: nn.Module, shape: PyTree, num_classes: int, dtype: Any) -> Model:
  known = inspect.signature(type(module).__call__).parameters
  modes: dict[str, Any] = {name: value for name, value in IN_TRAINING.items() if name in known}
  using: dict[str, Any] = {name: not value for name, value in modes.items()}
  example = batch_of(1, shape, dtype)

  @functools.partial(jax.jit, inline=True)  # traced once, though called several times
  def variables(key):
    return module.lazy_init({"params": key, "dropout": key}, example, **using)

  collections = jax.eval_shape(variables, jax.random.key(0))
  if others := set(collections) - {"params", STATISTICS}:
    raise SettingError(
      "module", type(module).__name__, f"keeps {', '.join(sorted(others))}",
      f"Only params and {STATISTICS} are averaged; leave the others out.",
    )  # fmt: skip
  stateful = STATISTICS in collections
  flags = [name for name, own in known.items() if isinstance(own.default, bool)]
  if (stateful or flags) and not modes:
    logging.warning(
      "%s is the same in training and in use: no argument of its __call__%s is one of %s. Batch statistics "
      "do not move, and nothing is dropped out.",
      type(module).__name__, f" ({', '.join(flags)})" if flags else "", ", ".join(IN_TRAINING),
    )  # fmt: skip
  first = jax.jit(lambda: variables(jax.random.key(0))[STATISTICS])() if stateful else ()

  def init(key):
    return variables(key).get("params", {})

  def of(params, stats):
    return {"params": params, STATISTICS: stats} if stateful else {"params": params}

  def apply(params, x, stats=None):
    return _float32(module.apply(of(params, _given(stats, stateful)), x, **using))

  def streams(key):  # Flax takes "params" for a stream of any other name
    return {"dropout": key, "params": jax.random.fold_in(key, 1)}

  def train(params, stats, x, real, key):
    with only(real), nn.intercept_methods(_masked):
      logits, changed = module.apply(of(params, stats), x, **modes, mutable=[STATISTICS], rngs=streams(key))
    return _float32(logits), changed[STATISTICS] if stateful else ()

  stats = jax.tree.map(np.asarray, first)
  return Model(
    init, apply, type(module).__name__, shape, num_classes, stats, train if stateful or modes else None
  )


# ----------------------------------------------------------------------------------------------- nnx


class _MaskedBatchNorm(nnx.BatchNorm):
  """`nnx.BatchNorm` that normalises by the real rows of the batch."""

  def __call__(self, x, use_running_average=None, *, mask=None):
    return super().__call__(x, use_running_average, mask=real_rows(x) if mask is None else mask)


@functools.lru_cache
def _masking(kind: type[nnx.BatchNorm]) -> type[nnx.BatchNorm]:
  """Returns a version of `kind`, an `nnx.BatchNorm` or subclass, that passes the mask of real rows."""
  if kind is nnx.BatchNorm:
    return _MaskedBatchNorm
  return type(kind.__name__, (kind, _MaskedBatchNorm), {})


def _nnx(module: Any, shape: PyTree, num_classes: int, dtype: Any) -> Model:
  if isinstance(module, nnx.Module):
    name, build = type(module).__name__, functools.partial(_reseeded, module)
    logging.warning(
      "%s is an nnx module with parameters of its own: every start, and every client's own model, has these."
      " Give `lambda rngs: %s(rngs=rngs)` to draw them.", name, name,
    )  # fmt: skip
  else:
    build, name = module, ""

  def made(key, training: bool):
    net = build(nnx.Rngs(key))
    for _, part in nnx.iter_modules(net):
      if isinstance(part, nnx.BatchNorm):
        part.__class__ = _masking(type(part))
    net.train() if training else net.eval()
    return net

  @functools.partial(jax.jit, inline=True)  # traced once, though called several times
  def pieces(key):
    net = made(key, True)
    return tuple(nnx.to_pure_dict(nnx.state(net, kind)) for kind in (nnx.Param, nnx.BatchStat))

  key = jax.random.key(0)
  first = jax.tree.map(np.asarray, jax.jit(lambda: pieces(key)[1])())
  stateful = bool(jax.tree.leaves(first))
  abstract = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
  known = (nnx.Param, nnx.BatchStat, nnx.RngState)
  kept = [leaf for _, leaf in nnx.iter_graph(abstract) if isinstance(leaf, nnx.Variable)]
  if others := sorted({type(leaf).__name__ for leaf in kept if not isinstance(leaf, known)}):
    raise SettingError(
      "module", type(abstract).__name__, f"keeps {', '.join(others)}",
      "Only Param and BatchStat are averaged; leave the others out.",
    )  # fmt: skip
  draws = any(isinstance(part, nnx.RngStream) for _, part in nnx.iter_graph(abstract))

  def init(key):
    return pieces(key)[0]

  def net_of(params, stats, key, training: bool):
    net = made(key, training)
    nnx.update(net, *(_state(net, kind, own) for kind, own in ((nnx.Param, params), (nnx.BatchStat, stats))))
    return net

  def apply(params, x, stats=None):
    return _float32(net_of(params, _given(stats, stateful) or {}, key, False)(x))

  def train(params, stats, x, real, key):
    net = net_of(params, stats or {}, key, True)
    with only(real):
      logits = _float32(net(x))
    return logits, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat)) if stateful else ()

  return Model(
    init, apply, name or type(abstract).__name__, shape, num_classes, first if stateful else (),
    train if stateful or draws else None,
  )  # fmt: skip


def _reseeded(module: nnx.Module, rngs: nnx.Rngs) -> nnx.Module:
  """Returns a copy of `module` with the same parameters whose random streams are reseeded from `rngs`."""
  net = nnx.clone(module)
  streams = {part.tag for _, part in nnx.iter_graph(net) if isinstance(part, nnx.RngStream)}
  nnx.reseed(net, **{stream: rngs() for stream in sorted(streams)})
  return net


def _state(net: nnx.Module, kind: type, values: PyTree) -> nnx.State:
  """Returns the module's variables of type `kind`, with `values` (a pure dictionary) filled in."""
  state = nnx.state(net, kind)
  nnx.replace_by_pure_dict(state, jax.tree.map(jnp.asarray, values))
  return state
