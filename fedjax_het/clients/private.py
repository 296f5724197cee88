r"""Record-level differential privacy of local training: DP-SGD's noised gradients, and no other reader.

A step's gradient over the records b of a mini-batch is, with the expected batch size B̄ = min(B, n_i),

    g = (Σ_b c(g_b) + z C N(0, I)) / B̄,    c(g_b) = g_b · min(1, C/‖g_b‖),

where g_b is the gradient of one record's loss and of the method's own terms, over all trained parameters; a
g_b that is not finite counts as 0. What a method adds to g, such as a proximal term or a control variate, is
made of the broadcast and of earlier g, so that it costs no privacy. Records may be read in no other way: what
a method is shown of them is sealed, and reading it is an error while the program is traced.

Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016, algorithm 1, which divides by the lot
size L = B and clips, as here, over all layers together.
"""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError, is_zero
from fedjax_het.local import Batch
from fedjax_het.models.model import Model
from fedjax_het.parts import LocalTraining, Records

PyTree = Any
NOISE = 2**31 - 5  # folded into a step's key for the noise
OVERFLOW = 1e-9  # probability below which a Poisson batch is larger than the default capacity
SAMPLINGS = ("poisson", "shuffle")
# Settings of local training that mix records, or read them otherwise -> the value that does not.
ACROSS = {"mixup": 0.0, "decorrelate": 0.0, "calibration": "none"}


def capacity_of(batch_size: int) -> int:
  """Returns the least c >= B with P(Poisson(B) > c) < 1e-9.

  A Poisson sample of n records with probability B/n each is larger than c with a smaller probability still,
  whatever n (Anderson and Samuels, Some inequalities among binomial and Poisson probabilities, 1967).
  """
  log_term, above, c = -float(batch_size), 1.0, -1  # of P(X = 0)
  while above >= OVERFLOW or c < batch_size:
    c += 1
    above -= math.exp(log_term)
    log_term += math.log(batch_size / (c + 1))
  return c


def check_private(model: Model, own: Any) -> None:
  """Raises `SettingError` for settings, or a model, with which a record's influence is not bounded."""
  if own["dp_clip"] is None:
    return
  if model.stateful:
    problem = "has running statistics of a batch (batch norm), which dp_clip does not bound"
    raise SettingError("model", model.name, problem, "Use a model with group or layer norms, or none.")
  if model.task.weights is not None:
    problem = "a loss of one record is divided by its own weight, so that weights have no effect with dp_clip"
    raise SettingError("task", model.task.name, problem, "Leave the weights out.")
  for name, off in ACROSS.items():
    if not (own[name] == off if isinstance(off, str) else is_zero(own[name])):
      problem = "reads several records at once, and dp_clip bounds the influence of each"
      raise SettingError(name, own[name], problem, "Leave it out.")
  if own["dp_sampling"] == "shuffle":
    for name in ("steps", "dp_capacity"):
      if own[name] is not None:
        problem = "needs batches that are drawn, and dp_sampling = 'shuffle' goes by whole epochs"
        raise SettingError(name, own[name], problem, "Leave it out, or use dp_sampling='poisson'.")


def _refuse(setting: str, value: str, what: str, remedy: str) -> NoReturn:
  problem = f"{what}, which dp_clip does not bound"
  raise SettingError(setting, value, problem, remedy)


class SealedData:
  """A client's records as a method sees them under record-level privacy: their number, and nothing else.

  Args:
    data: the client's examples.
    name: the method's name, for the error.
  """

  def __init__(self, data: ClientData, name: str):
    self._data, self._name = data, name
    self.length, self.limit, self.uniform, self.size = data.length, data.limit, data.uniform, data.size

  def __getattr__(self, field: str) -> NoReturn:
    """Raises `SettingError`, naming the method."""
    if field.startswith("__"):
      raise AttributeError(field)
    _refuse("algorithm", self._name, f"reads its clients' examples (data.{field}) beside its gradients",
            "Leave dp_clip out, or use a method that does not.")  # fmt: skip


class SealedBatch:
  """A mini-batch as a method's step sees it under record-level privacy: its key, and nothing else.

  Args:
    batch: the mini-batch, whose weights are 1 for its first records and 0 for the others.
    expected: B̄, float32 scalar or a number.
    name: the method's name, for the error.
  """

  def __init__(self, batch: Batch, expected: Any, name: str):
    self._batch, self._expected, self._name = batch, expected, name
    self._released: set[int] = set()  # gradients of this batch that have their noise
    self.key = batch.key

  def _replace(self, **own: Any) -> "SealedBatch":
    """Returns the batch with another key."""
    if {*own} != {"key"}:
      self.__getattr__(next(iter({*own} - {"key"})))
    return SealedBatch(self._batch._replace(**own), self._expected, self._name)

  def __getattr__(self, field: str) -> NoReturn:
    """Raises `SettingError`, naming the method."""
    if field.startswith("__"):
      raise AttributeError(field)
    _refuse("algorithm", self._name, f"reads a mini-batch (batch.{field}) beside its gradients",
            "Leave dp_clip out, or use a method that does not.")  # fmt: skip


def sealed(training: LocalTraining, name: str) -> LocalTraining:
  """Returns local training that is shown sealed records, see `SealedData`; its recipe alone opens them."""

  def run_steps(key: Any, broadcast: Any, state: Any, data: ClientData, *more: Any) -> PyTree:
    return training.run_steps(key, broadcast, state, SealedData(data, name), *more)

  def finish(broadcast: Any, state: Any, data: ClientData, *more: Any) -> Any:
    return training.finish(broadcast, state, SealedData(data, name), *more)  # type: ignore[arg-type]

  return training._replace(run_steps=run_steps, finish=finish)


def refused_losses(*_: Any) -> NoReturn:
  """Raises `SettingError`: clients' losses are asked for, which would travel without noise."""
  _refuse("mixing", "losses", "the clients' losses F_i are asked for, by the mixing or by record_losses",
          "Use a mixing that asks for none, such as uniform.")  # fmt: skip


def opened(data: ClientData | SealedData) -> tuple[ClientData, str]:
  """Returns a client's records and the method's name; records that are not sealed are those of nobody."""
  return (data._data, data._name) if isinstance(data, SealedData) else (data, "local training")


def noised_gradient(
  one: Callable[[Batch], tuple[jax.Array, PyTree]], batch: SealedBatch, own: Any, release: int,
  change: Callable[[Batch], Batch],
) -> tuple[jax.Array, PyTree]:  # fmt: skip
  """Returns (Σ_b loss_b / B̄, g) of a mini-batch, see the module's docstring.

  Args:
    one: (batch of one record) -> (its loss, its gradient).
    batch: the mini-batch.
    own: settings of local training: `dp_clip` is C, `dp_noise_multiplier` z, `dp_block` the records whose
      gradients are in memory at once.
    release: which of a step's gradients this is, from 0; each has its own noise.
    change: (batch) -> the batch with augmented examples.
  """
  if release in batch._released:
    problem = "takes two gradients of a mini-batch with the same noise, which together would give it away"
    remedy = f"Number them: recipe.gradient(..., release={release // 2 + 1})."
    raise SettingError("algorithm", batch._name, problem, remedy)
  batch._released.add(release)
  given, expected = change(batch._batch), batch._expected
  clip, size = jnp.asarray(own["dp_clip"], jnp.float32), len(given.weight)
  block = min(own["dp_block"], size)
  count = jnp.sum(given.weight > 0)

  def of_record(i: jax.Array) -> tuple[jax.Array, PyTree]:
    at = jnp.minimum(i, size - 1)
    x, y = jax.tree.map(lambda leaf: leaf[at][None], (given.x, given.y))
    loss, gradient = one(Batch(x, y, jnp.ones(1), jax.random.fold_in(given.key, at)))
    there = (i < size) & (given.weight[at] > 0)
    bounded = clipped(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient), clip)
    return jnp.where(there, loss, 0.0), jax.tree.map(lambda leaf: jnp.where(there, leaf, 0.0), bounded)

  def add(b: jax.Array, sums: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
    found = jax.vmap(of_record)(b * block + jnp.arange(block))
    return jax.tree.map(lambda total, each: total + each.sum(0), sums, found)

  shapes = jax.eval_shape(of_record, jnp.int32(0))
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
  loss, total = lax.fori_loop(0, (count + block - 1) // block, add, nothing)
  if not is_zero(z := own["dp_noise_multiplier"]):
    key = jax.random.fold_in(jax.random.fold_in(batch.key, NOISE), release)
    total = noised(key, total, z * clip)
  return loss / expected, jax.tree.map(lambda leaf: leaf / expected, total)


def clipped(gradient: PyTree, clip: jax.Array) -> PyTree:
  """Returns g · min(1, C/‖g‖) for the norm over all leaves; zeros for a gradient that is not finite."""
  norm = optax.tree.norm(gradient)
  scale = jnp.minimum(1.0, clip / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
  return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(norm), scale * leaf, 0.0), gradient)


def noised(key: jax.Array, tree: PyTree, std: jax.Array) -> PyTree:
  """Returns a tree of float32 arrays plus Gaussian noise of this deviation on every number."""
  leaves, structure = jax.tree.flatten(tree)
  draws = (jax.random.normal(jax.random.fold_in(key, i), leaf.shape) for i, leaf in enumerate(leaves))
  return jax.tree.unflatten(structure, [leaf + std * draw for leaf, draw in zip(leaves, draws)])


def records_of(own: Any, training: LocalTraining) -> Records:
  """Returns what the ledger of a client's records needs to know of a method's local training."""
  size, shuffled = own["batch_size"], own["dp_sampling"] == "shuffle"

  def releases(examples: int) -> int:
    nobody: Any = ()
    seen = ClientData(nobody, nobody, 0, examples, examples, True)  # type: ignore[arg-type]
    steps = int(training.steps(seen))
    return steps // -(-examples // size) if shuffled else steps

  capacity = None if shuffled else (own["dp_capacity"] or capacity_of(size))
  return Records(own["dp_noise_multiplier"], size, capacity, releases, training.gradients)
