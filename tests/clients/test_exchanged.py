"""Methods whose clients are sent other clients' models, against plain NumPy in float64."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_rounds import flat, rounds_of, row, sgd, stacked
from one_round import BATCH, CLIENT, LOCAL, LR, add, close, like, one_round
from small_parts import (
  CLASSES,
  SIZES,
  federation,
  float64,
  linear,
  linear_loss_and_gradient,
  mlp,
  one_client,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.apple import apple
from fedjax_het.clients.fedfomo import Sent, fedfomo
from fedjax_het.errors import SettingError

K = len(SIZES)


def fomo_by_hand(own, others, rows):
  """w, and the model that a client starts from."""
  loss = lambda params: linear_loss_and_gradient(params, *rows)[0]  # noqa: E731
  share = []
  for other in others:
    far = np.linalg.norm(flat(stacked([add(other, own, -1.0)])))
    share.append(max(0.0, loss(own) - loss(other)) / far if far else 0.0)
  share = np.array(share)
  share = share / share.sum() if share.any() else share
  moved = own
  for weight, other in zip(share, others):
    moved = add(moved, add(other, own, -1.0), weight)
  return share, moved


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_fedfomo_by_hand(valid, ragged):
  """Weights by the validation rows, or by the training rows of a client, or of all, that has no others."""
  data = ragged
  if valid:
    held = np.array(ragged.test.size)
    held[:4] = 0
    limits = ragged.limits[0], int(held.max()), ragged.limits[2]
    part = fh.data.container.Part(ragged.test.start, jnp.asarray(held))
    data = dataclasses.replace(ragged, valid=part, limits=limits, uniform=(False, False, False))
  part = fedfomo(linear(), SIZES, models=3, epsilon=0.5, epsilon_decay=0.1, **LOCAL)
  remarks = " ".join(part.needs.remarks(data))
  assert ("no client has validation rows" in remarks) != valid
  mine, values, taken = None, np.zeros((K, K)), 0
  for before, after, cohort, keys, _ in rounds_of(part, data, 7, 4):
    if mine is None:
      mine = [float64(row(before.broadcast.extra, 0))] * K
      last = [*mine]
    chosen = np.asarray(before.server.chosen)
    for i in range(K):
      assert len({*chosen[i]} - {i}) == 3
    after_round = {}
    for i in cohort:
      judged = rows_of(data, i, "valid" if valid and i >= 4 else "train")
      share, moved = fomo_by_hand(mine[i], [last[n] for n in chosen[i]], judged)
      values[i, chosen[i]] += share
      after_round[i] = sgd(moved, keys[i], data, i)
      taken += (share > 0).sum()
    for i, own in after_round.items():
      mine[i] = last[i] = own
    close(after.clients, stacked(mine), rtol=1e-4, atol=1e-5)
    close(after.server.models, stacked(last), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.server.values, values, rtol=1e-3, atol=1e-4)
  assert taken > 5


@pytest.mark.slow
def test_fedfomo_sends_the_models_with_the_largest_affinities():
  part = fedfomo(linear(), np.ones(8), models=3, epsilon=0.0)
  server = part.needs.brings["server"]
  first = part.init_broadcast(jax.random.key(0))
  state = server.init(first)
  values = jnp.asarray(np.random.default_rng(0).uniform(size=(8, 8)), jnp.float32)
  values = values.at[0].set(0.0)  # at random among equal ones
  own = row(first.extra, 0)
  sent = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), own)
  upload = fh.Message((), extra=Sent(sent, jnp.zeros((2, 3))))
  feedback = fh.Feedback(jnp.array([5, 2]), None, jnp.int32(0), None, lambda: upload, first)
  draws = []
  for seed in range(40):
    _, after = server.update(jax.random.key(seed), state._replace(values=values), first, None, feedback)
    chosen = np.asarray(after.chosen)
    for i in range(1, 8):
      wanted = np.argsort(-np.where(np.arange(8) == i, -1.0, values[i]))[:3]
      np.testing.assert_array_equal(chosen[i], wanted)
    draws.append(chosen[0])
  assert {*np.concatenate(draws).tolist()} == {*range(1, 8)}
  explored = fedfomo(linear(), np.ones(8), models=3, epsilon=1.0, epsilon_decay=0.25).needs.brings["server"]
  late = feedback._replace(round=jnp.int32(3))  # the next round's ε is 0
  for told, alike in ((feedback, False), (late, True)):
    _, after = explored.update(jax.random.key(0), state._replace(values=values), first, None, told)
    wanted = [np.argsort(-np.where(np.arange(8) == i, -1.0, values[i]))[:3] for i in range(1, 8)]
    assert np.array_equal(after.chosen[1:], wanted) == alike


@pytest.mark.slow
def test_the_first_round_of_fedfomo_is_local_training_bit_for_bit(ragged):
  part = fedfomo(mlp(), SIZES, **LOCAL)
  first, _, upload, after, info = one_round(part, ragged)
  alone = fh.fedavg(mlp(), **LOCAL)
  chex.assert_trees_all_equal(after, one_round(alone, ragged, fh.Message(row(first.extra, 0)))[2].params)
  assert float(info.figures["taken"]) == 0.0 and not upload.extra.weights.any()


def test_fedfomo_s_choice_of_models_is_said_where_there_are_too_few(ragged):
  part = fedfomo(linear(), (3, 4, 5))
  assert part.init_broadcast(jax.random.key(0)).extra["fc"]["bias"].shape == (2, CLASSES)
  assert "models = 5: a client is sent 2" in " ".join(part.needs.remarks(ragged))
  assert "as no client has validation rows" in " ".join(part.needs.remarks(ragged))
  some = dataclasses.replace(ragged, valid=ragged.valid._replace(size=ragged.valid.size.at[3].set(2)))
  assert f"as {K - 1} of the clients have no validation rows" in " ".join(part.needs.remarks(some))


@pytest.mark.slow
def test_a_diverged_client_does_not_reach_those_that_fedfomo_sends_its_model(ragged):
  part = fedfomo(mlp(), SIZES, models=2, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  sent = first._replace(extra=jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), first.extra))
  upload, after = one_round(part, ragged, sent)[2:4]
  assert not upload.extra.weights.any()
  chex.assert_trees_all_equal(after, one_round(part, ragged, first)[3])


@pytest.mark.slow
def test_apple_s_weights_follow_the_rate_of_the_rounds(ragged):
  """With a warmup over ten rounds too, they move at η_p · η_t / lr."""

  def moved(round, **settings):
    part = apple(linear(), SIZES, **LOCAL | dict(steps=1) | settings)
    first = part.init_broadcast(jax.random.key(0))
    sent, context = first._replace(extra=like(first.extra)), fh.Context(CLIENT, round, K, K)
    start = part.init(None, first, None, context)
    return part.update(jax.random.key(0), sent, start, one_client(ragged, CLIENT), context)[1] - start

  for round, share in ((0, 0.1), (4, 0.5), (20, 1.0)):
    np.testing.assert_allclose(moved(round, warmup=10.0), share * moved(round), rtol=1e-4, atol=1e-7)


def test_apple_s_hold_counts_the_rounds_of_the_run():
  apple(linear(), SIZES).needs.check_rounds(8)
  apple(linear(), SIZES, rounds=8).needs.check_rounds(8)
  with pytest.raises(SettingError, match=r"apple's rounds = 7: .* the run has rounds = 8"):
    apple(linear(), SIZES, rounds=7).needs.check_rounds(8)


@pytest.mark.slow
def test_apple_by_hand(ragged):
  """A client's round: both gradients at the mixture, and the weights held at n_j / n while t < L."""
  sizes = np.array(SIZES, np.float64)
  part = apple(linear(), SIZES, weights_lr=0.02, mu=0.4, until=0.5, rounds=8, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  cores = like(first.extra, 0.5)
  p0 = sizes / sizes.sum()
  for own, s in ((part, 0.5), (apple(linear(), SIZES, self_weight=0.0), 0.0)):
    start = own.init(None, first, None, fh.Context(CLIENT))
    np.testing.assert_allclose(start, s * np.eye(K)[CLIENT] + (1 - s) * p0, rtol=1e-6)
  start = p0 + 0.1 * np.random.default_rng(1).normal(size=K)
  for t, held in ((1, 0.4 * (1 + np.cos(np.pi / 4)) / 2), (5, 0.0)):
    context = fh.Context(CLIENT, t, K, K)
    upload, after, info = jax.jit(part.update)(
      jax.random.key(0), first._replace(extra=cores), jnp.asarray(start, jnp.float32),
      one_client(ragged, CLIENT), context,
    )  # fmt: skip
    each = [float64(row(cores, j)) for j in range(K)]
    p = start.copy()
    for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, LOCAL["epochs"]):
      mixture = jax.tree.map(lambda *own: sum(w * one for w, one in zip(p, own)), *each)
      gradient = linear_loss_and_gradient(mixture, x, y)[1]
      slopes = [sum((a * b).sum() for a, b in zip(*map(jax.tree.leaves, (gradient, own)))) for own in each]
      each[CLIENT] = add(each[CLIENT], gradient, -LR * p[CLIENT])
      p = p - 0.02 * (np.array(slopes) + held * (p - p0))
    close(upload.extra, each[CLIENT])
    np.testing.assert_allclose(after, p, rtol=1e-4, atol=1e-6)
    assert float(info.figures["self_weight"]) == pytest.approx(p[CLIENT], rel=1e-4)
    model = part.personalize(first._replace(extra=cores), after, None, context, 0.0)
    close(model, jax.tree.map(lambda leaf: np.tensordot(p, np.float64(leaf), 1), cores), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_apple_s_server_broadcasts_the_cores_and_one_client_is_fedavg(ragged):
  part = apple(mlp(), SIZES, **LOCAL)
  for before, after, *_ in rounds_of(part, ragged, K, 2):
    moved = jax.tree.map(lambda a, b: np.abs(a - b).reshape(K, -1).max(1), before.broadcast, after.broadcast)
    assert (jax.tree.leaves(moved)[0] > 0).all()
  one = federation((30,))
  run = lambda part: fh.run(fh.federated(part), one, rounds=3, cohort_size=1, key=jax.random.key(0)).state  # noqa: E731
  found = run(apple(mlp(), (30,), weights_lr=0.0, **LOCAL)).broadcast.extra
  wanted = run(fh.fedavg(mlp(), **LOCAL)).broadcast.params
  chex.assert_trees_all_close(row(found, 0), wanted, rtol=1e-5, atol=1e-6)
