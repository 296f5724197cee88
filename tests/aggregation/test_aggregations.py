"""Aggregations and robust mixings beside NumPy, and what they refuse."""

import chex
import jax
import jax.numpy as jnp
import liars
import numpy as np
import pytest
from cases import with_every
from mixing_feedback import feedback
from small_parts import federation, linear, scaffold
from wide_parts import prototypes

import fedjax_het as fh
from fedjax_het import aggregation, vectors
from fedjax_het.engine.averages import without_unread
from fedjax_het.engine.checks import remarks_of
from fedjax_het.engine.engine import Engine
from fedjax_het.parts import Message

S, LIARS = 11, 2
P = np.random.default_rng(5).dirichlet(np.full(S, 3.0))
PARTS = {  # name -> (the part, its oracle of (u [S, D], the broadcast [D]))
  "median": (aggregation.median(), lambda u, _: np.median(u, axis=0)),
  "trimmed_mean": (aggregation.trimmed_mean(0.28), lambda u, _: liars.trimmed_mean(u, 3)),
  "geometric_median": (aggregation.geometric_median(), lambda u, _: liars.geometric_median(u, P, 3, 1e-6)),
  "centered_clipping": (
    aggregation.centered_clipping(2.0, 2),
    lambda u, base: base + liars.centered_clipping(u - base, P, 0.0 * base, 2.0, 2),
  ),
  "bulyan": (aggregation.bulyan(), lambda u, _: liars.bulyan(u, 2)),
  "bulyan of one": (aggregation.bulyan(1), lambda u, _: liars.bulyan(u, 1)),
  "bulyan of none": (aggregation.bulyan(0), lambda u, _: u.mean(0)),
}
RULES, MIXED = [name for name in PARTS if "of" not in name], ["krum", "multi_krum", "norm_bound"]


def combined(part, uploads, broadcast, state=None, p=P, present=None):
  state = part.init(broadcast) if state is None else state
  present = jnp.ones(len(liars.flat(uploads)), bool) if present is None else jnp.asarray(present)
  p = jnp.asarray(p, jnp.float32)
  return jax.jit(part.combine)(jax.random.key(0), state, p, uploads, broadcast, present)


@pytest.mark.parametrize("name, count", [*zip(PARTS, [S] * 7), ("median", 12), ("trimmed_mean", 12)])
def test_it_is_the_formula(name, count):
  part, oracle = PARTS[name]
  uploads, broadcast = liars.cohort(count, LIARS)
  found, _ = combined(part, uploads, broadcast, p=np.full(count, 1 / count) if count != S else P)
  np.testing.assert_allclose(
    liars.one(found), oracle(liars.flat(uploads), liars.one(broadcast)), rtol=1e-5, atol=2e-6
  )


def some_of(count, m, bad=2):
  """(m rows of a cohort, which of them are present, bool [count]; the others' uploads are zeros)."""
  present = np.zeros(count, bool)
  present[np.random.default_rng(m).permutation(count)[:m]] = True
  uploads, broadcast = liars.cohort(count, bad)
  there = jax.tree.map(lambda leaf: leaf * vectors.over(jnp.asarray(present), leaf), uploads)
  return there, broadcast, present, liars.flat(uploads)[present]


ABSENT = {  # name -> (the part, its oracle of (u [m, D] of those that are present, p [m], the broadcast [D]))
  "median": (aggregation.median(), lambda u, p, _: np.median(u, axis=0)),
  "trimmed_mean": (aggregation.trimmed_mean(0.28), lambda u, p, _: liars.trimmed_mean(u, int(0.28 * len(u)))),
  "geometric_median": (aggregation.geometric_median(), lambda u, p, _: liars.geometric_median(u, p, 3, 1e-6)),
  "centered_clipping": (
    aggregation.centered_clipping(2.0, 2),
    lambda u, p, base: base + liars.centered_clipping(u - base, p, 0.0 * base, 2.0, 2),
  ),
  "bulyan": (aggregation.bulyan(), lambda u, p, _: liars.bulyan(u, max((len(u) - 3) // 4, 0))),
  "bulyan of one": (aggregation.bulyan(1), lambda u, p, _: liars.bulyan(u, int(len(u) >= 7))),
}


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_client_has_no_vote(name):
  """The rule on the rows that are present alone, by NumPy, for 11, 8, 5, 3, 2 and 1 of 11 clients."""
  part, oracle = ABSENT[name]
  for m in (11, 8, 5, 3, 2, 1):
    uploads, broadcast, present, u = some_of(S, m)
    p = np.where(present, P, 0.0) / P[present].sum()
    found, _ = combined(part, uploads, broadcast, p=p, present=present)
    expected = oracle(u, p[present], liars.one(broadcast))
    np.testing.assert_allclose(liars.one(found), expected, rtol=1e-5, atol=1e-5, err_msg=f"{m} of {S}")


@pytest.mark.parametrize("name", [name for name in ABSENT if name != "centered_clipping"])
def test_a_liar_is_one_among_those_that_arrive(name):
  """One NaN among 8 of 11 is among the largest and the farthest, not among the absent."""
  uploads, broadcast, present, u = some_of(S, 8, bad=0)
  sent = jax.tree.map(lambda leaf: leaf.at[np.flatnonzero(present)[-1]].set(jnp.nan), uploads)
  found, _ = combined(ABSENT[name][0], sent, broadcast, p=np.where(present, 1 / 8, 0.0), present=present)
  assert np.abs(liars.one(found) - u[:-1].mean(0)).max() < 0.6


def test_clipping_is_centred_at_the_last_aggregate():
  part, (uploads, broadcast) = aggregation.centered_clipping(2.0), liars.cohort()
  _, state = combined(part, uploads, broadcast)
  found, _ = combined(part, uploads, broadcast, state)
  u, base = liars.flat(uploads), liars.one(broadcast)
  v = liars.centered_clipping(u - base, P, 0.0, 2.0, 1)
  expected = base + liars.centered_clipping(u - base, P, v, 2.0, 1)
  np.testing.assert_allclose(liars.one(found), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", [name for name in PARTS if name != "bulyan of none"])
def test_whatever_few_liars_send_the_aggregate_is_near_the_honest_mean(name, value):
  uploads, broadcast = liars.cohort(liars=1)
  honest = liars.flat(uploads)[:-1].mean(0)
  uploads = jax.tree.map(lambda leaf: leaf.at[-1].set(value), uploads)
  found, state = combined(PARTS[name][0], uploads, broadcast)
  assert np.abs(liars.one(found) - honest).max() < 0.6
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_whole_numbers_are_rounded():
  uploads = Message({"w": jnp.ones((3, 2))}, stats=jnp.asarray([7, 8, 100]))
  broadcast = Message({"w": jnp.zeros(2)}, stats=jnp.int32(0))
  found, _ = combined(aggregation.trimmed_mean(0.0), uploads, broadcast)
  assert found.stats.dtype == jnp.int32 and int(found.stats) == 38


@pytest.mark.parametrize("share, count, number", [(0.29, 100, 29), (0.1, 10, 1), (0.2, 5, 1), (0.3, 9, 2)])
def test_a_share_of_a_cohort_is_a_whole_number(share, count, number):
  assert aggregation.coordinates.trimmed(share, count) == number
  assert jax.jit(aggregation.coordinates.trimmed, static_argnums=1)(share, count) == number


# Krum, multi-Krum and norm bounds, which are mixings.


def heard(uploads, broadcast, sizes=None):
  count = len(jax.tree.leaves(uploads)[0])
  sizes = np.arange(1, count + 1) if sizes is None else sizes
  return feedback(sizes=sizes)._replace(uploads=lambda: uploads, broadcast=broadcast)


@pytest.mark.parametrize("byzantine", [None, 0, 2])
@pytest.mark.parametrize("several", [False, True])
def test_krum_takes_the_nearest_to_their_neighbours(byzantine, several):
  uploads, broadcast = liars.cohort()
  part = (fh.mixing.multi_krum if several else fh.mixing.krum)(byzantine)
  f = (S - 3) // 2 if byzantine is None else byzantine
  p, _ = jax.jit(lambda: part.update((), heard(uploads, broadcast)))()
  kept = S - f if several else 1
  best = np.argsort(liars.krum_scores(liars.flat(uploads), S - f - 2))[:kept]
  expected = np.zeros(S)
  expected[best] = 1 / kept
  np.testing.assert_allclose(p, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_krum_among_those_that_arrive(several):
  """Also a NaN that arrives comes after all that are finite, and before the absent."""
  for m, byzantine in ((11, None), (8, 2), (6, 2), (5, None), (3, 1), (2, None), (1, None)):
    uploads, broadcast, present, u = some_of(S, m)
    part = (fh.mixing.multi_krum if several else fh.mixing.krum)(byzantine)
    most = max((m - 3) // 2, 0)
    f = most if byzantine is None else min(byzantine, most)
    given = heard(uploads, broadcast)._replace(present=jnp.asarray(present))
    p, _ = jax.jit(lambda given=given, part=part: part.update((), given))()
    kept, expected = m - f if several else 1, np.zeros(S)
    best = np.argsort(liars.krum_scores(u, max(m - f - 2, 0)), kind="stable")[:kept]
    expected[np.flatnonzero(present)[best]] = 1 / kept
    np.testing.assert_allclose(p, expected, rtol=1e-6, err_msg=f"{m} of {S}")
  sent = jax.tree.map(lambda leaf: leaf.at[np.flatnonzero(present)[0]].set(jnp.nan), uploads)
  p, _ = fh.mixing.krum().update((), heard(sent, broadcast)._replace(present=jnp.asarray(present)))
  assert p[np.flatnonzero(present)[0]] == 1  # it is alone


def test_distances_are_those_of_the_updates_however_far_the_models_are():
  uploads, _ = liars.cohort(size=1.0)
  u = liars.flat(uploads)
  far = jax.tree.map(lambda leaf: leaf + 100.0, uploads)
  found = np.asarray(vectors.squared_distances(far, jnp.ones(S, bool)))
  expected = ((u[:, None] - u[None]) ** 2).sum(-1)
  others = ~np.eye(S, dtype=bool)
  np.testing.assert_allclose(found[others], expected[others], rtol=1e-3)
  assert np.isinf(found[~others]).all()


def test_what_krum_leaves_out_is_not_read():
  uploads, broadcast = liars.cohort(liars=1)
  uploads = jax.tree.map(lambda leaf: leaf.at[-1].set(jnp.nan), uploads)
  p, _ = fh.mixing.multi_krum(1).update((), heard(uploads, broadcast))
  assert p[-1] == 0 and np.isclose(p.sum(), 1)
  read = without_unread(uploads, p)
  assert all(np.isfinite(leaf).all() and (leaf[-1] == 0).all() for leaf in jax.tree.leaves(read))


def test_no_update_is_longer_than_the_bound():
  uploads, broadcast = liars.cohort()
  uploads = uploads._replace(params=jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), uploads.params))
  part, given = fh.mixing.norm_bound(2.0), heard(uploads, broadcast)
  u, base = liars.flat(uploads.params), liars.one(broadcast.params)
  length = np.linalg.norm(u - base, axis=1)
  np.testing.assert_allclose(part.scale(given)[1:], np.minimum(1, 2 / length[1:]), rtol=1e-5)
  sizes = np.arange(1.0, S + 1) * np.isfinite(length)
  np.testing.assert_allclose(part.update((), given)[0], sizes / sizes.sum(), rtol=1e-6)


# Composition.

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


def fedavg():
  return fh.fedavg(linear(), **LOCAL)


def test_what_is_the_mean_is_left_out():
  plain = fh.federated(fedavg(), fh.mixing.uniform())
  for part in (aggregation.mean(), aggregation.trimmed_mean(0.0)):
    assert fh.federated(fedavg(), fh.mixing.uniform(), aggregation=part).aggregation == plain.aggregation
  other = fh.federated(fedavg(), aggregation=aggregation.trimmed_mean(0.0))
  assert other.aggregation.name == "trimmed_mean"  # without p, which static mixing has
  assert fh.federated(fedavg(), aggregation=aggregation.mean()).aggregation.combine is None


def test_a_part_that_ignores_the_mixing_says_so():
  data, part = federation([8] * 6), aggregation.median()
  (said,) = remarks_of(fh.federated(fedavg(), aggregation=part), data)
  assert said == "aggregation = median: every upload counts alike, whatever mixing says."
  assert not [*remarks_of(fh.federated(fedavg(), fh.mixing.uniform(), aggregation=part), data)]
  assert not [*remarks_of(fh.federated(fedavg(), aggregation=aggregation.geometric_median()), data)]


def sends_more():
  """A client that sends as `even` what it never received."""

  def update(key, broadcast, own, data, context):
    info = fh.Info(jnp.float32(0), jnp.int32(1))
    return Message(broadcast.params, even=jnp.float32(1)), own, info

  return fedavg()._replace(update=update, name="more")


REFUSED = {
  "own sums and median": lambda: fh.federated(prototypes(linear()), aggregation=aggregation.median()),
  "even and krum": lambda: fh.federated(scaffold(linear()), fh.mixing.krum()),
  "even and norm bound": lambda: fh.federated(scaffold(linear()), fh.mixing.norm_bound()),
  "even that is uploaded alone": lambda: Engine(
    fh.federated(sends_more(), fh.mixing.krum()), federation([8] * 6), 5
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_nobody_protects_is_refused(name):
  with pytest.raises(fh.SettingError, match=r"also sends (even|pooled), which would be averaged as it comes"):
    REFUSED[name]()


@pytest.mark.parametrize(
  "make, size, least",
  [
    (lambda **own: fh.federated(fedavg(), fh.mixing.krum(**own)), 6, 7),
    (lambda **own: fh.federated(fedavg(), fh.mixing.multi_krum(**own)), 6, 7),
    (lambda **own: fh.federated(fedavg(), aggregation=aggregation.bulyan(**own)), 10, 11),
  ],
)
def test_a_cohort_that_is_too_small_for_its_liars_is_refused(make, size, least):
  with pytest.raises(fh.SettingError, match=rf"cohort_size = {size}: .*Use {least} or more"):
    Engine(make(byzantine=2), federation([8] * 12), size)


def test_no_part_and_what_is_none_are_refused():
  with pytest.raises(fh.SettingError, match=r"aggregation = 'median': is not an Aggregation"):
    fh.federated(fedavg(), aggregation=aggregation.median)
  with pytest.raises(fh.SettingError, match="share"):
    aggregation.trimmed_mean(0.5)
  with pytest.raises(fh.SettingError, match="byzantine"):
    aggregation.bulyan(-1)


def trained(algorithm, devices, lengths=(3,), batch=None):
  engine = Engine(algorithm, federation([9, 2, 7, 3, 12, 2, 5, 4, 6]), 7, devices=devices, client_batch=batch)
  state = engine.init(jax.random.key(5))
  for length in lengths:
    state, _ = engine.advance(state, length)
  return jax.tree.map(np.asarray, state._replace(key=()))


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(RULES, "geometric_median", "centered_clipping"))
def test_a_run_has_the_same_bits_on_any_number_of_devices_and_in_any_chunks(name):
  part = aggregation.bulyan() if name == "bulyan" else PARTS[name][0]
  algorithm = fh.federated(scaffold(linear()), aggregation=part)
  one = trained(algorithm, 1)
  assert np.isfinite(liars.one(one.broadcast)).all()
  for devices, lengths in ((2, (3,)), (4, (1, 2))):
    chex.assert_trees_all_equal(one, trained(algorithm, devices, lengths))


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
def test_a_run_with_a_robust_mixing_has_the_same_bits_on_any_number_of_devices(name):
  algorithm = fh.federated(fedavg(), getattr(fh.mixing, name)())
  chex.assert_trees_all_equal(*(trained(algorithm, devices) for devices in (1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every([*RULES, *MIXED], "median", "bulyan", "multi_krum"))
def test_a_run_with_dropouts_is_finite_and_the_same_on_any_number_of_devices(name):
  """Most rounds have absentees, and some nobody, in which the aggregation's state stays too."""
  kind, module = ("mixing", fh.mixing) if name in MIXED else ("aggregation", aggregation)
  chosen = {kind: getattr(module, name)()}
  part = fh.participation.available(0.3, dropout=0.3)
  algorithm = fh.federated(fedavg(), participation=part, attack=fh.attacks.alie(0.2, None), **chosen)
  one = trained(algorithm, 1, (8,))
  assert np.isfinite(liars.one(one.broadcast)).all()
  chex.assert_trees_all_equal(one, trained(algorithm, 2, (3, 5)))


@pytest.mark.slow
def test_a_round_aggregates_what_the_cohort_sent():
  """The engine's round with the median, beside the uploads that the same clients send to a mean."""
  algorithm = fh.federated(fedavg(), fh.mixing.uniform())
  seen = {}

  def update(key, state, broadcast, aggregate, feedback):
    jax.debug.callback(lambda own: seen.update(own=own), feedback.uploads().params)
    return aggregate, state

  server = fh.ServerUpdate(lambda broadcast: (), update, takes_feedback=True)
  trained(algorithm._replace(server=server), 1, (1,))
  found = trained(algorithm._replace(aggregation=aggregation.median()), 1, (1,))
  np.testing.assert_allclose(
    liars.one(found.broadcast.params), np.median(liars.flat(seen["own"]), axis=0), rtol=1e-5, atol=1e-6
  )


@pytest.mark.slow
def test_the_share_of_a_trimmed_mean_is_a_value_of_a_sweep():
  """One of 0, which alone is the mean, is a member like the others."""
  data, shares, even = federation([8] * 6), [0.0, 0.2, 0.4], fh.mixing.uniform()
  make = lambda share: fh.federated(fedavg(), even, aggregation=aggregation.trimmed_mean(share))  # noqa: E731
  swept = fh.sweep(make, {"share": shares}, data=data, rounds=2, cohort_size=5)
  for member, share in enumerate(shares):
    alone = fh.run(make(share), data, rounds=2, cohort_size=5, key=jax.random.key(0))
    own = jax.tree.map(lambda leaf: leaf[member], swept.state.broadcast)
    chex.assert_trees_all_close(own, alone.state.broadcast, rtol=1e-5, atol=1e-6)
