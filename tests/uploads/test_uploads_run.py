"""Upload transforms in runs: beside the plain uploads, as values of a sweep, on several devices."""

import functools

import chex
import jax
import numpy as np
import pytest
from cases import with_every
from small_parts import SIZES, federation, linear, mlp, scaffold, sgld, synthesis
from wide_parts import prototypes

import fedjax_het as fh
from fedjax_het import uploads
from fedjax_het.engine.engine import Engine

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


def ran(algorithm, lengths=(3,), sizes=SIZES, cohort=5, **where):
  engine = Engine(algorithm, federation(sizes), cohort, **where)
  state = engine.init(jax.random.key(5))
  for length in lengths:
    state, _ = engine.advance(state, length)
  return jax.tree.map(np.asarray, state._replace(key=()))


def seen_uploads(algorithm):
  """A round's cohort, uploads and broadcast, and the last state; the server keeps still."""
  seen = {}

  def update(key, state, broadcast, aggregate, feedback):
    jax.debug.callback(lambda *own: seen.update(own=own), feedback.cohort, feedback.uploads(), broadcast)
    return broadcast, state

  server = fh.ServerUpdate(lambda broadcast: (), update, takes_feedback=True)
  state = ran(algorithm._replace(server=server), (1,), devices=1)
  return *seen["own"], state


@pytest.mark.slow
def test_the_engine_sends_what_the_transform_makes_of_the_difference():
  """And the client keeps what is lost: fields of SCAFFOLD, signs, beside NumPy."""
  cohort, plain, base, _ = seen_uploads(fh.federated(scaffold(linear())))
  _, found, _, state = seen_uploads(fh.federated(scaffold(linear()), uploads=[uploads.sign()]))
  names = [
    *(("params", name) for name in ("bias", "kernel")),
    *(("even", name) for name in ("bias", "kernel")),
  ]
  for place, (field, name) in enumerate(names):
    sent, own, start = (np.asarray(getattr(m, field)["fc"][name], np.float64) for m in (found, plain, base))
    away = (own - start).reshape(len(own), -1)
    decoded = np.abs(away).mean(1, keepdims=True) * np.where(away < 0, -1, 1)
    np.testing.assert_allclose((sent - start).reshape(len(own), -1), decoded, atol=1e-6)
    errors = np.asarray(jax.tree.leaves(state.clients.transforms)[place]).reshape(len(SIZES), -1)
    np.testing.assert_allclose(errors[cohort], away - decoded, atol=1e-6)
    assert not np.delete(errors, cohort, axis=0).any()


def member_of_a_sweep(make, name, values, **settings):
  data = federation([8] * 6)
  swept = fh.sweep(make, {name: values}, data=data, rounds=3, cohort_size=4)
  return [jax.tree.map(lambda leaf: leaf[m], swept.state.broadcast) for m in range(len(values))]


@pytest.mark.slow
@pytest.mark.parametrize(
  "make, values",
  [(uploads.top_k, [1.0, 0.4]), (uploads.random_k, [1.0, 0.4]), (uploads.gaussian, [0.0, 0.1]),
   (uploads.clip, [1e30, 0.2])],
)  # fmt: skip
def test_numbers_are_values_of_a_sweep(make, values):
  """Where one of them does nothing, the member is the plain run to 1e-6; the others are as run alone."""
  client, data = fh.fedavg(mlp(), **LOCAL), federation([8] * 6)
  members = member_of_a_sweep(lambda number: fh.federated(client, uploads=[make(number)]), "number", values)
  for number, own in zip([None, values[1]], members):
    algorithm = fh.federated(client, uploads=[] if number is None else [make(number)])
    alone = fh.run(algorithm, data, rounds=3, cohort_size=4, key=jax.random.key(0))
    chex.assert_trees_all_close(own.params, alone.state.broadcast.params, rtol=1e-6, atol=1e-6)


def superfed():
  return fh.superfed_mm(mlp(), **LOCAL)


EIGHT = [uploads.quantize()]
ALGORITHMS = {
  "scaffold": lambda: fh.federated(scaffold(linear()), uploads=EIGHT),
  "superfed": lambda: fh.federated(superfed(), uploads=EIGHT),
  "superfed, feedback": lambda: fh.federated(superfed(), uploads=[uploads.top_k(0.3), uploads.quantize(4)]),
  "fedevg": lambda: fh.federated(
    fh.fedevg(mlp(), per_class=2, lam=0.0, bounded=False, epochs=1, batch_size=4),
    server=fh.server.sgld(3, bounded=False), uploads=EIGHT,
  ),
  "own sums": lambda: fh.federated(prototypes(linear()), uploads=EIGHT),
  "signals": lambda: fh.federated(synthesis(linear()), server=sgld(), uploads=EIGHT),
  "adaptive": lambda: fh.federated(
    fh.ditto(mlp(), **LOCAL), uploads=[uploads.clip(0.5, quantile=0.4), uploads.gaussian(), uploads.sign()]
  ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(ALGORITHMS, *list(ALGORITHMS)[::3]))
def test_the_bits_are_the_same_on_any_number_of_devices_and_in_any_chunks(name):
  """Also where a client is cut into two pieces, and where the host keeps its errors."""
  algorithm = ALGORITHMS[name]()
  one = ran(algorithm, devices=1)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one))
  held = 6 if jax.tree.leaves(one.clients) else None
  for devices, lengths, states in ((2, (1, 2), None), (4, (3,), None), (1, (2, 1), held)):
    found = ran(algorithm, lengths, devices=devices, device_states=states)
    chex.assert_trees_all_equal(one, found)


@functools.cache
def eight_bit_distance(name):
  """How far the models of a run with 8 bits are from those of the plain run, and how far these went."""
  plain = {"scaffold": lambda: fh.federated(scaffold(linear())), "superfed": lambda: fh.federated(superfed())}
  first, last, coded = ran(plain[name](), ()), ran(plain[name]()), ran(ALGORITHMS[name]())
  length = lambda a, b: np.sqrt(sum(((x - y) ** 2).sum() for x, y in zip(*map(jax.tree.leaves, (a, b)))))  # noqa: E731
  return length(coded.broadcast, last.broadcast), length(first.broadcast, last.broadcast)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "superfed"])
def test_eight_bits_stay_near_the_plain_run(name):
  away, went = eight_bit_distance(name)
  assert 0 < away < 0.02 * went


@pytest.mark.slow
def test_pooled_values_may_be_transformed_where_a_method_says_so():
  """Values of the weight 0, which are NaN here, are neither read nor spread."""
  client = prototypes(linear())
  client = client._replace(needs=fh.Needs(transformed=("params", "pooled")))
  plain, coded = ran(fh.federated(client)), ran(fh.federated(client, uploads=EIGHT))
  chex.assert_trees_all_close(plain.broadcast.pooled, coded.broadcast.pooled, atol=0.3)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(coded))
