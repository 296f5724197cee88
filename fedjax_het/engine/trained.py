"""A trained model in use: predictions of the global model and of every client's, files, and export.

A client's model is the one that evaluations judge: `ClientUpdate.personalize` at the selected λ. Files hold
no pickles and no Python: arrays, JSON, and the model's program as `jax.export` serialises it.
"""

import dataclasses
import functools
import importlib.util
import json
import operator
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.data.encoder import Encoder
from fedjax_het.data.filled import Scaling
from fedjax_het.data.rows import as_held, count_rows, rows_of
from fedjax_het.data.scale import as_read
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.engine.evaluate import ROWS_AT_ONCE, beside, same_arrays
from fedjax_het.engine.state import State
from fedjax_het.errors import DataError, SettingError, folder_of, reading
from fedjax_het.modes import in_float32
from fedjax_het.parts import Algorithm, Context, Sent
from fedjax_het.tasks import Task
from fedjax_het.vectors import form_of_one

PyTree = Any
PLATFORMS = ("cpu", "cuda", "tpu")  # for which programs are exported
MOST = 2**36  # most bytes of a file of models


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
  """A trained model: the server's, if the method has one, and each client's.

  Attributes:
    program: (params, x [B, ...] as stored) -> (labels, probabilities or ()), both [B, ...].
    example: shape and dtype of one example as it is stored, a tree of `jax.ShapeDtypeStruct`.
    encoder: turns rows into examples, and classes into names.
    num_clients: K.
    shared: parameters of the global model; None if the method has none.
    personal: (client's number) -> parameters of its model; the very `shared` if it uses the global model.
  """

  program: Callable[[PyTree, Any], tuple[jax.Array, Any]]
  example: PyTree
  encoder: Encoder
  num_clients: int
  shared: PyTree | None
  personal: Callable[[int], PyTree]

  @property
  def clients(self) -> tuple[Any, ...]:
    """The clients' names, or their numbers where they have none."""
    return self.encoder.clients or tuple(range(self.num_clients))

  def predict(self, rows: Any, client: Any = None) -> np.ndarray:
    """Returns the predicted labels by name, in the rows' order.

    Args:
      rows: a table (pandas frame, dict of lists, list of dicts) if the model was trained on one, whose other
        columns are ignored; else examples [n, ...] as they came, before standardisation.
      client: the client whose model predicts, by name or number; None for the global model.

    Raises:
      SettingError: the client was not in training, there is no global model, or the rows are no examples.
      DataError: a column is missing, or has a value that is no number or no category of training.
    """
    labels, _ = self._applied(rows, client)
    return labels if labels.dtype.kind == "f" else self.encoder.names(labels)

  def predict_proba(self, rows: Any, client: Any = None) -> np.ndarray:
    """Returns the probabilities, [n, C], of the classes in the order of `encoder.labels`; see `predict`."""
    _, probabilities = self._applied(rows, client)
    if isinstance(probabilities, tuple):
      raise SettingError("predict_proba", None, "the model predicts numbers", "Use predict.")
    return probabilities

  def model_of(self, client: Any = None) -> PyTree:
    """Returns the parameters of a client's model, or of the global one, for `ClientUpdate.apply`."""
    if client is not None:
      return self.personal(self.encoder.number_of(client, self.num_clients))
    if self.shared is None:
      raise SettingError("client", None, "the method has no global model", f"Name one of {self._few()}.")
    return self.shared

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes all models, the encoder and the program to one .npz, which `load_model` reads.

    Raises:
      SettingError: the model cannot be exported for any number of rows, or the extra `export` is missing.
    """
    check_flatbuffers(path)
    models = [self.personal(i) for i in range(self.num_clients)]
    alone = self.shared is not None and all(same_arrays(own, self.shared) for own in models)
    leaves = [jax.tree.leaves(own) for own in models[: 0 if alone else None]]
    arrays = {f"clients/{i}": np.stack(own) for i, own in enumerate(zip(*leaves))}
    if self.shared is not None:
      arrays |= {f"global/{i}": np.asarray(own) for i, own in enumerate(jax.tree.leaves(self.shared))}
    first = self.shared if self.shared is not None else models[0]
    arrays["program"] = np.frombuffer(self._exported_for(first), np.uint8)
    if not alone and shapes_of(models[0]) != shapes_of(first):  # such as a memory beside the model
      arrays["program_of_clients"] = np.frombuffer(self._exported_for(models[0]), np.uint8)
    said = {"num_clients": self.num_clients, "example": described(self.example)}
    arrays["model"] = np.array(json.dumps(said))
    with folder_of("path", path).open("wb") as file:
      np.savez(file, **arrays, **self.encoder.arrays())  # type: ignore[arg-type]

  def _exported_for(self, params: PyTree) -> bytes:
    """Serialises the program of (leaves, examples) for parameters of this form."""
    kept, tree = jax.tree.flatten(params)
    abstract = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in kept)
    return _exported(lambda own, x: self.program(jax.tree.unflatten(tree, own), x), (abstract,), self.example)

  def export(self, path: str | os.PathLike[str], client: Any = None) -> None:
    """Writes one model as a program that runs with JAX alone, see docs/predictions.md.

    The program takes examples, float32 [n, D] for a table or else as they are stored, before missing values
    are filled and columns standardised, which it does. It returns (labels as numbers, probabilities).
    """
    check_flatbuffers(path)
    params, scaling = self.model_of(client), self.encoder.scaling_of(self._number(client))

    def program(x: Any) -> Any:
      return self.program(params, x if scaling is None else _scaled(x, scaling))

    folder_of("path", path).write_bytes(_exported(program, (), self.example))

  def _number(self, client: Any) -> int | None:
    return None if client is None else self.encoder.number_of(client, self.num_clients)

  def _few(self) -> str:
    return ", ".join(map(str, self.clients[:10])) + (", ..." if self.num_clients > 10 else "")

  @in_float32()
  def _applied(self, rows: Any, client: Any) -> tuple[np.ndarray, Any]:
    params = self.model_of(client)
    x = self.encoder.encode(rows if self.encoder.columns else rows_of(rows), self._number(client))
    x = jax.tree.map(lambda leaf, like: _fitting(leaf, like), x, self.example)
    blocks = [slice(first, first + ROWS_AT_ONCE) for first in range(0, count_rows(x), ROWS_AT_ONCE)]
    found = [self.program(params, jax.tree.map(operator.itemgetter(block), x)) for block in blocks]
    labels, probabilities = jax.tree.map(lambda *own: np.concatenate([*map(np.asarray, own)]), *found)
    return labels, probabilities


@in_float32()
def trained(
  algorithm: Algorithm, data: FederatedData, state: State, cohort_size: int, column: int
) -> Trained:
  """Returns the models of a final state for use.

  Args:
    algorithm: the parts, of which the client part makes models of what the server part sends.
    data: the clients' data, for their numbers of rows and the methods that read them to personalise.
    state: the state after the last round; only its round, broadcast and clients are used, and the server
      part's state if that addresses clients.
    cohort_size: S.
    column: index of the selected λ in `Studies.lambdas`.
  """
  client, _, server, *_ = algorithm
  cohort_size = algorithm.clients_in_a_round(cohort_size)
  sent = jax.tree.map(jnp.asarray, server.sent(state.broadcast, state.server))
  shared = None if client.global_model is None else client.global_model(sent.broadcast)
  round, seen = int(state.round), beside(client)
  uses_shared: list[bool] = []

  @jax.jit
  def made(sent: Sent, rows: list[ClientData], own: PyTree, i: jax.Array) -> PyTree:
    context = Context(i, jnp.int32(round), cohort_size, data.num_clients)
    train = dataclasses.replace(rows[0], validation=rows[1] if rows[1:] else None) if rows else None
    shown, lam = client.shown("personalize", train), jnp.float32(client.studies.lambdas[column])
    found = client.personalize(server.received(sent, i), own, shown, context, lam)
    if client.global_model is not None and same_arrays(found, client.global_model(sent.broadcast)):
      uses_shared.append(True)
      return ()
    return found

  @functools.lru_cache(maxsize=1)
  @in_float32()
  def personal(i: int) -> PyTree:
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), state.clients)
    found = made(sent, [rows_alone(data, i, part) for part in seen], own, jnp.int32(i))
    return shared if uses_shared else found

  example = form_of_one(data.x)
  program = _program(client.task, client.apply, data.scale)
  return Trained(program, example, data.encoder, data.num_clients, shared, personal)


def rows_alone(data: FederatedData, i: int, part: str) -> ClientData:
  """Returns the view of client i's rows of a part with these alone, filled up to the largest number."""
  view, index = data.clients(i, part), getattr(data, part).rows(np.array([i]))  # type: ignore[arg-type]
  index = index if data.rows is None else np.asarray(data.rows)[index]
  index = np.pad(index, (0, view.limit - len(index)))
  x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[index], (data.x, data.y))
  return dataclasses.replace(view, x=x, y=y, start=np.int32(0), rows=None)  # type: ignore[arg-type]


def load_model(path: str | os.PathLike[str]) -> Trained:
  """Reads the models that `Trained.save` wrote, in any process and without the run's data.

  Raises:
    DataError: the file is missing, damaged, or another file.
    SettingError: the extra `export` is missing.
  """
  where = folder_of("path", path)
  check_flatbuffers(path)
  with reading(where.resolve()):
    found = read_arrays(where, MOST)
    if "program" not in found or "model" not in found:
      raise DataError(f"{where.resolve()} holds no models that Trained.save or run.save wrote.")
    said = json.loads(str(found["model"]))
    exported = jax.export.deserialize(bytearray(found["program"].tobytes()))
    second = found.get("program_of_clients")
    of_clients = exported if second is None else jax.export.deserialize(bytearray(second.tobytes()))

  def of(prefix: str) -> tuple[np.ndarray, ...]:
    names = sorted(
      (name for name in found if name.startswith(prefix)), key=lambda n: int(n.rpartition("/")[2])
    )
    return tuple(found[name] for name in names)

  shared, each = of("global/") or None, of("clients/")

  def program(params: PyTree, x: Any) -> Any:
    of_server = shared is not None and shapes_of(params) == shapes_of(shared)
    return (exported if of_server else of_clients).call(params, x)

  return Trained(
    program, example_of(said["example"]), Encoder.of_arrays(found), said["num_clients"], shared,
    lambda i: tuple(leaf[i] for leaf in each) if each else shared,
  )  # fmt: skip


def shapes_of(params: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
  """Returns the structure of a tree of arrays and the shapes of its leaves."""
  leaves, tree = jax.tree.flatten(params)
  return tree, [leaf.shape for leaf in leaves]


def check_flatbuffers(path: str | os.PathLike[str]) -> None:
  """Raises `SettingError` without the package by which JAX writes and reads programs in files."""
  if importlib.util.find_spec("flatbuffers") is None:
    remedy = "pip install 'fedjax_het[export]'."
    raise SettingError(
      "path", os.fspath(path), "needs the package flatbuffers, which is not installed", remedy
    )


def _program(task: Task, apply: Callable[..., jax.Array], scale: float | None) -> Callable[..., Any]:
  @jax.jit
  def program(params: PyTree, x: Any) -> tuple[jax.Array, Any]:
    outputs = apply(params, as_read(x, scale))
    return task.decide(outputs), () if task.probabilities is None else task.probabilities(outputs)

  return program


def _scaled(x: jax.Array, scaling: Scaling) -> jax.Array:
  """Fills and standardises examples in float32, as `Scaling` does on the host."""
  mean, deviation = scaling.mean[0].astype(np.float32), scaling.deviation[0].astype(np.float32)
  columns = np.zeros(mean.shape, bool)
  columns[[*scaling.standardize]] = True
  x = jnp.where(jnp.isnan(x), mean, x)
  return jnp.where(columns, (x - mean) / deviation, x)


def _exported(function: Callable[..., Any], first: tuple[Any, ...], example: PyTree) -> bytes:
  """Serialises a function of (*first, examples of any number of rows)."""
  (rows,) = jax.export.symbolic_shape("rows")
  x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), example)
  try:
    return bytes(jax.export.export(jax.jit(function), platforms=PLATFORMS)(*first, x).serialize())
  except Exception as error:  # the model's code may need a number where the shape has a symbol
    problem = f"cannot be exported for any number of rows ({type(error).__name__}: {str(error)[:200]})"
    raise SettingError("model", None, problem, "Use predict in a process that has the run.") from error


def _fitting(leaf: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
  """Converts examples to the dtype of training; raises `SettingError` for another shape or kind."""
  leaf = np.asarray(leaf)
  if leaf.shape[1:] != like.shape or (leaf.dtype.kind == "f") != (like.dtype.kind == "f"):
    raise SettingError(
      "rows", f"{leaf.dtype} {[*leaf.shape]}", f"training had {like.dtype} {['n', *like.shape]}",
      "Give examples as they were.",
    )  # fmt: skip
  return as_held(leaf, like.dtype, "rows")


def described(example: PyTree) -> Any:
  """Returns a tree of dicts, lists and tuples of `jax.ShapeDtypeStruct` as JSON; tuples become lists."""
  if isinstance(example, jax.ShapeDtypeStruct):
    return {"shape": [*example.shape], "dtype": str(example.dtype)}
  if isinstance(example, dict):
    return {"tree": {name: described(own) for name, own in example.items()}}
  return {"rows": [described(own) for own in example]}


def example_of(said: Any) -> PyTree:
  """Returns the tree that `described` described."""
  if "dtype" in said:
    return jax.ShapeDtypeStruct(tuple(said["shape"]), np.dtype(said["dtype"]))
  if "tree" in said:
    return {name: example_of(own) for name, own in said["tree"].items()}
  return tuple(example_of(own) for own in said["rows"])
