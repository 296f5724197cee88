"""The engine: compiles a run's two programs, advances its state, evaluates it."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.divergence import divergence
from fedjax_het.engine.evaluate import Evaluation, evaluate_clients, parts_seen
from fedjax_het.engine.examples import Examples, Resident, Streamed
from fedjax_het.engine.fit import check_fit
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, many_rounds, round_step
from fedjax_het.engine.state import State, clients_key, first_state, in_batches, init_client
from fedjax_het.errors import NonFiniteLoss, SettingError, check_key, check_whole
from fedjax_het.parts import Algorithm, Context, Message

PyTree = Any


class Seconds(NamedTuple):
  """Wall-clock seconds spent so far."""

  compile: float = 0.0
  train: float = 0.0
  eval: float = 0.0


def spent(seconds: Seconds, **more: float) -> Seconds:
  """Seconds with more of some kinds."""
  return seconds._replace(**{kind: getattr(seconds, kind) + value for kind, value in more.items()})


class Engine:
  """Runs an algorithm on federated data.

  Rounds run in chunks inside one compiled program, whose number of rounds is an argument: whatever the
  chunks' lengths, it is compiled once, and its buffers are donated. Every draw is folded in from
  (key, round, client), so the same rounds give the same numbers however they are cut into chunks.

  Args:
    algorithm: what to run.
    data: the clients' data.
    cohort_size: S, clients sampled each round without replacement.
    client_batch: clients that a device trains at once; by default one on a CPU and all elsewhere. The draws
      do not depend on it, the numbers do by rounding: stacked products are summed in another order.
    devices: number of devices to spread the cohort over; by default all, of all processes. On CPUs, for the
      same `client_batch`, any number gives the same bits.
    device_rows: examples that a device holds at once, where they stay on the host; by default all are
      brought to the devices. The numbers are the same.

  Attributes:
    seconds: time spent so far, see `Seconds`.
    has_validation: whether a client has a validation part.
    task: what is learnt.

  Raises:
    SettingError: a cohort that is empty or larger than the number of clients, examples that the model cannot
      be applied to, labels that it cannot tell apart, devices that are not there, or too few rows for
      a cohort.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    data: FederatedData,
    cohort_size: int,
    *,
    client_batch: int | None = None,
    devices: int | None = None,
    device_rows: int | None = None,
  ):
    check_whole("cohort_size", cohort_size)
    if not 1 <= cohort_size <= data.num_clients:
      raise SettingError(
        "cohort_size", cohort_size, f"there are {data.num_clients} clients",
        f"Use 1 to {data.num_clients}.",
      )  # fmt: skip
    check_fit(lambda: algorithm, [data], int(cohort_size), {})
    self.algorithm, self.task = algorithm, algorithm.client.task
    self.cohort_size = int(cohort_size)
    self.mesh = placement.client_mesh(devices)
    self.client_batch = client_batch or placement.default_client_batch()
    self.data = data
    self.has_validation = data.limits[1] > 0
    self.examples: Examples = (
      Resident(data, self.mesh)
      if device_rows is None or device_rows >= len(data.y)
      else Streamed(
        data, cohort_size, device_rows, self.mesh, together="personalize" in algorithm.client.sees_data
      )
    )
    self.seconds = Seconds()
    self._compiled: dict[Any, Any] = {}

  def init(self, key: jax.Array) -> State:
    """The state before the first round.

    Raises:
      SettingError: what is no key.
    """
    check_key(key)
    started = time.perf_counter()
    args = np.asarray(jax.random.key_data(key)), np.asarray(self.data.train.size)
    shapes = jax.eval_shape(self._init, *args)
    state = jax.jit(self._init, out_shardings=self.shardings(shapes))(*args)
    if self._sees:
      state = state._replace(clients=self._init_seeing(key, state.broadcast))
    jax.block_until_ready(state)
    self.seconds = spent(self.seconds, compile=time.perf_counter() - started)
    return state

  @property
  def _sees(self) -> bool:
    """Whether the clients' first states are made of their examples."""
    return "init" in self.algorithm.client.sees_data

  def _init(self, key: jax.Array, sizes: jax.Array) -> State:
    def where_they_stay(key, broadcast):  # or each device would first make all K, to keep its own
      spread = placement.over_clients(self.mesh, self.data.num_clients).spec
      mapped = functools.partial(in_batches, lambda i: self._init_client(key, broadcast, None, i))
      ids = jnp.arange(self.data.num_clients)
      return jax.shard_map(mapped, mesh=self.mesh, in_specs=spread, out_specs=spread, check_vma=False)(ids)

    later = lambda key, broadcast: ()  # noqa: E731
    clients = later if self._sees else where_they_stay
    return first_state(self.algorithm, jax.random.wrap_key_data(key), sizes, clients)

  def _init_client(
    self, key: jax.Array, broadcast: Message, data: FederatedData | None, i: jax.Array
  ) -> PyTree:
    context = Context(i, jnp.int32(0), self.cohort_size, self.data.num_clients)
    own = None if data is None else data.clients(i)
    return init_client(self.algorithm.client, key, broadcast, own, context)

  def _init_seeing(self, key: jax.Array, broadcast: Message) -> PyTree:
    """The clients' first states, made of their examples, a block of clients after another."""

    @jax.jit
    def program(data: FederatedData, broadcast: Message, ids: jax.Array) -> PyTree:
      own = functools.partial(self._init_client, clients_key(key), broadcast, data)
      return in_batches(own, ids)

    parts = []
    for block in self.examples.blocks("train"):
      ids = jnp.arange(self.data.num_clients) if block.ids is None else block.ids
      states = program(block.data, broadcast, ids)
      parts.append(jax.tree.map(lambda leaf: np.asarray(leaf)[: block.real], states))  # noqa: B023
    states = jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)
    return placement.place(states, placement.over_clients(self.mesh, self.data.num_clients))

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
      NonFiniteLoss: a client's training loss was NaN or infinite; names its first round and client. Or none
        was, but what the server would send next is: no later loss would tell.
    """
    if not 1 <= num_rounds <= MAX_CHUNK:
      raise ValueError(f"num_rounds = {num_rounds}: a chunk has 1 to {MAX_CHUNK} rounds")
    first, key = int(state.round), np.asarray(jax.random.key_data(state.key))
    now, last = first, first + num_rounds
    parts: list[RoundInfo] = []
    while now < last:
      data, until = self.examples.rounds(key, now)
      args = data, state, jnp.int32(min(until, last) - now)
      run = self._program("advance", self._advance, args, (1,))
      started = time.perf_counter()
      state, infos = jax.block_until_ready(run(*args))
      parts.append(jax.tree.map(lambda leaf: np.asarray(leaf)[: min(until, last) - now], infos))  # noqa: B023
      now = min(until, last)
      self.seconds = spent(self.seconds, train=time.perf_counter() - started)
    infos = jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)
    check_finite(first, infos)
    check_model(last, state.broadcast)
    return state, infos

  def compile(self) -> tuple[State, Any]:
    """The rounds' program without a state: the state's shapes, and XLA's compiled program."""
    key = np.asarray(jax.random.key_data(jax.random.key(0)))
    shapes = jax.eval_shape(self._init, key, np.asarray(self.data.train.size))
    if self._sees:
      own = functools.partial(self._init_client, clients_key(jax.random.key(0)))
      states = jax.eval_shape(jax.vmap(own, (None, None, 0)), shapes.broadcast, self.examples.shapes(),
                              jnp.arange(self.data.num_clients))  # fmt: skip
      shapes = shapes._replace(clients=states)
    state = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      shapes,
      self.shardings(shapes),
    )
    program = self._program("advance", self._advance, (self.examples.shapes(), state, jnp.int32(1)), (1,))
    return shapes, program

  def _advance(self, data: FederatedData, state: State, num_rounds: jax.Array) -> tuple[State, RoundInfo]:
    step = functools.partial(round_step, self.algorithm, self.mesh, self.cohort_size, self.client_batch, data)
    state, infos = many_rounds(step, state, num_rounds)
    return lax.with_sharding_constraint(state, self.shardings(state)), infos

  def evaluate(self, state: State, part: str = "test") -> Evaluation:
    """Evaluates all clients on their `part` of the data; values on the host, float64."""

    def program(data, state, ids):
      count = self.data.num_clients if ids is None else len(ids)
      batch = self.client_batch or min(32, -(-count // self.mesh.size))
      return evaluate_clients(
        self.algorithm.client, self.mesh, self.cohort_size, batch, part, data, state, ids
      )

    parts = []
    for block in self.examples.blocks(*parts_seen(self.algorithm.client, part)):
      args = block.data, state, block.ids
      run = self._program(("evaluate", part), program, args)
      started = time.perf_counter()
      values = run(*args)
      parts.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[: block.real], values))  # noqa: B023
      self.seconds = spent(self.seconds, eval=time.perf_counter() - started)
    return jax.tree.map(lambda *pieces: np.concatenate(pieces), *parts)

  def _program(self, name: Any, function: Any, args: tuple, donate: tuple[int, ...] = ()) -> Any:
    if name not in self._compiled:
      started = time.perf_counter()
      self._compiled[name] = jax.jit(function, donate_argnums=donate).lower(*args).compile()
      self.seconds = spent(self.seconds, compile=time.perf_counter() - started)
    return self._compiled[name]

  def rounds_done(self, state: State) -> int:
    """Rounds that a state has behind it."""
    return int(state.round)

  def split(self, tree: PyTree) -> list[PyTree]:
    """What belongs to each of the engine's runs; it has one."""
    return [tree]

  def to_save(self, state: State) -> State:
    """The state without what only these devices need: all of it."""
    return state

  def from_saved(self, state: State) -> State:
    """The inverse of `to_save`."""
    return state


def check_finite(first_round: int, infos: RoundInfo) -> None:
  """Raises `NonFiniteLoss` naming the first round and client whose training loss is not finite."""
  if found := divergence(first_round, infos):
    raise NonFiniteLoss(f"{found}. Lower the learning rate, or look at that client's data.")


def check_model(round: int, broadcast: PyTree) -> None:
  """Raises `NonFiniteLoss` if what the server sends after so many rounds is NaN or infinite anywhere."""
  if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(broadcast)):
    raise NonFiniteLoss(
      f"What the server sends became NaN or infinite by round {round}, though no training loss did: an "
      "upload, a mixing coefficient or the server's step was. Lower the learning rates."
    )
