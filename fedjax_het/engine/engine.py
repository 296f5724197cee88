"""The engine of a single run, whose clients are spread over the devices."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from fedjax_het.data.clients import check_data
from fedjax_het.data.container import FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.algorithm_maker import maker, traced
from fedjax_het.engine.base import RunFn, Runs
from fedjax_het.engine.capacity import check_fits, check_results, size
from fedjax_het.engine.checks import check_ahead
from fedjax_het.engine.client_store import OnHost, check_places
from fedjax_het.engine.cohort import CohortsAhead
from fedjax_het.engine.cpu import compiler_options
from fedjax_het.engine.data_store import Resident, Streamed
from fedjax_het.engine.divergence import check_finite, divergence, finite_here
from fedjax_het.engine.evaluate import beside
from fedjax_het.engine.pool import with_pool
from fedjax_het.engine.programs import PROGRAMS
from fedjax_het.engine.round import RoundInfo, Stretch
from fedjax_het.engine.state import State, first_state, in_batches
from fedjax_het.engine.timed import timed_maker
from fedjax_het.errors import NoStates, check_run_key, check_whole, memory_there
from fedjax_het.modes import in_float32, without_jit
from fedjax_het.parts import Algorithm

PyTree = Any


class Engine(Runs):
  """A single run: an algorithm on federated data.

  Rounds run in chunks inside one compiled program, whose number of rounds is an argument. It is compiled
  once, whatever the chunks' lengths, and its buffers are donated. Every draw is folded in from
  (key, round, client), so results do not depend on how rounds are cut into chunks.

  Args:
    algorithm: the algorithm; together with `settings` a function (**settings) -> algorithm, as for a sweep.
    data: the clients' data.
    cohort_size: S, clients sampled each round without replacement.
    client_batch: clients that a device trains at once; by default one on a CPU and all elsewhere. Random
      draws do not depend on it; results do by rounding, as stacked products are summed in another order.
    devices: number of devices to spread the cohort over; by default all, of all processes. On CPUs, for the
      same `client_batch`, any number gives the same bits.
    device_rows: examples that a device holds at once, while all stay on the host; by default all are copied
      to the devices. The results are the same.
    device_states: clients' states that the devices hold at once, while all stay on the host as NumPy arrays;
      by default all are stored on the devices. The results are the same.
    states_folder: a folder on a disk for the states that `device_states` keeps on the host: memory-mapped
      files that disappear with the process. By default they are in memory.
    settings: name -> number, or tree of arrays, that the program takes as a value. Other numbers then use the
      same program, and the bits are those of a member of a sweep; XLA may round with constants differently.

  Attributes:
    seconds, doing, has_validation, task: see `Runs`.

  Raises:
    SettingError: the cohort is empty or larger than the number of clients, the model cannot be applied to the
      examples or has no output for a label, devices or a folder do not exist, or rows or states are too few
      for a cohort; see also `checks.check_fit`.
  """

  @in_float32()
  def __init__(
    self,
    algorithm: Algorithm | Callable[..., Algorithm],
    data: FederatedData,
    cohort_size: int,
    *,
    client_batch: int | None = None,
    devices: int | None = None,
    device_rows: int | None = None,
    device_states: int | None = None,
    states_folder: str | None = None,
    settings: Mapping[str, Any] | None = None,
  ):
    check_data(data)
    check_places(device_states, states_folder)  # before the examples are copied
    if device_rows is not None:
      check_whole("device_rows", device_rows, 1)
    self._make = timed_maker(maker(algorithm, settings), data, cohort_size)
    self._numbers = dict(settings or {})
    super().__init__(self._make, [data], [self._numbers], cohort_size, client_batch)
    check_ahead(self._make(**self._numbers), device_rows=device_rows, device_states=device_states)
    self.data = data
    placement.check_devices(devices)
    self.mesh = placement.client_mesh(1 if without_jit() else devices)
    self.inside = None if without_jit() else self.mesh  # without jit one device trains all clients
    everywhere = placement.replicated(self.mesh)
    own = jax.tree.map(lambda own: np.asarray(own)[None], self._numbers)
    self._cohorts = CohortsAhead(self.mesh, self.num_clients, self.rows, self._make, own)
    self._settings = placement.place(jax.tree.map(np.asarray, self._numbers), everywhere)
    self.examples = (
      Resident(placement.place(data, everywhere), self.num_clients)
      if device_rows is None or device_rows >= len(data.y)
      else Streamed(
        [data], lambda some: placement.place(some[0], everywhere), self.mesh, self._cohorts, device_rows,
        beside=beside(self._client), validation="update" in self._client.needs.sees_data,
      )
    )  # fmt: skip
    if device_states is not None:
      self._hold_states(device_states, states_folder)

  def _hold_states(self, device_states: int, folder: str | None) -> None:
    """Stores the clients' states on the host if the devices may not hold all of them."""
    check_whole("device_states", device_states, 1)
    if not jax.tree.leaves(own := self._states_of(np.arange(1))):
      raise NoStates("device_states", device_states, "clients of this method keep none", "Leave it out.")
    if device_states < self.num_clients:
      if folder is None:
        check_fits("all clients' states on the host", self.num_clients * size(own), memory_there())
      self.states = OnHost(self.mesh, self.num_clients, self._cohorts, int(device_states), folder)

  def _states_of(self, ids: np.ndarray) -> PyTree:
    """Returns the shapes of the states of these clients."""
    key, algorithm = jax.random.key(0), self._make(**self._numbers)

    def own(i: jax.Array, data: FederatedData) -> PyTree:
      return self._init_client(algorithm, key, algorithm.client.init_broadcast(key), data, i)

    return jax.eval_shape(jax.vmap(own, (0, None)), ids, self.examples.shapes())

  @in_float32()
  def init(self, key: jax.Array) -> State:
    """See `Runs`."""
    key = check_run_key(key)
    started = time.perf_counter()
    args = self._settings, np.asarray(jax.random.key_data(key)), np.asarray(self.data.train.size)
    first = jax.jit(self._init, inline=True)  # traced once, for its shapes and for the program
    with traced(self._numbers):
      shapes = jax.eval_shape(first, *args)
    check_results("the first state's arrays", shapes)
    with self.doing(f"compiling {PROGRAMS['init']}"):
      program = jax.jit(first, out_shardings=self.shardings(shapes), compiler_options=compiler_options())
      state = jax.block_until_ready(program(*args))
    self._book("compile", started)
    if self._later:
      clients = self._init_in_blocks(args[1], state.broadcast)
      if self.states.held is None:
        clients = placement.place(clients, self._over_clients)
      state = state._replace(clients=clients)
    return state

  @property
  def _later(self) -> bool:
    """True if clients' first states are made in blocks: from examples, or to be stored on the host."""
    return "init" in self._client.needs.sees_data or self.states.held is not None

  @property
  def _over_clients(self) -> NamedSharding:
    return placement.over_clients(self.mesh, self.states.held or self.num_clients)

  def _init(self, settings: PyTree, raw: jax.Array, sizes: jax.Array) -> State:
    algorithm, key = self._make(**settings), jax.random.wrap_key_data(raw)

    def where_they_stay(_, broadcast):  # avoids that each device makes the states of all K clients
      own = functools.partial(self._init_client, algorithm, key, broadcast, None)
      spread = self._over_clients.spec
      everybody = jnp.arange(self.num_clients)
      if self.inside is None:
        return in_batches(own, everybody, self.num_clients)
      mapped = jax.shard_map(
        lambda ids: in_batches(own, ids, self.num_clients), mesh=self.mesh, in_specs=spread,
        out_specs=spread, check_vma=False,
      )  # fmt: skip
      return mapped(everybody)

    later = lambda key, broadcast: ()  # noqa: E731
    clients = later if self._later else where_they_stay
    state = first_state(algorithm, key, sizes, self.cohort_size, clients)
    return with_pool(state, algorithm, sizes, self._shapes, self.cohort_size)

  def shardings(self, state: State) -> State:
    """Returns the sharding of each leaf of a state: client states split over devices, the rest replicated."""
    everywhere = jax.tree.map(lambda _: placement.replicated(self.mesh), state)
    return everywhere._replace(clients=jax.tree.map(lambda _: self._over_clients, state.clients))

  @in_float32()
  def advance(self, state: State, num_rounds: int) -> tuple[State, RoundInfo]:
    """See `Runs`.

    Raises:
      NonFiniteLoss: a client's training loss was NaN or infinite (with the first such round and client), or
        the server's next broadcast is.
    """
    state, infos = super().advance(state, num_rounds)
    first = self.rounds_done(state) - num_rounds
    check_finite(divergence(first, infos, finite_here(state.broadcast)))
    return state, infos

  @in_float32()
  def compile(self) -> tuple[State, Any]:
    """Compiles the rounds without making a state; returns the state's shapes and XLA's compiled program."""
    key = jax.random.key(0)
    sizes = np.asarray(self.data.train.size)
    shapes = jax.eval_shape(self._init, self._settings, jax.random.key_data(key), sizes)
    if self._later:
      shapes = shapes._replace(clients=self._states_of(np.arange(self.num_clients)))
    held = self.states.held
    here = shapes if held is None else shapes._replace(clients=self._states_of(np.arange(held)))
    state = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      here,
      self.shardings(here),
    )
    slots = None if held is None else np.zeros(self.num_clients, np.int32)
    args = self._settings, self.examples.shapes(), state, Stretch(jnp.int32(1), slots)
    with jax.disable_jit(False):
      return shapes, self._program("advance", self._rounds, args, donate=True)

  def _rounds(
    self, algorithm: Algorithm, data: FederatedData, state: State, more: Stretch
  ) -> tuple[State, RoundInfo]:
    state, infos = super()._rounds(algorithm, data, state, more)
    if self.inside is None:
      return state, infos
    return lax.with_sharding_constraint(state, self.shardings(state)), infos

  def _over_runs(self, function: RunFn) -> Callable[..., tuple[PyTree, PyTree]]:
    return lambda settings, data, args, more: function(self._make(**settings), data, args, more)
