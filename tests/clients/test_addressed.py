"""Methods whose server looks at single uploads and makes each client's own message, against plain NumPy.

The oracles walk through the same mini-batches in float64, with gradients written by hand for softmax
regression, and compute what the server makes of the uploads again, apart from the library.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from many_rounds import flat, rounds_of, row, sgd, stacked
from one_round import LOCAL, add, close
from small_parts import CLASSES, SIZES, federation, float64, linear, mlp

import fedjax_het as fh
from fedjax_het.clients.apple import apple
from fedjax_het.clients.cfl import cfl, two_groups
from fedjax_het.clients.fedamp import fedamp, heurfedamp, squared_distances
from fedjax_het.clients.fedcac import critical, fedcac, friendship
from fedjax_het.clients.fedfomo import fedfomo
from fedjax_het.clients.fedpac import fedpac
from fedjax_het.clients.local_only import local_only
from fedjax_het.engine.capacity import size as bytes_of
from fedjax_het.errors import SettingError
from fedjax_het.experiment.traffic import traffic

K = len(SIZES)


def attention_by_hand(models, alpha, sigma):
  rows = flat(models)
  far = ((rows[:, None] - rows) ** 2).sum(-1)
  count = len(rows)
  share = alpha / (count - 1) * np.exp(-far / (sigma * far.sum() / (count * (count - 1))))
  np.fill_diagonal(share, 0.0)
  return share + np.diag(1.0 - share.sum(1))


def cosines_by_hand(models, sigma, own):
  rows = flat(models)
  unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  share = np.exp(sigma * (unit @ unit.T))
  np.fill_diagonal(share, 0.0)
  return (1 - own) * share / share.sum(1, keepdims=True) + own * np.eye(len(rows))


AMP = {
  "fedamp": (
    functools.partial(fedamp, lam=0.3, alpha=0.8, sigma=0.7),
    functools.partial(attention_by_hand, alpha=0.8, sigma=0.7),
  ),
  "heurfedamp": (
    functools.partial(heurfedamp, lam=0.3, sigma=4.0, self_weight=0.25),
    functools.partial(cosines_by_hand, sigma=4.0, own=0.25),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AMP)
def test_fedamp_by_hand(name, ragged):
  """Two rounds of clients that train from their own averages; who is absent keeps what it is sent."""
  make, attention = AMP[name]
  sent = mine = None
  for before, after, cohort, keys, infos in rounds_of(make(linear(), SIZES, **LOCAL), ragged, 5, 2):
    if sent is None:
      sent = [float64(before.broadcast.params)] * K
      mine = [*sent]
    for i in cohort:
      near = lambda gradient, params, i=i: add(gradient, add(params, sent[i], -1.0), 0.3)  # noqa: E731
      mine[i] = sgd(sent[i], keys[i], ragged, i, near)
    trained = [mine[i] for i in cohort]
    weights = attention(stacked(trained))
    for place, i in enumerate(cohort):
      sent[i] = jax.tree.map(lambda *own: sum(w * one for w, one in zip(weights[place], own)), *trained)
    close(after.clients, stacked(mine))
    close(after.server.sent[0], stacked(sent))
    np.testing.assert_allclose(
      np.asarray(after.server.weights)[np.ix_(cohort, cohort)], weights, rtol=2e-4, atol=1e-6
    )
    np.testing.assert_allclose(after.server.weights.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(infos.figures["others"], [1 - np.diag(weights).mean()], rtol=1e-4)
    assert 0.1 < float(infos.figures["others"][0]) < 0.9


def test_fedamp_s_attention_is_not_all_on_itself():
  """Nor with models as large as networks, for which distances with a fixed σ are."""
  models = {"w": jax.random.normal(jax.random.key(0), (6, 40_000))}
  far = squared_distances(models)
  assert 5e4 < float(far[0, 1]) < 2e5 and np.isinf(np.diag(far)).all()
  apart = {"w": np.float64(models["w"])[:, None] - np.float64(models["w"])}
  wanted = (apart["w"] ** 2).sum(-1)
  off = ~np.eye(6, dtype=bool)
  np.testing.assert_allclose(np.asarray(far)[off], wanted[off], rtol=1e-5)

  def others(**settings):
    server = fedamp(linear(), SIZES, **settings).needs.brings["server"]
    feedback = fh.Feedback(jnp.arange(6), None, 0, None, lambda: fh.Message(models), fh.Message(()))
    first = fh.Message({"w": models["w"][0]})
    _, state = server.update(None, server.init(first), first, None, feedback)
    return float(server.figures(state, feedback)["others"])

  assert 0.1 < others() < 0.5 and others(relative=False) == 0.0
  assert others(relative=False, sigma=1e5, alpha=0.9) == pytest.approx(5 * 9e-6 * np.exp(-0.8), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
  "off", [lambda m: fedamp(m, SIZES, alpha=0.0, lam=0.0, **LOCAL),
          lambda m: heurfedamp(m, SIZES, self_weight=1.0, lam=0.0, **LOCAL)],
)  # fmt: skip
def test_without_attention_it_is_local_training_bit_for_bit(off, ragged):
  run = lambda part: fh.run(fh.federated(part), ragged, rounds=3, cohort_size=5, key=jax.random.key(0))  # noqa: E731
  found = run(off(mlp())).state
  start = found.broadcast.params  # which stays; local training starts from another draw
  same = local_only(mlp()._replace(init=lambda key: start), **LOCAL)
  chex.assert_trees_all_equal(found.clients, run(same).state.clients)


@pytest.mark.slow
def test_two_groups_are_complete_linkage_s():
  from sklearn.cluster import AgglomerativeClustering

  rng = np.random.default_rng(0)
  split = jax.jit(two_groups)
  for _ in range(20):
    rows = rng.normal(size=(9, 3))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near, members = unit @ unit.T, rng.permutation(9) < 6
    found = np.asarray(split(jnp.asarray(near, jnp.float32), jnp.asarray(members)))
    inside = np.flatnonzero(members)
    fitted = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    labels = fitted.fit_predict(1 - near[np.ix_(inside, inside)])
    np.testing.assert_array_equal(found[inside], labels == labels[0])
    assert not found[~members].any()


def planted(sizes=(20, 9, 13, 20, 6, 17, 20, 9, 13, 20)):
  """Clients, of which the second half has its labels turned by one."""
  data, turned = federation(sizes), 0
  y = np.array(data.y)
  for i in range(len(sizes) // 2, len(sizes)):
    for part in (data.train, data.test):
      rows = slice(int(part.start[i]), int(part.start[i] + part.size[i]))
      y[rows], turned = (y[rows] + 1) % CLASSES, turned + 1
  return dataclasses.replace(data, y=jnp.asarray(y)), sizes


@pytest.mark.slow
def test_cfl_recovers_planted_clusters_and_averages_within_them():
  """The oracle averages by the clusters that the engine says, which are the planted ones after the split."""
  data, sizes = planted()
  part = cfl(linear(), sizes, eps1=1.0, eps2=0.5, warmup_rounds=3, clusters=3, **LOCAL)
  models, counts = None, []
  for before, after, cohort, keys, infos in rounds_of(part, data, len(sizes), 8):
    own = np.asarray(before.server.clusters)
    if models is None:
      models = {0: float64(before.broadcast.params)}
    changes = {i: add(sgd(models[own[i]], keys[i], data, i), models[own[i]], -1.0) for i in cohort}
    now, was = np.asarray(after.server.clusters), models
    models = {}
    for m in np.unique(now):
      inside = np.flatnonzero(now == m)
      weights = np.array(sizes)[inside] / np.array(sizes)[inside].sum()
      step = jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(weights, leaves)),
                          *[changes[i] for i in inside])  # fmt: skip
      models[m] = add(was[own[inside[0]]], step)
      close(row(after.server.models[0], m), models[m], rtol=1e-4, atol=1e-5)
    lengths = {i: np.linalg.norm(flat(stacked([changes[i]]))) for i in cohort}
    assert infos.figures["largest_update"][0] == pytest.approx(max(lengths.values()), rel=1e-4)
    counts.append(int(infos.figures["clusters"][0]))
    np.testing.assert_array_equal(infos.figures["mean_update"], after.server.mean)
    assert after.server.number == counts[-1] == len(np.unique(now))
  assert counts[:3] == [1, 1, 1] and counts[-1] >= 2
  assert not {*now[:5]} & {*now[5:]}, now
  groups = np.asarray(part.studies.groups(None, after.server, ()))
  np.testing.assert_array_equal(groups[:, : counts[-1]], np.eye(3)[now][:, : counts[-1]])
  assert np.isnan(groups[:, counts[-1] :]).all() and groups.shape == (len(sizes), 3)
  before = part.studies.groups(
    None, part.needs.brings["server"].init(part.init_broadcast(jax.random.key(0))), ()
  )
  assert (before[:, 0] == 1).all() and np.isnan(before[:, 1:]).all()


@pytest.mark.slow
def test_cfl_that_never_splits_is_fedavg(ragged):
  run = lambda part: fh.run(fh.federated(part), ragged, rounds=3, cohort_size=K, key=jax.random.key(0))  # noqa: E731
  found = run(cfl(mlp(), SIZES, eps1=0.0, warmup_rounds=0, **LOCAL)).state
  wanted = run(fh.fedavg(mlp(), **LOCAL)).state.broadcast.params
  chex.assert_trees_all_close(row(found.server.models[0], 0), wanted, rtol=1e-5, atol=1e-6)
  assert found.server.number == 1
  apart = run(cfl(mlp(), SIZES, eps1=99.0, eps2=0.0, warmup_rounds=1, clusters=2, **LOCAL)).state
  assert apart.server.number == 2 and not np.allclose(*apart.server.models[0]["fc1"]["kernel"])


def test_critical_numbers_are_the_most_sensitive_ones():
  new, old = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
  found = np.asarray(critical(jnp.asarray(new), jnp.asarray(old), 0.4))
  score = np.abs(new * (new - old))
  assert found.sum() == 6 and score[found == 1].min() > score[found == 0].max()
  assert not critical(jnp.asarray(new), jnp.asarray(new), 0.4).any()
  assert not critical(jnp.asarray(new), jnp.asarray(old), 0.0).any()


def friends_by_hand(masks, t, beta):
  rows, count = flat(masks), len(flat(masks))
  overlap = np.array([[1 - np.abs(a - b).sum() / (2 * a.sum()) for b in rows] for a in rows])
  off = ~np.eye(count, dtype=bool)
  least = overlap[off].mean() + (t + 1) / beta * (overlap[off].max() - overlap[off].mean())
  return (overlap >= least) | ~off


@pytest.mark.slow
def test_fedcac_by_hand(ragged):
  """Three rounds of training, of masks, of friends, and of what each client starts from."""
  part = fedcac(linear(), SIZES, tau=0.5, beta=4.0, **LOCAL)
  starts, counts, sizes = None, set(), np.array(SIZES, np.float64)
  for before, after, _, keys, infos in rounds_of(part, ragged, K, 3):
    t = int(before.round)
    if starts is None:
      starts = [float64(before.broadcast.params)] * K
    trained = [sgd(starts[i], keys[i], ragged, i) for i in range(K)]
    masks = []
    for new, old in zip(trained, starts):
      mask = {}
      for name in new["fc"]:
        score = np.abs(new["fc"][name] * (new["fc"][name] - old["fc"][name]))
        count = int(0.5 * score.size)
        mask[name] = (score >= np.sort(score.ravel())[-count]).astype(float)
      masks.append({"fc": mask})
    near = friends_by_hand(stacked(masks), t, 4.0)
    counts |= {*near.sum(1)}
    mean = jax.tree.map(lambda leaf: np.tensordot(sizes / sizes.sum(), leaf, 1), stacked(trained))
    starts = []
    for i in range(K):
      own = jax.tree.map(lambda leaf: leaf[near[i]].mean(0), stacked(trained))
      starts.append(jax.tree.map(lambda m, a, b: m * a + (1 - m) * b, masks[i], own, mean))
    close(after.broadcast.params, mean)
    close(after.server.sent, stacked(starts))
    np.testing.assert_allclose(infos.figures["friends"], [near.sum(1).mean() - 1], rtol=1e-5)
  assert len(counts) > 3


def test_friends_are_those_of_the_largest_overlap_at_last():
  masks = {"w": jnp.asarray(np.random.default_rng(2).integers(0, 2, (6, 40)), jnp.int8)}
  at_last = np.asarray(friendship(masks, jnp.int32(9), 10.0))
  np.testing.assert_array_equal(at_last, friends_by_hand(masks, 9, 10.0))
  assert at_last.sum() in (7, 8) and (np.asarray(friendship(masks, jnp.int32(50), 10.0)) == np.eye(6)).all()


@pytest.mark.slow
def test_fedcac_without_critical_parameters_is_fedavg(ragged):
  run = lambda part: fh.run(fh.federated(part), ragged, rounds=3, cohort_size=K, key=jax.random.key(0)).state  # noqa: E731
  found, wanted = run(fedcac(mlp(), SIZES, tau=0.0, **LOCAL)), run(fh.fedavg(mlp(), **LOCAL))
  chex.assert_trees_all_close(found.broadcast.params, wanted.broadcast.params, rtol=1e-5, atol=1e-6)
  chex.assert_trees_all_equal(row(found.server.sent, 4), found.broadcast.params)


def test_bytes_are_those_that_are_sent_to_a_client(ragged):
  size = bytes_of(jax.eval_shape(mlp().init, jax.random.key(0)))
  sent = lambda part: traffic(fh.federated(part), ragged, 1)  # noqa: E731
  assert sent(fedamp(mlp(), SIZES)) == {"up": size, "down": size}
  assert sent(cfl(mlp(), SIZES)) == {"up": size, "down": size}
  assert sent(fedfomo(mlp(), SIZES, models=4)) == {"up": size + 16, "down": 4 * size}
  assert sent(apple(mlp(), SIZES)) == {"up": size, "down": K * size}
  assert sent(fedcac(mlp(), SIZES)) == {"up": size + -(-size // 32), "down": size}


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: fedamp(mlp(), 10), "sizes = 10: is no list of the clients' numbers"),
    (lambda: apple(mlp()._replace(stats={"m": jnp.zeros(1)}), SIZES), "has running statistics, which a mix"),
    (lambda: fh.federated(fedamp(mlp(), SIZES), aggregation=fh.aggregation.median()), "fedamp looks at each"),
    (lambda: fh.federated(fedamp(mlp(), SIZES), fh.mixing.afl()), "fedamp brings a mixing part"),
    (lambda: fh.federated(cfl(mlp(), SIZES), server=fh.server.adam()), "cfl brings a server part"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()


def test_all_clients_in_every_round_or_an_error(ragged):
  with pytest.raises(SettingError, match="cohort_size = 5: cfl needs all 12 clients"):
    fh.Engine(fh.federated(cfl(mlp(), SIZES)), ragged, 5)


def test_a_run_that_ends_before_the_first_split_says_so(ragged):
  told = lambda rounds: [*cfl(mlp(), SIZES, rounds=rounds).needs.remarks(ragged)]  # noqa: E731
  assert told(15) == ["warmup_rounds = 20: the run ends after 15, so that no cluster is split."]
  assert told(21) == told(None) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fedfomo compares")
@pytest.mark.parametrize(
  "make", with_every([fedamp, heurfedamp, fedfomo, apple, fedcac, fedpac], fedamp, fedfomo)
)
def test_who_counts_for_whom_is_offered_to_the_study_of_graphs(make, ragged):
  part = make(mlp(), SIZES, **LOCAL)
  run = fh.run(fh.federated(part), ragged, rounds=2, cohort_size=7, key=jax.random.key(0))
  graph = np.asarray(part.studies.graph(run.state.broadcast, run.state.server, run.state.clients))
  np.testing.assert_allclose(graph.sum(1), 1.0, rtol=1e-5)
  assert graph.shape == (K, K) and (graph >= 0).all() and (np.diag(graph) < 1).sum() > 2
