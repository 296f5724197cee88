"""The engine of many runs in one program; state, infos and evaluations have a leading axis of members."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het.data.clients import check_data
from fedjax_het.data.container import FederatedData
from fedjax_het.engine import placement
from fedjax_het.engine.base import RunFn, Runs
from fedjax_het.engine.checks import check_ahead
from fedjax_het.engine.cohort import CohortsAhead
from fedjax_het.engine.data_store import DataStore, Resident, Streamed
from fedjax_het.engine.divergence import Divergence, divergence, finite
from fedjax_het.engine.evaluate import beside
from fedjax_het.engine.pool import with_pool
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.side_by_side import Fields, equally_long, form, sized_beside, smallest, stacked, whole
from fedjax_het.engine.state import State, first_state, in_batches
from fedjax_het.engine.timed import timed_maker
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.modes import in_float32, without_jit
from fedjax_het.parts import Algorithm
from fedjax_het.vectors import form_of_one, same_form

PyTree = Any
AXIS = "members"


def _first(values: np.ndarray) -> Any:
  """Returns the first member's value of a setting; a Python number if the setting is a number."""
  return values[0].item() if values.ndim == 1 else values[0]


def in_turn(
  fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], rows: PyTree, args: PyTree
) -> tuple[PyTree, PyTree]:
  """Applies fn to members, one after another: (settings and data, args) -> (what stays, what the host reads).

  What stays takes the place of args if it has their shapes, as a state after some rounds does: all members'
  states together, made anew in each call, would cost more than the rounds.
  """
  fn = jax.jit(fn, inline=True)  # traced once, for its shapes and for the loop
  stays, _ = jax.eval_shape(lambda: fn(*jax.tree.map(lambda leaf: leaf[0], (rows, args))))
  if same_form(stays, form_of_one(args)):
    return placement.replace_one_by_one(fn, rows, args)
  return placement.one_by_one(lambda both: fn(*both), (rows, args))


class Members(Runs):
  """M runs in one program, called members, that differ in keys, in numeric settings and in their data.

  Each member computes what `Engine` does with its key, settings and data, except for the last place if
  members' data differ in size (array lengths are those of the largest). Members are spread over the devices,
  and each stays on one device. If members' data differ only in how the same examples are divided and ordered,
  a device holds each example once.

  Args:
    make_algorithm: (**settings) -> algorithm; called with a traced scalar for each setting, or a tree of
      traced arrays.
    data: the clients' data, one for all members, or one per member with equal numbers of clients.
    settings: name -> numbers [M], a list or an array, or a tree of arrays [M, ...].
    count: M.
    cohort_size: S, clients sampled each round without replacement.
    member_batch: number of members that a device runs side by side under `vmap`; by default one on a CPU,
      where stacked small products are slow for more than about a thousand parameters, and all elsewhere.
    client_batch: number of a member's clients that a device trains at once, with the same default.
    devices: number of devices to use; by default all, but no more than members.
    device_rows: examples that a device holds at once, for all its members together, while all stay on the
      host; by default all are copied to the devices. The results are the same.
    seeds: number of different keys of the members, by default the number of members. A round has as many
      different cohorts of common data, and `device_rows` must hold their examples.

  Raises:
    SettingError: a setting lacks a value for a member, members' data have different shapes, devices do not
      exist, or rows are too few for a round's cohorts; see also `Runs`.
  """

  @in_float32()
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
    device_rows: int | None = None,
    seeds: int | None = None,
  ):
    if member_batch is not None:
      check_whole("member_batch", member_batch, 1)
    if device_rows is not None:
      check_whole("device_rows", device_rows, 1)
    for one in [data] if isinstance(data, FederatedData) else data:
      check_data(one)
    each = sized_beside(equally_long([data] if isinstance(data, FederatedData) else data))
    make_algorithm = timed_maker(make_algorithm, each[0], cohort_size)
    settings = jax.tree.map(np.asarray, dict(settings), is_leaf=lambda node: isinstance(node, list))
    for name, values in settings.items():
      for shape in map(np.shape, jax.tree.leaves(values)):
        if shape[:1] != (count,):
          raise SettingError(name, shape, f"not one value for each of {count} members", "Give [M].")
    own = [jax.tree.map(lambda values: _first(values[m:]), settings) for m in range(count)]  # noqa: B023
    super().__init__(make_algorithm, each, own, cohort_size, client_batch)
    check_ahead(make_algorithm(**own[0]), device_rows=device_rows)
    self._form = form(each)
    self.count, self._runs, self._no_data = count, (slice(count),), Fields({}, {})
    placement.check_devices(devices)
    batch = member_batch or placement.default_client_batch()
    self._member_batch = batch and min(batch, count)
    self.groups = {**self.groups, "member_batch": self._member_batch}
    together = self._member_batch or 1
    wanted = (
      None if jax.process_count() > 1 else min(int(devices or len(jax.devices())), -(-count // together))
    )
    self.mesh = placement.client_mesh(wanted, AXIS)
    self._make = make_algorithm
    # A device gets whole groups, so that a member's position in its group is independent of the devices.
    self._padded = np.minimum(np.arange(count + -count % (self.mesh.size * together)), count - 1)
    self._settings = self._spread(settings)
    self._sizes = np.broadcast_to([own.train.size for own in each], (count, self.num_clients))
    self.examples = self._examples(each, settings, device_rows, seeds)

  def _examples(
    self, data: list[FederatedData], settings: PyTree, device_rows: int | None, seeds: int | None
  ) -> DataStore:
    held = 1 if len(data) == 1 else len(self._padded) // self.mesh.size  # data sets that a device would hold
    room = np.inf if device_rows is None else device_rows
    if len(data[0].y) <= room:
      fields = smallest(data, held)
      if len(fields.common["y"]) <= room if "y" in fields.common else held * len(data[0].y) <= room:
        return Resident(self._place(fields), self.num_clients)
    ahead = CohortsAhead(self.mesh, self.num_clients, self.rows, self._make, settings)
    drawn_alike = self._make(**jax.tree.map(_first, settings)).participation.draw is None
    different = (seeds if drawn_alike else None) or self.count  # else members draw with their settings
    return Streamed(
      data, lambda some: self._place(stacked(some)), self.mesh, ahead, int(room), runs=self.count,
      cohorts=different if len(data) == 1 else 1, held=held,
      beside=beside(self._client), validation="update" in self._client.needs.sees_data,
    )  # fmt: skip

  def _place(self, fields: Fields) -> Fields:
    """Copies host arrays to the devices."""
    common = placement.place(fields.common, placement.replicated(self.mesh))
    return Fields(common, self._spread(fields.own))

  def _spread(self, tree: PyTree) -> PyTree:
    """Copies host arrays [M, ...] to the devices; the last member is repeated to fill them."""
    sharding = NamedSharding(self.mesh, P(AXIS))
    return placement.place(jax.tree.map(lambda leaf: np.asarray(leaf)[self._padded], tree), sharding)

  @in_float32()
  def init(self, key: jax.Array) -> State:
    """Returns the states before the first round, for typed keys [M]."""
    sees = "init" in self._client.needs.sees_data

    def one(algorithm, data, args, _):
      raw, sizes = args
      key = jax.random.wrap_key_data(raw)

      def clients(_, broadcast):
        own = functools.partial(self._init_client, algorithm, key, broadcast, None)
        return () if sees else in_batches(own, jnp.arange(self.num_clients), self.num_clients)

      state = first_state(algorithm, key, sizes, self.cohort_size, clients)
      return with_pool(state, algorithm, sizes, self._shapes, self.cohort_size), ()

    keys = self._spread(jax.random.key_data(key))
    args = keys, self._spread(self._sizes)
    state, _ = self._call("init", one, Fields({}, {}), args, spends="compile")
    if sees:
      state = state._replace(clients=self._spread(self._init_in_blocks(keys, state.broadcast)))
    return state

  @in_float32()
  def diverged(self, state: State, infos: RoundInfo) -> list[Divergence | None]:
    """See `Runs`."""

    def one(algorithm, data, broadcast, _):
      return (), finite(broadcast)

    _, sound = self._call("diverged", one, self._no_data, state.broadcast, spends="train")
    first = self.rounds_done(state) - infos.cohort.shape[1]
    return [divergence(first, own, bool(now)) for own, now in zip(self.split(infos), np.asarray(sound))]

  def rounds_done(self, state: State) -> int:
    """See `Runs`; all members have finished the same rounds."""
    return int(np.asarray(state.round.addressable_data(0))[0])

  def split(self, tree: PyTree) -> list[PyTree]:
    """See `Runs`."""
    leaves, form = jax.tree.flatten(tree)
    there = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    found = []
    for m in range(self.count):
      # One program at a time: of several at once, each on other CPU devices, none might ever end.
      own = iter(jax.block_until_ready(self._member(there, m)) if there else ())
      each = [next(own) if isinstance(one, jax.Array) else one[m] for one in leaves]
      found.append(jax.tree.unflatten(form, each))
    return found

  @functools.cached_property
  def _member(self) -> Callable[[list[jax.Array], int], list[jax.Array]]:
    """(arrays with an axis of members, m) -> those of member m."""
    return jax.jit(lambda leaves, m: [leaf[m] for leaf in leaves])

  def to_save(self, state: State) -> State:
    """See `Runs`; without the repeated members."""
    if len(self._padded) == self.count:
      return state
    cut = jax.jit(
      lambda state: jax.tree.map(lambda leaf: leaf[: self.count], state),
      out_shardings=placement.replicated(self.mesh),
    )
    return cut(state)

  def from_saved(self, state: State) -> State:
    """See `Runs`."""
    if len(self._padded) == self.count:
      return state
    pad = jax.jit(
      lambda state: jax.tree.map(lambda leaf: leaf[self._padded], state),
      out_shardings=NamedSharding(self.mesh, P(AXIS)),
    )
    return pad(state)

  def keep_programs(self, programs: dict[Any, Any]) -> None:
    """Keeps this engine's compiled programs in `programs`, and runs those that it has instead of compiling.

    Args:
      programs: empty at first; then given to every engine of as many members with the same data and the same
        algorithm but for the values of the settings, which are arguments of the programs. They are kept by
        `rows`, which values may change and programs have as a constant. A program that was compiled for
        other shapes refuses its arguments with a TypeError.
    """
    self._compiled = programs.setdefault(self.rows, {})

  def _over_runs(self, function: RunFn) -> Callable[..., tuple[PyTree, PyTree]]:
    def on_device(settings, fields, args, more):
      round = args.round[0] if isinstance(args, State) else None

      def one(row, args):  # all members share the round, so that branches on it stay branches under vmap
        settings, own = row
        if round is not None:
          args = args._replace(round=round)
        return function(self._make(**settings), whole(self._form, fields._replace(own=own)), args, more)

      rows, batch = (settings, fields.own), self._member_batch
      if batch is None:
        return jax.vmap(one)(rows, args)
      if batch == 1:
        return in_turn(one, rows, args)
      grouped = jax.tree.map(lambda leaf: leaf.reshape(-1, batch, *leaf.shape[1:]), (rows, args))
      return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), in_turn(jax.vmap(one), *grouped))

    specs = P(AXIS), Fields(P(), P(AXIS)), P(AXIS), P()  # type: ignore[arg-type]
    mapped = jax.shard_map(on_device, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
    mapped = on_device if without_jit() else mapped

    def program(*args):
      stays, read = mapped(*args)
      return stays, placement.constrain(read, self.mesh)

    return program
