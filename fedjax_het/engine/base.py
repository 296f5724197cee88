"""`Runs`, the base class of engines: checks, compiled programs and their time."""

import abc
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_het.data.container import Array, FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.algorithm_maker import traced
from fedjax_het.engine.asynchronous import step_of
from fedjax_het.engine.capacity import check_program
from fedjax_het.engine.checks import check_fit, check_simplex
from fedjax_het.engine.client_store import ClientStore, OnDevices
from fedjax_het.engine.compile_cache import uncollected
from fedjax_het.engine.cpu import compiler_options
from fedjax_het.engine.data_store import DataStore
from fedjax_het.engine.dishonest import dishonest
from fedjax_het.engine.divergence import Divergence
from fedjax_het.engine.evaluate import (
  Evaluation,
  check_losses,
  chosen,
  evaluate_clients,
  itself,
  parts_seen,
  spread,
)
from fedjax_het.engine.programs import PROGRAMS
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, Stretch, many_rounds
from fedjax_het.engine.state import State, clients_key, in_batches, init_client
from fedjax_het.errors import check_whole
from fedjax_het.modes import check_sound, in_float32, not_searching, searching, without_jit
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Message
from fedjax_het.tasks import Task

PyTree = Any
RunFn = Callable[[Algorithm, Any, PyTree, PyTree], tuple[PyTree, PyTree]]
OfFn = Callable[[ClientUpdate], ClientUpdate]
DoingFn = Callable[[str], AbstractContextManager[Any]]


class Seconds(NamedTuple):
  """Wall-clock seconds spent so far on compilation, training and evaluation."""

  compile: float = 0.0
  train: float = 0.0
  eval: float = 0.0


class Runs(abc.ABC):
  """A single run (`Engine`), or M runs that are one program (`Members`).

  States, round infos and evaluations are pytrees. For a single run their leaves have the documented shapes;
  for M runs every leaf has an additional leading axis [M, ...]. The methods here are written for one run, and
  a subclass turns them into a program for all of its runs by `_over_runs`.

  Args:
    make_algorithm: (**settings) -> algorithm.
    data: the clients' data, one for all runs or one per run.
    each: of each run its settings, name -> number.
    cohort_size: S, clients sampled each round without replacement.
    client_batch: clients of a run that a device trains at once.

  Attributes:
    seconds: time spent so far, by all runs together.
    doing: context-manager callback (description) that is entered around each compilation, for progress.
    has_validation: whether any client has a validation part.
    task: the task of the client part.
    groups: numbers of clients, "client_batch", and for several runs of members, "member_batch", that a device
      computes at once; None for all. Results depend on them by rounding.
    rows: R, the program's rows for a cohort, see `Participation.rows`.
    examples: where clients' examples are stored.
    states: where clients' states are stored.
    inside: mesh of devices over which each run's clients are spread; None if a run stays on one device.

  Raises:
    SettingError: the cohort is empty or larger than the number of clients, the model cannot be applied to the
      examples, or it has no output for some label.
  """

  groups: Mapping[str, int | None]
  seconds: Seconds
  doing: DoingFn = nullcontext
  has_validation: bool
  task: Task
  rows: int
  examples: DataStore
  states: ClientStore = OnDevices()
  inside: Mesh | None = None
  _settings: PyTree = ()  # the settings of all runs, on the devices
  _runs: tuple[slice, ...] = ()  # runs in the leading axis, if there is one
  _no_data: Any = ()  # in the place of the data, for a program that reads none

  def __init__(
    self,
    make_algorithm: Callable[..., Algorithm],
    data: Sequence[FederatedData],
    each: Sequence[Mapping[str, Any]],
    cohort_size: int,
    client_batch: int | None,
  ):
    self.num_clients = data[0].num_clients
    with traced(each[0]):
      check_fit(make_algorithm, data, cohort_size, each[0])
    if client_batch is not None:
      check_whole("client_batch", client_batch, 1)
    self.client_batch = client_batch or placement.default_client_batch()
    self.groups = {"client_batch": self._group_of(self.num_clients)}
    self.has_validation = any(each.limits[1] > 0 for each in data)
    self.seconds = Seconds()
    made = [make_algorithm(**own) for own in each]
    self._client = made[0].client
    self.cohort_size = made[0].clients_in_a_round(int(cohort_size))
    self._shapes = jax.eval_shape(lambda own: own, data[0])
    self.rows = max(one.participation.rows(self.num_clients, self.cohort_size) for one in made)
    there: list[bool] = []  # with traced settings: a share of 0 is one of several values
    jax.eval_shape(lambda own: there.append(make_algorithm(**own).attack.there), dict(each[0]))
    self._attacked = there[0]
    self.task = self._client.task
    self._compiled: dict[Any, Any] = {}

  @abc.abstractmethod
  def init(self, key: jax.Array) -> State:
    """Returns the state before the first round.

    Args:
      key: a typed key; of M runs, M of them.

    Raises:
      SettingError: `key` is not a key.
    """

  def diverged(self, state: State, infos: RoundInfo) -> list[Divergence | None]:
    """Returns for each run where it diverged in the rounds that `advance` just ran, or None."""
    return [None]  # a single run's divergence has been raised by `advance`

  def rounds_done(self, state: State) -> int:
    """Returns a state's number of finished rounds."""
    return int(state.round)

  def split(self, tree: PyTree) -> list[PyTree]:
    """Returns each run's entry of a state, or of a result of `advance` or `evaluate`."""
    return [tree]

  def to_save(self, state: State) -> State:
    """Returns the state for a checkpoint, without copies that only the present devices need."""
    return state

  def from_saved(self, state: State) -> State:
    """Returns the state that `to_save` saved, as the present devices need it."""
    return state._replace(clients=self.states.kept(state.clients))

  @abc.abstractmethod
  def _over_runs(self, function: RunFn) -> Callable[..., tuple[PyTree, PyTree]]:
    """Returns the program (settings, data, args, more) that applies a function to each run.

    The function is (algorithm, data, args, more) -> (results that stay on the devices, results that the host
    reads). `args` belongs to the run, and `more` is common to all runs.
    """

  @in_float32()
  def advance(self, state: State, num_rounds: int) -> tuple[State, RoundInfo]:
    """Runs `num_rounds` rounds, 1 to `MAX_CHUNK`, and consumes the given state's buffers.

    Returns:
      (state, infos as NumPy arrays on the host, each leaf [num_rounds, R]).

    Raises:
      NonFiniteLoss: a single run has diverged. Of several runs the others continue, see `diverged`.
    """
    if not 1 <= num_rounds <= MAX_CHUNK:
      raise ValueError(f"num_rounds = {num_rounds}: a chunk has 1 to {MAX_CHUNK} rounds")
    now = self.rounds_done(state)
    last, parts = now + num_rounds, []
    while now < last:
      data, until = self.examples.rounds(state.key, now, state.participation)
      started = time.perf_counter()
      visit = self.states.bring(state, now, min(until, last))
      self._book("train", started)
      count = visit.last - now
      more = Stretch(jnp.int32(count), visit.slots)
      after, infos = self._call("advance", self._rounds, data, visit.state, more, spends="train", donate=True)
      started = time.perf_counter()
      state = self.states.take_back(state, visit, after)
      self._book("train", started)
      parts.append(self._read(infos, count))
      check_simplex(parts[-1].coefficients, parts[-1].present)
      now += count
    axis = len(self._runs)
    infos = jax.tree.map(lambda *pieces: np.concatenate(pieces, axis), *parts)
    if infos.losses is None:  # the mixing did not request them
      infos = infos._replace(losses=np.full_like(infos.coefficients, np.nan))
    return state, infos

  def _rounds(
    self, algorithm: Algorithm, data: FederatedData, state: State, more: Stretch
  ) -> tuple[State, RoundInfo]:
    batch = self._group_of(self.rows)

    def step(state: State) -> Any:
      run = step_of(algorithm)
      return run(algorithm, self.inside, self.rows, batch, data, state, more.slots, self.cohort_size)

    return many_rounds(step, state, more.rounds)

  def _group_of(self, clients: int) -> int | None:
    """Returns how many of these clients are mapped at once; independent of devices and of blocks."""
    return self.client_batch and min(self.client_batch, clients)

  @in_float32()
  def evaluate(
    self, state: State, part: str = "test", of: OfFn = itself, clients: np.ndarray | None = None,
    rows: int = 1,
  ) -> Evaluation:  # fmt: skip
    """Evaluates clients on a part of their data.

    Args:
      state: the state; it stays valid.
      part: "train", "valid" or "test".
      of: (client part) -> the client part whose models are evaluated, for example with another `personalize`
        or other `Studies.lambdas`. Each function is compiled once, so a new lambda per call compiles anew.
      clients: which clients are evaluated, bool [K], or [M, K] for M runs, whose program then evaluates those
        of any run; None for all.
      rows: for how many clients the program has rows at least, so that one serves fewer, too.

    Returns:
      The metrics of all K clients on the host, float64, NaN for clients that are not evaluated.
    """
    some = None if clients is None else chosen(clients, rows)
    count = self.num_clients if some is None else len(some)

    def one(algorithm, data, state, ids):
      batch = self._group_of(self.num_clients)
      if batch is None and self.inside is not None:
        batch = min(32, -(-count // self.inside.size))
      if ids is not None and self.states.held is None:
        state = state._replace(clients=jax.tree.map(lambda leaf: leaf[ids], state.clients))
      return (), evaluate_clients(
        of(algorithm.client), algorithm.server, self.inside, self.cohort_size, batch, part, data, state, ids
      )

    seen, args = parts_seen(of(self._client), part), functools.partial(self.states.of, state)
    name = ("evaluate", part, of, 0 if some is None else count)
    found = self._in_blocks(name, one, args, seen, "eval", np.float64, ids=some)
    if some is not None and clients is not None:
      found = spread(found, some, clients)
    if searching():
      check_losses(found)
    return found

  @in_float32()
  def dishonest(self, state: State) -> np.ndarray | None:
    """Returns which clients attack, bool [K], the same in every round; None without an attack."""
    if not self._attacked:
      return None

    return self.by_key(
      "dishonest", state, lambda own, key: dishonest(key, own.attack.share, self.num_clients)
    )

  @in_float32()
  def by_key(self, name: Any, state: State, draw: Callable[[Algorithm, jax.Array], Array]) -> np.ndarray:
    """Returns what `draw` makes of (algorithm, the run's key), [K], on the host."""

    def one(algorithm, data, key, _):
      return (), draw(algorithm, key)

    found = self._call(name, one, self._no_data, state.key, spends="eval")[1]
    return self._read(found, self.num_clients)

  def _init_client(
    self, algorithm: Algorithm, key: jax.Array, broadcast: Message, data: FederatedData | None, i: jax.Array
  ) -> PyTree:
    """Returns client i's first state; `key` is the run's key."""
    context = Context(i, jnp.int32(0), self.cohort_size, self.num_clients)
    own = None if data is None else data.clients(i)
    return init_client(algorithm.client, clients_key(key), broadcast, own, context)

  def _init_in_blocks(self, keys: Array, broadcast: Message) -> PyTree:
    """Returns all clients' first states on the host, made block by block, for the raw data of keys."""

    def one(algorithm, data, args, ids):
      key, broadcast = jax.random.wrap_key_data(args[0]), args[1]
      ids = jnp.arange(self.num_clients) if ids is None else ids
      own = lambda i: self._init_client(algorithm, key, broadcast, data, i)  # noqa: E731
      return (), in_batches(own, ids, self.num_clients)

    args = lambda ids: (keys, broadcast)  # noqa: E731
    return self._in_blocks("init of examples", one, args, ("train",), "compile", room=self.states.room)

  def _in_blocks(
    self, name: Any, function: RunFn, args: Callable[[Array | None], PyTree], parts: Sequence[str],
    spends: str, dtype: Any = None, room: Callable[..., np.ndarray] = np.empty,
    ids: np.ndarray | None = None,
  ) -> Any:  # fmt: skip
    """Applies a function to clients block by block, and joins what the host reads.

    Args:
      name: key of the program.
      function: see `_over_runs`; its `more` is the block's client indices, or None for all clients.
      args: (client indices, or None for all) -> the function's `args`.
      parts: parts of the data that the function reads.
      spends: the field of `Seconds` that the time counts for.
      dtype: dtype of the results; None keeps theirs.
      room: (shape, dtype) -> the array that holds a leaf's results for all these clients.
      ids: the clients' indices; None for all.
    """
    axis, first, whole = len(self._runs), 0, None
    count = self.num_clients if ids is None else len(ids)

    def for_all(leaf: np.ndarray) -> np.ndarray:  # joining blocks at the end would need twice the memory
      return room((*leaf.shape[:axis], count, *leaf.shape[axis + 1 :]), leaf.dtype)

    for block in self.examples.blocks(*parts, at_most=self.states.held, ids=ids):
      _, found = self._call(name, function, block.data, args(block.ids), block.ids, spends=spends)
      some = self._read(found, block.real, dtype)
      whole = jax.tree.map(for_all, some) if whole is None else whole
      place = (*self._runs, slice(first, first + block.real))
      jax.tree.map(lambda all_, own: all_.__setitem__(place, own), whole, some)  # noqa: B023
      first += block.real
    return whole

  def _call(
    self, name: Any, function: RunFn, data: Any, args: PyTree, more: PyTree = None, *, spends: str,
    donate: bool = False,
  ) -> tuple[PyTree, PyTree]:  # fmt: skip
    inputs, new = (self._settings, data, args, more), name not in self._compiled
    program = self._program(name, function, inputs, donate)
    kind = name if isinstance(name, str) else name[0]
    if new and not without_jit():
      check_program(PROGRAMS[kind], program)
    started, searches = time.perf_counter(), without_jit() and kind != "evaluate"
    with jax.profiler.TraceAnnotation(PROGRAMS[kind]), nullcontext() if searches else not_searching():
      results = jax.block_until_ready(program(*inputs))
    if kind != "evaluate":  # NaN in an evaluation means that a client has no such metric
      check_sound(PROGRAMS[kind], results)
    self._book(spends, started)
    return results

  def _program(self, name: Any, function: RunFn, inputs: tuple, donate: bool = False) -> Any:
    if without_jit():
      return self._over_runs(function)
    if name not in self._compiled:
      started = time.perf_counter()
      program = jax.jit(self._over_runs(function), donate_argnums=(2,) if donate else ())
      kind = name if isinstance(name, str) else name[0]
      with uncollected(), self.doing(f"compiling {PROGRAMS[kind]}"):
        with traced(self._settings):
          lowered = program.lower(*inputs)
        self._compiled[name] = lowered.compile(compiler_options())
      self._book("compile", started)
    return self._compiled[name]

  def _book(self, kind: str, started: float) -> None:
    spent = getattr(self.seconds, kind) + time.perf_counter() - started
    self.seconds = self.seconds._replace(**{kind: spent})

  def _read(self, tree: PyTree, count: int, dtype: Any = None) -> PyTree:
    """Reads the first `count` rounds or clients of a result to the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype)[(*self._runs, slice(count))], tree)
