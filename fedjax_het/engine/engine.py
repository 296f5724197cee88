"""The engine: compiles a run's two programs, advances its state, evaluates it."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het import federated
from fedjax_het.data.container import FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.evaluate import Evaluation, evaluate_clients
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, many_rounds, round_step
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.federated import Algorithm, State

PyTree = Any


class Seconds(NamedTuple):
  """Wall-clock seconds spent so far."""

  compile: float = 0.0
  train: float = 0.0
  eval: float = 0.0


class Engine:
  """Runs an algorithm on federated data.

  Rounds run in chunks inside one compiled program, whose number of rounds is an argument: whatever the
  chunks' lengths, it is compiled once, and its buffers are donated. Every draw is folded in from
  (key, round, client), so the same rounds give the same numbers however they are cut into chunks.

  Args:
    algorithm: what to run.
    data: the clients' data.
    cohort_size: S, clients sampled each round without replacement.
    client_batch: clients that a device trains at once; by default one on a CPU and all elsewhere.
    devices: number of local devices to spread the cohort over; by default all.

  Attributes:
    seconds: time spent so far, see `Seconds`.

  Raises:
    SettingError: a cohort that is empty or larger than the number of clients.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    data: FederatedData,
    cohort_size: int,
    *,
    client_batch: int | None = None,
    devices: int | None = None,
  ):
    if not 1 <= cohort_size <= data.num_clients:
      raise SettingError(
        "cohort_size", cohort_size, f"there are {data.num_clients} clients",
        f"Use 1 to {data.num_clients}.",
      )  # fmt: skip
    self.algorithm = algorithm
    self.cohort_size = cohort_size
    self.mesh = placement.client_mesh(devices)
    self.client_batch = client_batch or placement.default_client_batch()
    self.data = jax.device_put(data, placement.replicated(self.mesh))
    self.seconds = Seconds()
    self._compiled: dict[Any, Any] = {}

  def init(self, key: jax.Array) -> State:
    """The state before the first round."""
    started = time.perf_counter()
    shapes = jax.eval_shape(self._init, key, self.data.train.size)
    state = jax.jit(self._init, out_shardings=self.shardings(shapes))(key, self.data.train.size)
    jax.block_until_ready(state)
    self._spend(compile=time.perf_counter() - started)
    return state

  def _init(self, key: jax.Array, sizes: jax.Array) -> State:
    return federated.init(self.algorithm, key, sizes)

  def shardings(self, state: State) -> State:
    """Where each leaf of a state lives: client states over the devices, the rest on all of them."""
    everywhere = jax.tree.map(lambda _: placement.replicated(self.mesh), state)
    spread = placement.over_clients(self.mesh, self.data.num_clients)
    return everywhere._replace(clients=jax.tree.map(lambda _: spread, state.clients))

  def advance(self, state: State, num_rounds: int) -> tuple[State, RoundInfo]:
    """Runs `num_rounds` rounds (at most `MAX_CHUNK`); the given state's buffers are consumed.

    Returns:
      (state, infos on the host as NumPy arrays, each [num_rounds, S]).

    Raises:
      NonFiniteLoss: a client's training loss was NaN or infinite; names its first round and client.
    """
    if not 1 <= num_rounds <= MAX_CHUNK:
      raise ValueError(f"num_rounds = {num_rounds}: a chunk has 1 to {MAX_CHUNK} rounds")
    first = int(state.round)
    run = self._program("advance", self._advance, (self.data, state, jnp.int32(num_rounds)), (1,))
    started = time.perf_counter()
    state, infos = run(self.data, state, jnp.int32(num_rounds))
    infos = jax.tree.map(lambda leaf: np.asarray(leaf)[:num_rounds], jax.block_until_ready(infos))
    self._spend(train=time.perf_counter() - started)
    check_finite(first, infos)
    return state, infos

  def compile(self) -> tuple[State, Any]:
    """The rounds' program without a state: the state's shapes, and XLA's compiled program."""
    shapes = jax.eval_shape(self._init, jax.random.key(0), self.data.train.size)
    state = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      shapes,
      self.shardings(shapes),
    )
    program = self._program("advance", self._advance, (self.data, state, jnp.int32(1)), (1,))
    return shapes, program

  def _advance(self, data: FederatedData, state: State, num_rounds: jax.Array) -> tuple[State, RoundInfo]:
    step = functools.partial(round_step, self.algorithm, self.mesh, self.cohort_size, self.client_batch, data)
    state, infos = many_rounds(step, state, num_rounds)
    return lax.with_sharding_constraint(state, self.shardings(state)), infos

  def evaluate(self, state: State, part: str = "test") -> Evaluation:
    """Evaluates all clients on their `part` of the data; values on the host, float64."""

    def program(data, state):
      return evaluate_clients(self.algorithm, self.mesh, self.client_batch or 32, part, data, state)

    run = self._program(("evaluate", part), program, (self.data, state))
    started = time.perf_counter()
    values = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), run(self.data, state))
    self._spend(eval=time.perf_counter() - started)
    return values

  def _program(self, name: Any, function: Any, args: tuple, donate: tuple[int, ...] = ()) -> Any:
    if name not in self._compiled:
      started = time.perf_counter()
      self._compiled[name] = jax.jit(function, donate_argnums=donate).lower(*args).compile()
      self._spend(compile=time.perf_counter() - started)
    return self._compiled[name]

  def _spend(self, **seconds: float) -> None:
    spent = {name: getattr(self.seconds, name) + more for name, more in seconds.items()}
    self.seconds = self.seconds._replace(**spent)


def check_finite(first_round: int, infos: RoundInfo) -> None:
  """Raises `NonFiniteLoss` naming the first round and client whose training loss is not finite."""
  bad = np.argwhere(~np.isfinite(infos.clients.loss))
  if len(bad):
    at, slot = bad[0]
    raise NonFiniteLoss(
      f"The training loss became {infos.clients.loss[at, slot]} in round {first_round + at + 1} "
      f"at client {infos.cohort[at, slot]}. Lower the learning rate, or look at that client's data."
    )
