"""Random runs, each computed as plainly as can be and again spread over devices and memory: the same bits.

Methods come from the table, so a new one joins by itself: client parts take turns, and all else is drawn.
`benchmarks/checks/fuzz_devices.py` and `tests/border/test_devices.py` read this module, on eight CPU devices.
"""

import contextlib
import functools
import random
from typing import Any, NamedTuple

import jax
import numpy as np
from cases import maker

import fedjax_het as fh
from fedjax_het.engine.batched_runs import Members
from fedjax_het.errors import NoStates, SettingError
from fedjax_het.methods import CLIENTS, MIXINGS, bare, compositions

CLASSES = 3  # as the label counts in `cases` have
PLACES = 2  # of each run: most of the time is compiling, and the plain computation is shared


class Run(NamedTuple):
  """What is computed, and in what groups, both of which decide the bits.

  Attributes:
    seed: of the data and of the run.
    names: (client, mixing, server).
    shape: of an example.
    hidden: units of each of the model's two hidden layers.
    examples: how many each client has, before some are held out to test on.
    test_fraction: share of them.
    epochs, batch_size: of local training.
    cohort: S.
    rounds: how many.
    members: runs of a sweep; 0 for a run by itself.
    client_batch, member_batch: clients and members that are computed side by side; None: one.
  """

  seed: int
  names: tuple[str, str, str]
  shape: tuple[int, ...]
  hidden: int
  examples: tuple[int, ...]
  test_fraction: float
  epochs: int
  batch_size: int
  cohort: int
  rounds: int
  members: int
  client_batch: int | None
  member_batch: int | None


class Place(NamedTuple):
  """Where it is computed, which no bit may depend on.

  Attributes:
    devices: how many.
    device_rows: examples that a device holds at once; None for all.
    device_states: clients' states that the devices hold at once; None for all.
    chunks: the rounds, as they are cut.
  """

  devices: int
  device_rows: int | None
  device_states: int | None
  chunks: tuple[int, ...]


@functools.cache
def _composed() -> dict[str, list[tuple[str, str, str]]]:
  """Each client part's compositions."""
  return {name: [names for names in compositions() if names[0] == name] for name in CLIENTS}


def _cohorts(mixing: str, num_clients: int) -> list[int]:
  """The sizes of cohorts that a mixing takes of so many clients."""
  check, found = bare(MIXINGS[mixing]).needs.check_cohort, []
  for size in range(1, num_clients + 1):
    with contextlib.suppress(SettingError):
      if check is not None:
        check(size, num_clients)
      found.append(size)
  return found


def drawn(seed: int) -> tuple[Run, Place]:
  """What a seed stands for; `PLACES` seeds in a row have the same run in different places."""
  run = _drawn_run(seed // PLACES)
  return run, _drawn_place(random.Random(seed), run)


@functools.cache
def _drawn_run(seed: int) -> Run:
  rng = random.Random(seed)
  cohorts: list[int] = []
  while not cohorts:
    names = rng.choice(_composed()[[*CLIENTS][seed % len(CLIENTS)]])
    count = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12])
    cohorts = _cohorts(names[1], count)
  cohort = rng.choice([*cohorts, cohorts[-1]])
  kind, equal = rng.choice(["equal", "unequal", "unequal", "one large", "one example"]), rng.randint(2, 20)
  examples = [equal if kind == "equal" else rng.randint(1, 25) for _ in range(count)]
  if kind == "one large":
    examples[rng.randrange(count)] = rng.randint(40, 90)
  elif kind == "one example":
    examples[rng.randrange(count)] = 1
  members = rng.choice([0, 0, 0, rng.randint(1, 5)])
  return Run(
    seed,
    names,
    shape=rng.choice([(4,), (7,), (3, 3, 1), (8, 8, 1)]),
    hidden=rng.randint(2, 17),
    examples=tuple(examples),
    test_fraction=rng.choice([0.0, 0.2, 0.4]),
    epochs=rng.randint(1, 3),
    batch_size=rng.randint(1, 12),
    cohort=cohort,
    rounds=rng.randint(1, 4),
    members=members,
    client_batch=rng.choice([None, None, 1, 2, 3, 4, 5, cohort, cohort + 3]),
    member_batch=rng.choice([None, None, 2, 3, members + 1]) if members else None,
  )


def _drawn_place(rng: random.Random, run: Run) -> Place:
  devices, first = rng.choice([1, 2, 3, 4, 5, 8]), rng.randint(1, run.rounds)
  rows = _room(run, devices, rng) if rng.random() < 0.4 else None
  some = run.cohort < len(run.examples) and not run.members and rng.random() < 0.5
  states = rng.randint(run.cohort, len(run.examples) - 1) if some else None
  chunks = (first, run.rounds - first) if first < run.rounds else (first,)
  return Place(devices, rows, states, chunks)


def _room(run: Run, devices: int, rng: random.Random) -> int | None:
  """Rows that a device may hold, fewer than all; None where it has to hold all."""
  data, members = data_of(run), max(run.members, 1)
  visitors = min(run.cohort * members, len(run.examples))
  cohorts = int(np.sort(np.asarray(data.train.size))[-visitors:].sum())
  least, most = 2 * max(cohorts, data.limits[0] + data.limits[2]), len(data.y) - 1
  return rng.randint(least, most) if least <= most else None


def data_of(run: Run) -> fh.data.FederatedData:
  """The clients' data."""
  rng, total = np.random.default_rng(run.seed), sum(run.examples)
  x = rng.normal(size=(total, *run.shape)).astype(np.float32)
  parts = np.split(rng.permutation(total), np.cumsum(run.examples)[:-1])
  return fh.federate(
    x, rng.integers(0, CLASSES, total), parts, jax.random.key(run.seed), num_classes=CLASSES,
    test_fraction=run.test_fraction,
  )  # fmt: skip


def _left(run: Run, place: Place, alone: int | None = None) -> dict[str, Any]:
  """All that a run leaves, by name, on the host; of a sweep, what a run like its member `alone` does."""
  model = fh.models.two_nn(run.shape, CLASSES, hidden=run.hidden)
  make, numbers = maker(
    run.names, model, rounds=run.rounds, num_clients=len(run.examples), epochs=run.epochs,
    batch_size=run.batch_size,
  )  # fmt: skip
  count = max(run.members, 1)
  columns = {
    name: [value * (1 - 0.1 * m * (name == "local.lr")) for m in range(count)]
    for name, value in numbers.items()
  }
  data, key = data_of(run), jax.random.key(run.seed)
  keys = jax.random.split(key, count) if run.members else key[None]
  where: dict[str, Any] = dict(
    client_batch=run.client_batch, devices=place.devices, device_rows=place.device_rows
  )
  engine: Any
  if run.members and alone is None:
    engine = Members(make, data, columns, count, run.cohort, member_batch=run.member_batch, **where)
  else:
    keys = keys[alone or 0]
    own = {name: values[alone or 0] for name, values in columns.items()}
    try:
      engine = fh.Engine(make, data, run.cohort, settings=own, device_states=place.device_states, **where)
    except NoStates:
      engine = fh.Engine(make, data, run.cohort, settings=own, **where)

  def read(state: Any) -> Any:
    return jax.tree.map(np.array, engine.to_save(state)._replace(key=()))

  state, infos = engine.init(keys), []
  left = {"the first state": read(state)}
  for rounds in place.chunks:
    state, info = engine.advance(state, rounds)
    infos.append(info)
  axis = infos[0].cohort.ndim - 2
  left |= jax.tree.map(lambda *parts: np.concatenate(parts, axis), *infos)._asdict()
  left["metrics"] = engine.evaluate(state)
  return left | {f"the last {name}": own for name, own in read(state)._asdict().items()}


@functools.lru_cache(1)
def _plain(run: Run) -> dict[str, Any]:
  """On one device with all in its memory; of a sweep one by one, a run by itself like its last member."""
  last = run.members - 1 if run.members and run.member_batch is None else None
  return _left(run, Place(1, None, None, (run.rounds,)), last)


def differing(run: Run, place: Place) -> list[str]:
  """The names of what has other bits there; a NaN is the same as itself."""

  def bits(tree: Any) -> list[tuple[tuple[int, ...], bytes]]:
    return [(np.shape(leaf), np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]

  plain, spread = _plain(run), _left(run, place)
  if run.members and run.member_batch is None:
    spread = {name: jax.tree.map(lambda leaf: leaf[-1], own) for name, own in spread.items()}
  return [name for name in plain if bits(plain[name]) != bits(spread[name])]
