"""Many runs as one program: seeds, and settings that are numbers, along a leading axis."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from fedjax_het import federated
from fedjax_het.data.container import FederatedData, Part
from fedjax_het.engine.evaluate import Evaluation, evaluate_clients
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, many_rounds, round_step
from fedjax_het.engine.run import check_rounds, summarize
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.federated import Algorithm, State

PyTree = Any
AXIS = "members"


class Sweep(NamedTuple):
  """What `sweep` returns; M members.

  Attributes:
    state: the final states, each leaf [M, ...].
    infos: every round of every member, NumPy arrays [M, T, S].
    history: round -> `Evaluation`, NumPy arrays [M, K, ...] and [M, K].
    metrics: for each member the final {"personalized", "global"} -> metric -> {mean, std, ...}.
  """

  state: State
  infos: RoundInfo
  history: dict[int, Evaluation]
  metrics: list[dict[str, dict[str, dict[str, float]]]]


def sweep(
  make_algorithm: Callable[..., Algorithm],
  data: FederatedData | Sequence[FederatedData],
  *,
  keys: jax.Array,
  settings: Mapping[str, Any] | None = None,
  rounds: int,
  cohort_size: int,
  eval_every: int | None = None,
  member_batch: int | None = None,
  client_batch: int | None = None,
  devices: int | None = None,
) -> Sweep:
  """Runs M experiments as one compiled program, spread over the devices.

  Each member computes what `fedjax_het.run` does with its key, its settings and its data.

  Args:
    make_algorithm: (**settings) -> algorithm; called once, with a traced scalar for each setting.
    data: the clients' data, one for all members or one a member; then of equal numbers of clients and rows.
    keys: typed keys, [M]: the members' only source of randomness.
    settings: name -> array [M]; the members' continuous hyperparameters.
    rounds: T >= 1.
    cohort_size: S, clients sampled each round without replacement.
    eval_every: rounds between evaluations; by default only at the end.
    member_batch: members that a device runs side by side under `vmap`; by default all of its own. On a CPU
      1 is faster from about a thousand parameters on, since stacked small products are slow there.
    client_batch: likewise for a member's clients.
    devices: local devices to use; by default all, as far as there are members.

  Raises:
    SettingError: a setting out of range, or data of different shapes.
    NonFiniteLoss: a training loss became NaN or infinite; names member, round and client.
  """
  check_rounds(rounds, eval_every)
  settings = {name: jnp.asarray(value) for name, value in (settings or {}).items()}
  count = keys.shape[0]
  for name, value in settings.items():
    if value.shape[:1] != (count,):
      raise SettingError(name, value.shape, f"not one value for each of {count} keys", "Give [M] values.")
  shared = isinstance(data, FederatedData)
  stacked = data if isinstance(data, FederatedData) else stack(data)
  num_clients = stacked.train.start.shape[-1]
  if not 1 <= cohort_size <= num_clients:
    raise SettingError(
      "cohort_size", cohort_size, f"there are {num_clients} clients", f"Use 1 to {num_clients}."
    )
  found = jax.local_devices()[: min(devices or count, count)]
  mesh = Mesh(np.asarray(found), (AXIS,), axis_types=(AxisType.Auto,))
  padded = np.minimum(np.arange(count + -count % mesh.size), count - 1)
  members: PyTree = (keys[padded], {name: value[padded] for name, value in settings.items()})
  if not shared:
    stacked = jax.tree.map(lambda leaf: leaf[padded], stacked)

  def each(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """(members, data, stacked arguments..., shared number) -> stacked results, over devices and members."""

    def on_device(members, data, args, number):
      def one(member, own, args):
        return function(make_algorithm(**member[1]), member[0], data if shared else own, args, number)

      if member_batch is None:
        return jax.vmap(one, in_axes=(0, None if shared else 0, 0))(members, None if shared else data, args)
      rows = (members, None if shared else data, args)
      return lax.map(lambda row: one(*row), rows, batch_size=member_batch if member_batch > 1 else None)

    own = P() if shared else P(AXIS)
    mapped = jax.shard_map(
      on_device, mesh=mesh, in_specs=(P(AXIS), own, P(AXIS), P()), out_specs=P(AXIS), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=2)

  def init(algorithm, key, data, _, __):
    return federated.init(algorithm, key, data.train.size)

  def advance(algorithm, key, data, state, num_rounds):
    return many_rounds(
      lambda state: round_step(algorithm, None, cohort_size, client_batch, data, state), state, num_rounds
    )

  def evaluate(algorithm, key, data, state, _):
    return evaluate_clients(algorithm, None, client_batch, "test", data, state), state

  programs = {f.__name__: each(f) for f in (init, advance, evaluate)}
  state = programs["init"](members, stacked, (), 0)
  infos: list[RoundInfo] = []
  history: dict[int, Evaluation] = {}
  done = 0
  while done < rounds:
    due = rounds if not eval_every else min(rounds, (done // eval_every + 1) * eval_every)
    length = min(due - done, MAX_CHUNK)
    state, info = programs["advance"](members, stacked, state, length)
    infos.append(on_host(info, count, length))
    check_members(done, infos[-1])
    done += length
    if done == due:
      values, state = programs["evaluate"](members, stacked, state, 0)
      history[done] = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[:count], values)
  last = history[rounds]
  return Sweep(
    jax.tree.map(lambda leaf: leaf[:count], state),
    jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos),
    history,
    [summarize(member(last, m)) for m in range(count)],
  )


def on_host(infos: RoundInfo, count: int, length: int) -> RoundInfo:
  """The first `count` members' first `length` rounds, as NumPy arrays."""
  return jax.tree.map(lambda leaf: np.asarray(leaf)[:count, :length], infos)


def member(tree: PyTree, m: int) -> PyTree:
  """Member m's slice of stacked results."""
  return jax.tree.map(lambda leaf: leaf[m], tree)


def stack(data: Sequence[FederatedData]) -> FederatedData:
  """The members' data side by side, each array with a leading axis [M]."""
  shapes = {(each.x.shape, each.train.start.shape) for each in data}
  if len(shapes) > 1:
    raise SettingError("data", sorted(shapes), "not alike", "Give members equal numbers of rows and clients.")

  def parts(name: str) -> Part:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(getattr(each, name) for each in data))

  limits = [max(each.limits[j] for each in data) for j in range(3)]
  alike = [all(each.uniform[j] and each.limits[j] == limits[j] for each in data) for j in range(3)]
  return dataclasses.replace(
    data[0],
    x=jnp.stack([each.x for each in data]),
    y=jnp.stack([each.y for each in data]),
    train=parts("train"),
    valid=parts("valid"),
    test=parts("test"),
    limits=(limits[0], limits[1], limits[2]),
    uniform=(alike[0], alike[1], alike[2]),
  )


def check_members(first_round: int, infos: RoundInfo) -> None:
  """Raises `NonFiniteLoss` naming the first member, round and client whose loss is not finite."""
  bad = np.argwhere(~np.isfinite(infos.clients.loss))
  if len(bad):
    member, at, slot = bad[0]
    raise NonFiniteLoss(
      f"The training loss became {infos.clients.loss[member, at, slot]} in round {first_round + at + 1} at "
      f"client {infos.cohort[member, at, slot]} of member {member}. Lower the learning rate there."
    )
