"""Examples that stay on the host give the numbers of examples that lie on the devices."""

import chex
import jax
import numpy as np
import pytest
from small_parts import federation, mlp

import fedjax_het as fh
from fedjax_het.engine.cohort import CohortsAhead, cohort_of
from fedjax_het.engine.data_store import Streamed
from fedjax_het.engine.placement import client_mesh

SIZES = (9, 1, 7, 3, 12, 2, 9, 1, 10, 5, 4, 11) * 2  # the largest three have 35
TESTS = [(3 * i + 1) % 35 for i in range(len(SIZES))]  # up to three blocks of an evaluation


def engine(device_rows=None, devices=2):
  algorithm = fh.federated(fh.superfed(mlp(), start_round=2, lr=0.1, epochs=1, batch_size=4))
  return fh.Engine(algorithm, federation(SIZES, TESTS), 3, devices=devices, device_rows=device_rows)


@pytest.mark.slow
def test_the_numbers_are_those_of_resident_examples():
  """However the rounds are cut into chunks, and after an evaluation or a look back in between."""
  whole, streamed = engine(), engine(70)
  assert isinstance(streamed.examples, Streamed)
  expected, infos = whole.advance(whole.init(jax.random.key(3)), 11)
  state, parts = streamed.init(jax.random.key(3)), []
  for length in (1, 5, 2, 3):
    state, part = streamed.advance(state, length)
    parts.append(part)
    streamed.evaluate(state)
  chex.assert_trees_all_equal(jax.tree.map(lambda *p: np.concatenate(p), *parts), infos)
  chex.assert_trees_all_equal(*(s._replace(key=jax.random.key_data(s.key)) for s in (state, expected)))
  chex.assert_trees_all_equal(streamed.evaluate(state), whole.evaluate(expected))
  again, _ = streamed.advance(streamed.init(jax.random.key(3)), 11)
  chex.assert_trees_all_equal(again.broadcast, expected.broadcast)


@pytest.mark.slow
def test_windows_hold_their_cohorts_and_no_more():
  data, mesh = federation(SIZES), client_mesh(1)
  examples = Streamed([data], lambda some: some[0], mesh, CohortsAhead(mesh, len(SIZES), 3), 70)
  cohorts = jax.vmap(lambda round: cohort_of(jax.random.key(1), round, len(SIZES), 3))(np.arange(100))
  first, windows = 0, set()
  while first < 40:
    here, last = examples.rounds(jax.random.key(1), first)
    assert here.x.shape[0] == 35 and last > first
    windows.add((first, last))
    for round in range(first, last):
      for i in np.asarray(cohorts)[round]:
        rows = lambda d: np.asarray(d.x)[int(d.train.start[i]) :][: int(d.train.size[i])]  # noqa: E731
        np.testing.assert_array_equal(rows(here), rows(data))
    first = last
  assert len(windows) > 3  # or nothing was brought over


def test_too_little_room_is_named():
  with pytest.raises(fh.SettingError, match=r"device_rows = 69.*have 35 examples. Use 70 or more"):
    engine(69)


def test_shapes_are_those_of_a_window_and_copy_nothing(monkeypatch):
  examples, form = engine(70).examples, lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding)
  window, _ = examples.rounds(jax.random.key(1), 0)
  monkeypatch.setattr(examples, "_put", None)
  assert jax.tree.map(form, examples.shapes()) == jax.tree.map(form, window)
