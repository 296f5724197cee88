"""Promises that every algorithm keeps, to be tried on parts of one's own.

    import pytest
    import fedjax_het as fh
    from fedjax_het import testing

    @pytest.fixture(scope="module")
    def trial():
      return testing.Trial(fh.federated(my_part(my_model)), testing.federation((28, 28, 1), num_classes=10))

    @pytest.mark.parametrize("promise", testing.PROMISES, ids=lambda promise: promise.__name__)
    def test_my_part(promise, trial):
      promise(trial)

The clients of `federation` have unequal numbers of examples, some of them one. A broken promise raises an
`AssertionError` that says what differs, and one that this machine cannot try raises `unittest.SkipTest`,
which pytest shows as skipped.
"""

import copy
import dataclasses
import functools
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData, Part
from fedjax_het.engine.checks import check_cohort
from fedjax_het.engine.data_store import Resident
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.placement import place, replicated
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.shown import shown_validation
from fedjax_het.engine.state import State
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.parts import Algorithm, Context

PyTree = Any

SIZES = (20, 1, 7, 3, 12, 2, 9, 1, 5)
COHORT, ROUNDS = 5, 3
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # between two programs, which may round differently


def federation(
  shape: Sequence[int], *, num_classes: int, sizes: Sequence[int] = SIZES, seed: int = 0,
  order: Sequence[int] | None = None,
) -> FederatedData:  # fmt: skip
  """Makes clients with normally distributed examples around a centre for each class, the same in each call.

  Args:
    shape: the shape of an example, such as (28, 28, 1).
    num_classes: C; labels are classes 0 to C - 1.
    sizes: training examples of each client; every client has two more for validation and two for testing.
    seed: seed of the draws.
    order: the order in which the clients' rows lie in the arrays, which no figure may depend on.
  """
  centres = np.random.default_rng(seed).normal(size=(num_classes, *shape))
  xs, ys, starts, end = [], [], np.zeros((len(sizes), 3), np.int32), 0
  counts = np.array([(size, 2, 2) for size in sizes], np.int32)
  for i in range(len(sizes)) if order is None else order:
    draws = np.random.default_rng((seed, i))
    y = draws.integers(0, num_classes, counts[i].sum())
    xs.append(centres[y] + draws.normal(size=(len(y), *shape)))
    ys.append(y)
    starts[i] = end + np.cumsum([0, *counts[i][:2]])
    end += len(y)
  train, valid, test = (Part(jnp.asarray(s), jnp.asarray(n)) for s, n in zip(starts.T, counts.T))
  x, y = jnp.asarray(np.concatenate(xs), jnp.float32), jnp.asarray(np.concatenate(ys), jnp.int32)
  equal = len({*sizes}) == 1
  return FederatedData(
    x, y, train, valid, test, num_classes=num_classes, limits=(max(sizes), 2, 2), uniform=(equal, True, True)
  )


class Trial:
  """A short run of an algorithm, which the promises share.

  Args:
    algorithm: what is tried.
    data: the clients' data, such as those of `federation`.
    cohort_size: S; by default 5 clients, or all of them if the algorithm needs all.
    fewest: the number of devices that must give the bits of all devices; 2 for a model of Flax's own layers,
      for which one device may round otherwise than several (docs/devices.md).
  """

  def __init__(
    self, algorithm: Algorithm, data: FederatedData, cohort_size: int | None = None, fewest: int = 1
  ):
    self.algorithm, self.data, self.fewest = algorithm, data, fewest
    self.cohort_size = cohort_size or min(COHORT, data.num_clients)
    if cohort_size is None:
      try:
        check_cohort(algorithm, self.cohort_size, data.num_clients)
      except SettingError:
        self.cohort_size = data.num_clients

  @functools.cached_property
  def engine(self) -> Engine:
    """The engine on all devices of this process."""
    return self.other_engine()

  def other_engine(self, **settings: Any) -> Engine:
    """Returns an engine with settings such as `devices` or `client_batch`."""
    return Engine(self.algorithm, self.data, self.cohort_size, **settings)

  @functools.cached_property
  def first(self) -> State:
    """The state before the first round, on the host."""
    return on_host(self.engine.init(jax.random.key(0)))

  @functools.cached_property
  def last(self) -> tuple[State, RoundInfo]:
    """The state after `ROUNDS` rounds and their records, on the host."""
    return self.run(self.engine, self.first, ROUNDS)

  def run(self, engine: Engine, state: State, rounds: int) -> tuple[State, RoundInfo]:
    """Returns the state after so many more rounds, and their records, on the host."""
    try:
      state, infos = engine.advance(self.placed(state, engine), rounds)
    except NonFiniteLoss as error:
      raise AssertionError(str(error)) from error
    return on_host(state), infos

  def placed(self, state: State, engine: Engine) -> State:
    """Returns a state of the host on an engine's devices."""
    state = state._replace(key=jax.random.wrap_key_data(jnp.asarray(state.key)))
    return jax.device_put(state, engine.shardings(state))


def on_host(state: State) -> State:
  """Returns a state's copy as NumPy arrays, its key as raw data."""
  return jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))


def trains(trial: Trial) -> None:
  """Rounds change something, every number is finite, and every client whose upload arrives takes a step."""
  state, infos = trial.last
  _check_finite(state, infos.clients, infos.coefficients)
  before, after = (jax.tree.leaves((own.broadcast, own.clients)) for own in (trial.first, state))
  assert any(not np.array_equal(a, b) for a, b in zip(before, after)), "no round changes a number"
  steps = infos.clients.steps if isinstance(infos.present, tuple) else infos.clients.steps[infos.present]
  assert (steps >= 1).all(), "a client of a cohort takes no step"


def continues_exactly(trial: Trial) -> None:
  """A run that another process continues from a stored state has the bits of a whole one."""
  state, earlier = trial.run(trial.engine, trial.first, 1)
  state, later = trial.run(trial.engine, state, ROUNDS - 1)
  _check_same((state, jax.tree.map(lambda *parts: np.concatenate(parts), earlier, later)), trial.last)


def is_the_same_on_any_number_of_devices(trial: Trial) -> None:
  """All devices of this process give the bits of `Trial.fewest`; `fh.prepare_cpu(4)` makes four of a CPU."""
  if trial.engine.mesh.size <= trial.fewest:
    remedy = f"call fh.prepare_cpu({2 * trial.fewest}) before the first use of JAX"
    raise unittest.SkipTest(f"this process has {trial.engine.mesh.size} devices; {remedy}")
  state, _ = trial.run(trial.other_engine(devices=trial.fewest), trial.first, ROUNDS)
  _check_same(state, trial.last[0])


def trains_clients_independently(trial: Trial) -> None:
  """A client's round does not depend on who is trained beside it, but for rounding."""
  found = []
  for batch in (1, trial.cohort_size):
    state, infos = trial.run(trial.other_engine(client_batch=batch), trial.first, ROUNDS)
    found.append((state, infos.clients))
  chex.assert_trees_all_close(*found, **CLOSE)


def leaves_the_absent_alone(trial: Trial) -> None:
  """The states of clients that are not in the cohort keep their bits."""
  state, infos = trial.run(trial.engine, trial.first, 1)
  absent = np.setdiff1d(np.arange(trial.data.num_clients), infos.cohort)
  _check_same(*(jax.tree.map(lambda leaf: leaf[absent], own.clients) for own in (state, trial.first)))


def is_the_same_compiled_or_not(trial: Trial) -> None:
  """A client's update gives the same numbers compiled and operation by operation, but for rounding."""
  client, server = shown_validation(trial.algorithm.client, trial.data), trial.algorithm.server
  first = jax.tree.map(jnp.asarray, trial.first)
  own = jax.tree.map(lambda leaf: leaf[1], first.clients)
  received = server.received(server.sent(first.broadcast, first.server), jnp.int32(1))
  context = Context(jnp.int32(1), jnp.int32(0), trial.cohort_size, trial.data.num_clients)
  arguments = jax.random.key(1), received, own, trial.data.clients(jnp.int32(1)), context
  compiled = jax.jit(client.update)(*arguments)
  with jax.disable_jit():
    chex.assert_trees_all_close(client.update(*arguments), compiled, **CLOSE)


def stands_constant_examples(trial: Trial) -> None:
  """Examples that are all zeros give finite numbers, also in an evaluation."""
  engine, zeros = copy.copy(trial.engine), jax.tree.map(jnp.zeros_like, trial.data.x)
  engine.data = dataclasses.replace(trial.data, x=zeros)
  engine.examples = Resident(place(engine.data, replicated(engine.mesh)), trial.data.num_clients)
  state, infos = trial.run(engine, trial.first, ROUNDS)
  _check_finite(state, infos.clients, engine.evaluate(trial.placed(state, engine)))


def evaluates(trial: Trial) -> None:
  """Every client's metrics are finite, of the personalised models and of the global one."""
  judged = trial.engine.evaluate(trial.placed(trial.last[0], trial.engine))
  _check_finite(judged)
  assert all(len(values) == trial.data.num_clients for values in judged.personalized.values())


PROMISES: tuple[Callable[[Trial], None], ...] = (
  trains, continues_exactly, is_the_same_on_any_number_of_devices, trains_clients_independently,
  leaves_the_absent_alone, is_the_same_compiled_or_not, stands_constant_examples, evaluates,
)  # fmt: skip


def check(trial: Trial) -> None:
  """Tries all promises that this machine can try; raises the `AssertionError` of the first broken one."""
  for promise in PROMISES:
    try:
      promise(trial)
    except unittest.SkipTest:
      continue
    except AssertionError as error:
      error.add_note(f"The broken promise is {promise.__name__}: {promise.__doc__}")
      raise


def _check_same(found: PyTree, wanted: PyTree) -> None:
  chex.assert_trees_all_equal(found, wanted)


def _check_finite(*trees: PyTree) -> None:
  for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
    assert np.isfinite(np.asarray(leaf)).all(), f"{jax.tree_util.keystr(path)} is not finite: {leaf}"
