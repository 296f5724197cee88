"""Sweeps: runs with different seeds and numeric settings in one program, along a leading axis."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.clients import check_data
from fedjax_het.data.container import FederatedData
from fedjax_het.engine.algorithm_maker import checked, grid_as_lists
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.capacity import in_words
from fedjax_het.engine.checks import tell_untested, warn
from fedjax_het.engine.divergence import Divergence, check_any_left, unknown
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.judged import (
  EvalClients,
  all_are_judged,
  check_eval_clients,
  check_rounds,
  fewer_late_rounds,
)
from fedjax_het.engine.lambda_selection import Pick, pick
from fedjax_het.engine.round import RoundInfo, over_arrived, over_rounds
from fedjax_het.engine.run import Metrics, chunks, in_short, on_attackers, on_validation, showing, summarize
from fedjax_het.engine.state import State
from fedjax_het.engine.trained import Trained, trained
from fedjax_het.errors import SettingError, check_run_key, check_seed, listed, typed_keys
from fedjax_het.metrics.fairness import left_out_of_models
from fedjax_het.metrics.late import before_last_fifth, late
from fedjax_het.modes import in_float32
from fedjax_het.parts import Algorithm


class Sweep(NamedTuple):
  """The result of `sweep`, for M members.

  Attributes:
    members: each member's seed (its index in `seeds` if these are keys) and settings.
    state: the final states, each leaf [M, ...].
    infos: every round of every member, NumPy arrays [M, T, S].
    history: round -> `Evaluation` on the test parts, NumPy arrays [M, K, ...] and [M, K]; NaN for a member
      that has diverged.
    metrics: for each member the final {"personalized", "global"} -> metric -> {mean, std, ...}; NaN likewise.
    picked: for each member the selected λ of its personalised models, as in `Result`.
    diverged: for each member where it diverged, see `Divergence`, or None.
    late: for each member model -> metric -> {count, min, max, std} over the last fifth, as in `Result`.
    models: (number of a member) -> its trained models, to predict with, see `Trained`.
    valid: for each member as `metrics`, on the validation parts, as in `Result`.
    attackers: for each member as `metrics`, over the dishonest clients, whom that leaves out; {} without any.
    dishonest: which clients of each member attack, bool [M, K]; None without an attack.
  """

  members: list[dict[str, Any]]
  state: State
  infos: RoundInfo
  history: dict[int, Evaluation]
  metrics: list[dict[str, dict[str, dict[str, float]]]]
  picked: list[Pick]
  diverged: list[Divergence | None]
  late: list[dict[str, dict[str, dict[str, Any]]]]
  models: Callable[[int], Trained] | None = None
  valid: Sequence[Metrics] = ()
  attackers: Sequence[Metrics] = ()
  dishonest: np.ndarray | None = None

  @property
  def left_out(self) -> list[dict[str, dict[str, int]]]:
    """For each member model -> metric -> number of clients that `metrics` leaves out, as in `Result`."""
    last = self.history[max(self.history)]
    models = {"personalized": {name: own[:, :, 0] for name, own in last.personalized.items()}}
    models |= {"global": dict(last.global_)} if last.global_ else {}
    return [
      {}
      if gone
      else left_out_of_models(
        jax.tree.map(lambda values: values[m], models),  # noqa: B023
        None if self.dishonest is None else self.dishonest[m],
      )
      for m, gone in enumerate(self.diverged)
    ]

  def __repr__(self) -> str:
    """Returns a line for each member with the headline's mean over the clients, without arrays."""
    lines = (f"\n  {own}: {in_short(metrics)}" for own, metrics in zip(self.members, self.metrics))
    return f"Sweep({len(self.members)} members{''.join(lines)}\nhas {', '.join(self._fields)})"


def grid_of(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
  """Returns every combination of a grid's values; the last name varies fastest.

  Raises:
    SettingError: a name has no values, or one of them twice.
  """
  for name, values in grid.items():
    if not len(values):
      raise SettingError(f"sweep.{name}", values, "has no values", "Give at least one.")
    check_once(f"sweep.{name}", values)
  return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]


def check_once(name: str, values: Sequence[float] | jax.Array) -> None:
  """Raises `SettingError` if a value is repeated, because its run would count twice."""
  plain = np.asarray(values).tolist()
  twice = next((value for i, value in enumerate(plain) if value in plain[:i]), None)
  if twice is not None:
    raise SettingError(name, plain, f"has {twice} twice", "Name each once.")


def keys_of(seeds: Any) -> tuple[list[int], jax.Array]:
  """Returns the members' seeds (their indices if keys are given), and their typed keys [n].

  Raises:
    SettingError: `seeds` is not a list of seeds or keys, is empty, or has an invalid or repeated seed.
  """
  given = listed("seeds", typed_keys(seeds), "seeds")
  if not given:
    raise SettingError("seeds", given, "has no values", "Give at least one.")
  own = [_plain(typed_keys(seed)) for seed in given]
  if any(map(_is_key, own)):
    return [*range(len(own))], jnp.stack([check_run_key(one) for one in own])
  for seed in own:
    check_seed("seeds", seed)
  check_once("seeds", own)
  return [int(seed) for seed in own], jnp.stack([jax.random.key(int(seed)) for seed in own])


def _plain(value: Any) -> Any:
  """Returns the number in an array of one number as a Python number, and any other value unchanged."""
  return value if _is_key(value) or not hasattr(value, "item") or np.size(value) != 1 else value.item()


def _is_key(value: Any) -> bool:
  return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


@in_float32()
def sweep(
  make_algorithm: Callable[..., Algorithm],
  grid: Mapping[str, Sequence[float]] | None = None,
  seeds: Sequence[int] | jax.Array = (0,),
  *,
  data: FederatedData | Sequence[FederatedData],
  rounds: int,
  cohort_size: int,
  eval_every: int | None = None,
  late_evaluations: int = 0,
  eval_clients: EvalClients = None,
  member_batch: int | None = None,
  client_batch: int | None = None,
  devices: int | None = None,
  device_rows: int | None = None,
  progress: bool | None = None,
) -> Sweep:
  """Runs every seed with every combination of a grid's values in one compiled program, over the devices.

  Each member computes what `fedjax_het.run` does with `jax.random.key(seed)`, the member's data, and its
  values of the grid as `settings`; on CPUs bit for bit, unless members' data differ in size: sums over a
  client's examples are then as long as the largest of all members', and may differ in the last place. If a
  member diverges the others continue.

  Args:
    make_algorithm: (**settings) -> algorithm; called with the numbers of each combination, to check them, and
      with a traced scalar for each setting of the grid.
    grid: name -> values of a continuous hyperparameter.
    seeds: integers, or keys [n]; the members' only source of randomness.
    data: the clients' data, one for all members, or one per seed with equal numbers of clients.
    rounds: T >= 1, number of rounds.
    cohort_size: S, clients sampled each round without replacement.
    eval_every: rounds between evaluations; by default only at the end.
    late_evaluations: judged rounds that the last fifth has at least; see `run`.
    eval_clients: whom evaluations before the end are of, see `run`. Members of one seed judge the same
      sample; the program evaluates for each member the clients of all members' samples.
    member_batch: number of members that a device runs side by side under `vmap`; by default one on a CPU,
      where stacked small products are slow for more than about a thousand parameters, and all elsewhere.
    client_batch: number of a member's clients that a device trains at once, with the same default.
    devices: number of devices to use; by default all, but no more than members.
    device_rows: examples that a device holds at once if not all fit; see `Members`.
    progress: whether standard error shows the progress; see `run`.

  Raises:
    SettingError: a setting is out of range, or the data have different shapes.
    NonFiniteLoss: every member has diverged; the message names members, rounds and clients.
    NoRoom: memory does not suffice.
  """
  grid = grid_as_lists(grid)
  make_algorithm = checked("make_algorithm", make_algorithm, grid)
  combinations = grid_of(grid)
  made = [make_algorithm(**settings) for settings in combinations]
  check_rounds(rounds, eval_every, *made, late_evaluations=late_evaluations)
  few = fewer_late_rounds(rounds, late_evaluations)
  names, keys = keys_of(seeds)
  which = [i for i in range(len(keys)) for _ in combinations]
  members = [{"seed": seed, **settings} for seed in names for settings in combinations]
  if not isinstance(data, FederatedData):
    data = listed("data", data, "the seeds' data sets, nor one")
    for one in data:
      check_data(one)
    if len(data) != len(keys):
      raise SettingError("data", len(data), f"not one for each of {len(keys)} seeds", "Give one for each.")
    each_seeds, data = data, [data[i] for i in which]
  else:
    each_seeds = [data]
  with in_words():
    engine = Members(
      make_algorithm, data, {name: [member[name] for member in members] for name in grid}, len(members),
      cohort_size, member_batch=member_batch, client_batch=client_batch, devices=devices,
      device_rows=device_rows, seeds=len(keys),
    )  # fmt: skip
  warn(made, each_seeds, few, cohort_size)
  tell_untested(each_seeds)
  infos: list[RoundInfo] = []
  history: dict[int, Evaluation] = {}
  diverged: list[Divergence | None] = [None] * len(members)
  judged: list[list[tuple[int, Any]]] = [[] for _ in members]  # evaluations of the last fifth of the run
  check_eval_clients(eval_clients, engine.num_clients)
  warn((), (), all_are_judged(eval_clients, rounds, eval_every, late_evaluations, engine.num_clients))
  with showing(engine, rounds, progress) as bar:
    start = engine.init(keys[np.asarray(which)])
    for chunk in chunks(engine, start, rounds, eval_every, late_evaluations, eval_clients):
      infos.append(chunk.infos)
      done = engine.rounds_done(chunk.state)
      diverged = [was or now for was, now in zip(diverged, chunk.diverged)]
      check_any_left([f"member {member}" for member in members], diverged)
      going = np.array([one is None for one in diverged])
      losses = over_arrived(chunk.infos, chunk.infos.clients.loss)[going]
      figures = {"train_loss": over_rounds(losses[~np.isnan(losses)])}
      if (evaluations := chunk.evaluations or chunk.late) is not None:
        last = [unknown(own) if gone else own for gone, own in zip(diverged, engine.split(evaluations))]
        for each, own in zip(judged, last) if done > before_last_fifth(rounds) else ():
          each.append((done, summarize(own)))
        history[done] = jax.tree.map(lambda *values: np.stack(values), *(own.test for own in last))
      bar.update(done, **figures, **({} if going.all() else {"diverged": int((~going).sum())}))
  final, picked = jax.tree.map(lambda leaf: leaf[: len(members)], chunk.state), [pick(own) for own in last]

  @functools.lru_cache(maxsize=1)
  def models(member: int) -> Trained:
    made = make_algorithm(**{name: members[member][name] for name in grid})
    own = data if isinstance(data, FederatedData) else data[member]
    state = jax.tree.map(lambda leaf: leaf[member], final)
    return trained(made, own, state, cohort_size, picked[member].column)

  return Sweep(
    members,
    final,
    jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *infos),
    history,
    [summarize(own) for own in last],
    picked,
    diverged,
    [late(own, rounds) for own in judged],
    models,
    [on_validation(own) for own in last],
    [on_attackers(own) for own in last],
    None if last[0].dishonest is None else np.stack([own.dishonest for own in last]),
  )
