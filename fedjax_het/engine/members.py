"""Many runs as one program: an engine whose state, infos and evaluations have a leading axis of members."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het.data.container import FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.engine import Seconds, spent
from fedjax_het.engine.evaluate import Evaluation, evaluate_clients
from fedjax_het.engine.fit import check_fit
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, many_rounds, round_step
from fedjax_het.engine.state import State, first_state, in_batches, init_client
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.parts import Algorithm, Context

PyTree = Any
AXIS = "members"


class Members:
  """An engine for M runs that differ in their keys, in settings that are numbers, and in their data.

  Each member computes what `Engine` does with its key, settings and data. Members are spread over the
  devices, and each stays on one.

  Args:
    make_algorithm: (**settings) -> algorithm; called with a traced scalar for each setting.
    data: the clients' data, one for all members or one a member; then of equal numbers of clients and rows.
    settings: name -> numbers [M].
    count: M.
    cohort_size: S, clients sampled each round without replacement.
    member_batch: members that a device runs side by side under `vmap`; by default one on a CPU, where
      stacked small products are slow from about a thousand parameters on, and all of its own elsewhere.
    client_batch: likewise for a member's clients.
    devices: devices to use; by default all, as far as there are members.

  Attributes:
    seconds: time spent so far, by all members together.
    has_validation: whether a client has a validation part.
    task: what is learnt.

  Raises:
    SettingError: a setting without a value for each member, data of different shapes, a cohort that is
      empty or larger than the number of clients, examples that the model cannot be applied to, labels that it
      cannot tell apart, or devices that are not there.
  """

  def __init__(
    self,
    make_algorithm: Callable[..., Algorithm],
    data: FederatedData | Sequence[FederatedData],
    settings: Mapping[str, Any],
    count: int,
    cohort_size: int,
    *,
    member_batch: int | None = None,
    client_batch: int | None = None,
    devices: int | None = None,
  ):
    for name, values in settings.items():
      if np.shape(values)[:1] != (count,):
        raise SettingError(name, np.shape(values), f"not one value for each of {count} members", "Give [M].")
    first = {name: values[0] for name, values in settings.items()}
    check_fit(make_algorithm, [data] if isinstance(data, FederatedData) else data, cohort_size, first)
    self._shared = isinstance(data, FederatedData)
    stacked = data if isinstance(data, FederatedData) else stack(data)
    self.has_validation = stacked.limits[1] > 0
    num_clients = stacked.train.start.shape[-1]
    check_whole("cohort_size", cohort_size)
    if not 1 <= cohort_size <= num_clients:
      raise SettingError(
        "cohort_size", cohort_size, f"there are {num_clients} clients", f"Use 1 to {num_clients}."
      )
    self.count, self.cohort_size = count, int(cohort_size)
    placement.check_devices(devices)
    found = len(jax.devices())
    wanted = None if jax.process_count() > 1 else min(int(devices or found), count)
    self.mesh = placement.client_mesh(wanted, AXIS)
    self._make, self.task = make_algorithm, make_algorithm(**first).client.task
    self._member_batch = member_batch or placement.default_client_batch()
    self._client_batch = client_batch or placement.default_client_batch()
    self._padded = np.minimum(np.arange(count + -count % self.mesh.size), count - 1)
    self._settings = self._spread({name: np.asarray(values) for name, values in settings.items()})
    everywhere = placement.replicated(self.mesh)
    self._data = placement.place(stacked, everywhere) if self._shared else self._spread(stacked)
    self.seconds = Seconds()
    self._compiled: dict[Any, Any] = {}

  def _spread(self, tree: PyTree) -> PyTree:
    """Host arrays [M, ...] on the devices, the last member repeated where they do not divide M."""
    sharding = NamedSharding(self.mesh, P(AXIS))
    return placement.place(jax.tree.map(lambda leaf: np.asarray(leaf)[self._padded], tree), sharding)

  def init(self, keys: jax.Array) -> State:
    """The states before the first round, for typed keys [M]."""

    def one(algorithm, data, key, _):
      def clients(key, broadcast):
        def own(i):
          context = Context(i, jnp.int32(0), self.cohort_size, data.num_clients)
          return init_client(algorithm.client, key, broadcast, data.clients(i), context)

        return in_batches(own, jnp.arange(data.num_clients))

      return first_state(algorithm, jax.random.wrap_key_data(key), data.train.size, clients), ()

    return self._call("init", one, self._spread(jax.random.key_data(keys)), spends="compile")[0]

  def advance(self, state: State, num_rounds: int) -> tuple[State, RoundInfo]:
    """See `Engine.advance`; the infos are NumPy arrays [M, num_rounds, S].

    A member whose loss is not finite goes on with what it has: see `divergence`.
    """
    if not 1 <= num_rounds <= MAX_CHUNK:
      raise ValueError(f"num_rounds = {num_rounds}: a chunk has 1 to {MAX_CHUNK} rounds")

    def one(algorithm, data, state, num_rounds):
      step = functools.partial(round_step, algorithm, None, self.cohort_size, self._client_batch, data)
      return many_rounds(step, state, num_rounds)

    state, infos = self._call("advance", one, state, num_rounds, spends="train", donate=2)
    infos = jax.tree.map(lambda leaf: np.asarray(leaf)[: self.count, :num_rounds], infos)
    return state, infos

  def evaluate(self, state: State, part: str = "test") -> Evaluation:
    """See `Engine.evaluate`; values [M, K, Λ] and [M, K]."""

    def one(algorithm, data, state, _):
      return (), evaluate_clients(
        algorithm.client, None, self.cohort_size, self._client_batch, part, data, state
      )

    _, values = self._call(("evaluate", part), one, state, spends="eval")
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[: self.count], values)

  def rounds_done(self, state: State) -> int:
    """Rounds that the members have behind them."""
    return int(np.asarray(state.round.addressable_data(0))[0])

  def split(self, tree: PyTree) -> list[PyTree]:
    """What belongs to each member."""
    return [jax.tree.map(lambda leaf: leaf[m], tree) for m in range(self.count)]  # noqa: B023

  def to_save(self, state: State) -> State:
    """The state without what only these devices need."""
    if len(self._padded) == self.count:
      return state
    cut = jax.jit(
      lambda state: jax.tree.map(lambda leaf: leaf[: self.count], state),
      out_shardings=placement.replicated(self.mesh),
    )
    return cut(state)

  def from_saved(self, state: State) -> State:
    """The inverse of `to_save`."""
    if len(self._padded) == self.count:
      return state
    pad = jax.jit(
      lambda state: jax.tree.map(lambda leaf: leaf[self._padded], state),
      out_shardings=NamedSharding(self.mesh, P(AXIS)),
    )
    return pad(state)

  def _call(
    self, name: Any, function: Callable[..., PyTree], args: PyTree, number: int = 0, *, spends: str,
    donate: int | None = None,
  ) -> PyTree:  # fmt: skip
    """function(algorithm, data, args_m, number) -> (what stays, what the host reads) of each member m."""
    inputs = self._settings, self._data, args, jnp.int32(number)
    if name not in self._compiled:
      started = time.perf_counter()
      program = jax.jit(self._over_members(function), donate_argnums=donate)
      self._compiled[name] = program.lower(*inputs).compile()
      self.seconds = spent(self.seconds, compile=time.perf_counter() - started)
    started = time.perf_counter()
    results = jax.block_until_ready(self._compiled[name](*inputs))
    self.seconds = spent(self.seconds, **{spends: time.perf_counter() - started})
    return results

  def _over_members(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    def on_device(settings, data, args, number):
      def one(settings, own, args):
        return function(self._make(**settings), data if self._shared else own, args, number)

      own = None if self._shared else data
      if self._member_batch is None:
        return jax.vmap(one, in_axes=(0, None if self._shared else 0, 0))(settings, own, args)
      rows = settings, own, args
      if self._member_batch == 1:
        return placement.one_by_one(lambda row: one(*row), rows)
      return lax.map(lambda row: one(*row), rows, batch_size=self._member_batch)

    own = P() if self._shared else P(AXIS)
    mapped = jax.shard_map(
      on_device, mesh=self.mesh, in_specs=(P(AXIS), own, P(AXIS), P()), out_specs=P(AXIS), check_vma=False
    )

    def program(*args):
      stays, read = mapped(*args)
      return stays, placement.constrain(read, self.mesh)

    return program


def stack(data: Sequence[FederatedData]) -> FederatedData:
  """The members' data side by side, each array with a leading axis [M]."""
  shapes = {
    str([leaf.shape for leaf in jax.tree.leaves((each.x, each.y, each.train.start))]) for each in data
  }
  if len(shapes) > 1:
    raise SettingError("data", sorted(shapes), "not alike", "Give members equal numbers of rows and clients.")

  def stacked(name: str) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(getattr(each, name) for each in data))

  limits = [max(each.limits[j] for each in data) for j in range(3)]
  alike = [all(each.uniform[j] and each.limits[j] == limits[j] for each in data) for j in range(3)]
  return dataclasses.replace(
    data[0],
    **{name: stacked(name) for name in ("x", "y", "train", "valid", "test")},
    limits=(limits[0], limits[1], limits[2]),
    uniform=(alike[0], alike[1], alike[2]),
  )
