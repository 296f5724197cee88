"""model.npz: a finished run's model as one file of named arrays, independent of the devices."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from fedjax_het.data.container import FederatedData
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.engine.capacity import size
from fedjax_het.engine.processes import writes
from fedjax_het.engine.state import State
from fedjax_het.errors import DataError, in_bytes
from fedjax_het.models.model import Variables
from fedjax_het.models.weights import by_name
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Message, Sent
from fedjax_het.workdir.folder import written_at_once

MODEL = "model.npz"
LARGEST = 10**9  # most bytes of clients' states that are written


def write_model(folder: Path, algorithm: Algorithm, state: State) -> None:
  """Writes `folder`/model.npz atomically, with the state's bits; every process calls it, and one writes.

  The file holds

  - `params/...` and `stats/...`, the server's model and its running statistics, for a method that has one;
  - `broadcast/params/...`, `broadcast/extra/...` and so on, what else the server sends: a body without a
    head, the endpoints of a simplex, control variates;
  - `server/...`, the server part's state, if it makes each client's message of it;
  - `clients/...`, what the clients keep between rounds, each array [K, ...], unless all of it is larger than
    `LARGEST` bytes: then a warning says so, and the checkpoints alone have it.

  bfloat16, which an .npz cannot name, is written as float32.

  Args:
    folder: the run's.
    algorithm: the parts, of which the client part knows the server's model.
    state: the run's after its last round.
  """
  sent = jax.tree.map(on_host, algorithm.server.sent(state.broadcast, state.server))
  arrays = of_the_server(algorithm.client, sent.broadcast) | named("server", sent.server)
  if (taken := size(state.clients)) <= LARGEST:
    arrays |= named("clients", jax.tree.map(on_host, state.clients))
  elif writes():
    logging.warning(
      "%s is without the clients' states, which take %s; they are in the newest checkpoint.",
      folder / MODEL, in_bytes(taken),
    )  # fmt: skip
  if not writes():
    return
  with written_at_once(folder / MODEL) as file:
    np.savez(file, **{name: plain(array) for name, array in arrays.items()})  # type: ignore[arg-type]


def of_the_server(client: ClientUpdate, broadcast: Message) -> dict[str, np.ndarray]:
  """Returns the arrays of the global model, if there is one, and of the rest of the broadcast, by name."""
  model: Any = () if client.global_model is None else client.global_model(broadcast)
  params, stats = model if isinstance(model, Variables) else (model, ())
  known = {id(leaf) for leaf in jax.tree.leaves((params, stats))}
  more = {
    part: tree
    for part, tree in broadcast._asdict().items()
    if any(id(leaf) not in known for leaf in jax.tree.leaves(tree))
  }
  found = {name.rstrip("/"): np.asarray(leaf) for name, leaf in by_name(params, stats).items()}
  return found | {name: own for part in more for name, own in named(f"broadcast/{part}", more[part]).items()}


def read_model(folder: Path, algorithm: Algorithm, data: FederatedData) -> tuple[Sent, Any]:
  """Reads what the server sends and the clients' states [K, ...] that `write_model` wrote.

  Args:
    folder: the run's.
    algorithm: the parts.
    data: the clients' data, for the shapes of their states.

  Raises:
    DataError: the file is missing or damaged, is without the clients' states, or is of another model.
  """
  path = folder / MODEL
  if not path.is_file():
    raise DataError(f"{path} is missing. The run's command, started again, completes it and writes the file.")
  found, key, client = read_arrays(path), jax.random.key(0), algorithm.client
  broadcast = jax.tree.map(np.asarray, client.init_broadcast(key))  # its leaves' identities name them
  model: Any = () if client.global_model is None else client.global_model(broadcast)
  params, stats = model if isinstance(model, Variables) else (model, ())
  of_model = {id(leaf): name.rstrip("/") for name, leaf in by_name(params, stats).items()}

  def read(name: str, like: Any, leading: tuple[int, ...] = ()) -> np.ndarray:
    array = found.get(name)
    if array is None or array.shape != (*leading, *like.shape):
      shape = "nothing" if array is None else [*array.shape]
      wanted = f"{name} of shape {[*leading, *like.shape]}, and it holds {shape}"
      why = " Clients' states above 1 GB are in the checkpoints only." if name.startswith("clients") else ""
      raise DataError(f"{path} is another model's, or incomplete: this one has {wanted}.{why}")
    return array.astype(like.dtype)

  def of_part(part: str, tree: Any) -> Any:
    own = named(f"broadcast/{part}", tree)
    names = [name if name in found else of_model.get(id(leaf), name) for name, leaf in own.items()]
    return jax.tree.unflatten(jax.tree.structure(tree), map(read, names, own.values()))

  def tree_of(name: str, tree: Any, leading: tuple[int, ...] = ()) -> Any:
    leaves = [read(own, like, leading) for own, like in named(name, tree).items()]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)

  parts = Message(**{part: of_part(part, tree) for part, tree in broadcast._asdict().items()})
  sent = jax.eval_shape(lambda: algorithm.server.sent(broadcast, algorithm.server.init(broadcast)))
  shown = client.shown("init", data.clients(jax.numpy.int32(0)))
  context = Context(0, 0, 1, data.num_clients)
  states = jax.eval_shape(
    lambda: client.init(key, jax.tree.map(jax.numpy.asarray, broadcast), shown, context)
  )
  return Sent(parts, tree_of("server", sent.server)), tree_of("clients", states, (data.num_clients,))


def named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
  """Flattens a tree to {"PREFIX/LAYER/kernel": leaf}."""
  return {
    "/".join(filter(None, (prefix, jax.tree_util.keystr(path, simple=True, separator="/")))): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def on_host(leaf: Any) -> np.ndarray:
  """Copies an array that is spread over devices and processes into this process's memory."""
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
  return np.asarray(leaf)


def plain(array: np.ndarray) -> np.ndarray:
  """Converts an array to a dtype that NumPy itself has."""
  return array.astype(np.float32) if array.dtype == jax.numpy.bfloat16 else array
