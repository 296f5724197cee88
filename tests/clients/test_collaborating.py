"""FedPAC, FedAS and pFedHN: what clients say of their features, and what the server makes of it, by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_rounds import flat, rounds_of, stacked
from one_round import BATCH, CLIENT, LOCAL, LR, add, close, like, one_round
from scipy.optimize import minimize
from small_parts import CLASSES, SIZES, federation, float64, linear, mlp, one_client, rows_of, walk

import fedjax_het as fh
from fedjax_het.clients.fedas import ALIGN, fedas
from fedjax_het.clients.fedpac import Described, fedpac, weights_of_heads
from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.fedproto import Prototypes
from fedjax_het.clients.fedrep import fedrep
from fedjax_het.clients.pfedhn import Hyper, drawn, pfedhn
from fedjax_het.clients.sgd import LATER
from fedjax_het.engine.capacity import size as bytes_of
from fedjax_het.errors import SettingError
from fedjax_het.experiment.traffic import traffic

K = len(SIZES)


def features(params, x):
  return jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])


def cross_entropy(params, x, y):
  f = features(params, x) @ params["fc2"]["kernel"] + params["fc2"]["bias"]
  return (jax.nn.logsumexp(f, axis=1) - f[jnp.arange(len(y)), y]).mean()


def means_by_hand(params, data, i):
  """(sums of features by class, counts, mean squared length), float64."""
  x, y = rows_of(data, i)
  z = np.asarray(features(float64(params), x), np.float64)
  own = np.eye(CLASSES)[y]
  return own.T @ z, own.sum(0), (z**2).sum(1).mean()


def descend(params, layer, loss, key, data, epochs, rate, batch=BATCH):
  """SGD on one layer by a loss written here."""
  slope = jax.jit(jax.grad(loss))
  for x, y, _ in walk(key, data, CLIENT, batch, epochs):
    params = params | {layer: add(params, slope(params, jnp.asarray(x, jnp.float32), y), -rate)[layer]}
  return params


@pytest.mark.slow
@pytest.mark.parametrize("known", [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_fedpac_s_round_of_a_client_by_hand(known, ragged):
  """Both phases, the pull to shared or own means, and what is said of the features before and after."""
  part = fedpac(mlp(), SIZES, lam=0.7, head_passes=2, head_lr=0.3, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  shared = np.random.default_rng(0).normal(size=(CLASSES, 5))
  sent = first._replace(
    params=like(first.params), pooled=Prototypes(jnp.asarray(shared, jnp.float32), jnp.array(known))
  )
  _, _, upload, _, info = one_round(part, ragged, sent)
  sums, counts, squares = means_by_hand(sent.params, ragged, CLIENT)
  n = SIZES[CLIENT]
  h = sums / n
  np.testing.assert_allclose(upload.extra.means, h, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(upload.extra.variance, (squares - (h**2).sum()) / n, rtol=1e-4)
  target = np.where(np.array(known)[:, None] > 0, shared, sums / np.maximum(counts, 1)[:, None])

  def pulled(params, x, y):
    away = jnp.square(features(params, x) - jnp.asarray(target, jnp.float32)[y]).mean()
    return cross_entropy(params, x, y) + 0.7 * max(known) * away

  key = jax.random.key(0)
  params = descend(sent.params, "fc2", cross_entropy, key, ragged, 2, 0.3)
  params = descend(params, "fc1", pulled, jax.random.fold_in(key, LATER), ragged, LOCAL["epochs"], LR)
  chex.assert_trees_all_close(upload.params, params, rtol=1e-4, atol=1e-5)
  after, counts, _ = means_by_hand(upload.params, ragged, CLIENT)
  there = counts > 0
  np.testing.assert_allclose(
    upload.pooled.values.mean[there], (after / np.maximum(counts, 1)[:, None])[there], rtol=1e-3, atol=1e-5
  )
  np.testing.assert_array_equal(upload.pooled.weights, counts)
  assert (np.asarray(upload.pooled.values.known) == 1).all()
  assert int(info.steps) == (2 + LOCAL["epochs"]) * -(-n // BATCH)


@pytest.mark.slow
def test_heads_are_mixed_by_the_program_s_minimum():
  """Against SciPy's; weights below 1e-3 are 0."""
  rng, count = np.random.default_rng(0), 6
  means = rng.normal(size=(count, CLASSES, 4))
  means[1] = means[0] + 0.01  # alike
  variance = rng.uniform(0.01, 0.5, size=count)
  found = np.asarray(weights_of_heads(Described(*(jnp.asarray(a, jnp.float32) for a in (means, variance)))))
  for i in range(count):
    apart = (means[i] - means).reshape(count, -1)
    matrix = apart @ apart.T + np.diag(variance)
    best = minimize(
      lambda p: p @ matrix @ p, np.full(count, 1 / count), jac=lambda p: 2 * matrix @ p, method="SLSQP",
      bounds=[(0, 1)] * count, constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
      options={"ftol": 1e-14, "maxiter": 500},
    ).x  # fmt: skip
    wanted = np.where(best > 1e-3, best, 0.0)
    np.testing.assert_allclose(found[i], wanted / wanted.sum(), atol=2e-3)
    assert ((found[i] == 0) | (found[i] > 1e-3)).all()
  assert found[0, 1] > 0.1 and (found == 0).any()


@pytest.mark.slow
def test_fedpac_s_server_gives_each_client_its_mixture_of_heads(ragged):
  part, heads = fedpac(mlp(), SIZES, **LOCAL), None
  for before, after, cohort, keys, infos in rounds_of(part, ragged, 5, 2):
    heads = [float64(before.broadcast.params)["fc2"]] * K if heads is None else heads
    uploads = []
    for i in cohort:
      server = part.needs.brings["server"]
      sent = server.received(server.sent(before.broadcast, before.server), i)
      close(sent.params["fc2"], heads[i], rtol=1e-4, atol=1e-5)
      np.testing.assert_array_equal(sent.params["fc1"]["bias"], before.broadcast.params["fc1"]["bias"])
      uploads.append(
        jax.jit(part.update)(keys[i], sent, (), one_client(ragged, i), fh.Context(i, before.round, 5, K))[0]
      )
    weights = np.asarray(
      weights_of_heads(Described(*stacked([list(own.extra) for own in uploads]))), np.float64
    )
    for place, i in enumerate(cohort):
      each = [float64(own.params["fc2"]) for own in uploads]
      heads[i] = jax.tree.map(lambda *own: sum(w * a for w, a in zip(weights[place], own)), *each)
    close(after.server.sent["fc2"], stacked(heads), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(infos.figures["own_head"], [np.diag(weights).mean()], atol=1e-3)
    counts = np.stack([own.pooled.weights for own in uploads]).sum(0)
    assert (np.asarray(after.broadcast.pooled.known)[counts > 0] == 1).all()


@pytest.mark.slow
def test_fedpac_of_one_client_without_its_term_is_fedrep():
  data = federation((30,))
  run = lambda part: fh.run(fh.federated(part), data, rounds=3, cohort_size=1, key=jax.random.key(0)).state  # noqa: E731
  own = LOCAL | dict(epochs=1)
  first = mlp().init(jax.random.key(7))  # of FedRep's head, too
  start = mlp()._replace(init=lambda key: first)
  found = run(fedpac(start, (30,), lam=0.0, head_passes=1, head_lr=LR, **own)).broadcast.params
  wanted = run(fedrep(start, **own))
  chex.assert_trees_all_close(found["fc1"], wanted.broadcast.params["fc1"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fedas_by_hand(ragged):
  """The alignment, training, and the trace of the information, all with losses that are written here."""
  part = fedas(mlp(), align_lr=0.2, align_batch=6, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state, sent = like(mlp().init(jax.random.key(1))), first._replace(params=like(first.params, seed=1))
  _, _, upload, after, info = one_round(part, ragged, sent, state)
  sums, counts, _ = means_by_hand(state, ragged, CLIENT)
  means = jnp.asarray(sums / np.maximum(counts, 1)[:, None], jnp.float32)

  def apart(params, x, y):
    z, total = features(params, x), 0.0
    for c in range(CLASSES):
      inside = (y == c).astype(jnp.float32)
      total += (inside * jnp.square(z - means[c]).mean(1)).sum() / jnp.maximum(inside.sum(), 1.0)
    return total

  key = jax.random.key(0)
  params = dict(state) | sent.params
  params = descend(params, "fc1", apart, jax.random.fold_in(key, ALIGN), ragged, 1, 0.2, batch=6)
  slope = jax.jit(jax.grad(cross_entropy))
  for x, y, _ in walk(key, ragged, CLIENT, BATCH, LOCAL["epochs"]):
    params = add(params, slope(params, jnp.asarray(x, jnp.float32), y), -LR)
  chex.assert_trees_all_close(after, params, rtol=1e-4, atol=1e-5)
  chex.assert_trees_all_equal(upload.params, {"fc1": after["fc1"]})
  (x, y), trace = rows_of(ragged, CLIENT), 0.0
  for s in range(0, len(x), BATCH):
    gradient = slope(params, jnp.asarray(x[s : s + BATCH], jnp.float32), y[s : s + BATCH])
    trace += sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in jax.tree.leaves(gradient))
  np.testing.assert_allclose(upload.extra, trace, rtol=1e-3)
  assert int(info.steps) == LOCAL["epochs"] * -(-SIZES[CLIENT] // BATCH)


def test_fedas_mixes_by_information():
  mix = fedas(mlp()).needs.brings["mixing"]

  def p(traces):
    sent = lambda: fh.Message((), extra=jnp.array(traces))  # noqa: E731
    return mix.update((), fh.Feedback(jnp.arange(3), jnp.array([1, 2, 5]), 0, None, sent, fh.Message(())))[0]

  np.testing.assert_allclose(p([1.0, 4.0, 3.0]), [0.125, 0.5, 0.375])
  np.testing.assert_allclose(p([0.0, 0.0, 0.0]), [0.125, 0.25, 0.625])
  np.testing.assert_allclose(p([-3.0, 1.0, 3.0]), [0.0, 0.25, 0.75])  # as a dishonest client may send it


@pytest.mark.slow
def test_fedas_without_alignment_is_fedper_bit_for_bit(ragged):
  """In a client's round; and the server then averages by information."""
  found, wanted = (
    one_round(part, ragged) for part in (fedas(mlp(), align_lr=0.0, **LOCAL), fedper(mlp(), **LOCAL))
  )
  chex.assert_trees_all_equal(found[2].params, wanted[2].params)
  chex.assert_trees_all_equal(found[3]["fc2"], wanted[3].params["fc2"])
  for before, after, *_ in rounds_of(fedas(mlp(), **LOCAL), ragged, 5, 1):
    assert after.broadcast.extra == () and not np.allclose(
      before.broadcast.params["fc1"]["bias"], after.broadcast.params["fc1"]["bias"]
    )


def hyper_by_hand(hyper, i):
  """A client's model, float64 [P], and (hidden features of each layer)."""
  found, seen = np.float64(hyper.embeddings[i]), []
  for place, (kernel, bias) in enumerate(hyper.hidden):
    found = (found if place == 0 else np.maximum(found, 0)) @ np.float64(kernel) + np.float64(bias)
    seen.append(found)
  return found @ np.float64(hyper.kernel) + np.float64(hyper.bias), seen


@pytest.mark.slow
def test_pfedhn_s_server_step_by_hand(ragged):
  """Both rounds of backpropagation are written out; only who took part has a new vector."""
  rate, decay = 0.05, 0.1
  part = pfedhn(
    linear(), SIZES, hidden=6, layers=2, server_lr=rate, server_weight_decay=decay, server_clip=None, **LOCAL
  )
  for before, after, cohort, keys, _ in rounds_of(part, ragged, 5, 3):
    hyper, server = before.server[0], part.needs.brings["server"]
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), hyper)
    total = Hyper(total.embeddings, [list(own) for own in total.hidden], total.kernel, total.bias)
    for i in cohort:
      made, seen = hyper_by_hand(hyper, i)
      sent = server.received(server.sent(before.broadcast, before.server), i)
      np.testing.assert_allclose(flat(stacked([sent.params]))[0], made, rtol=1e-4, atol=1e-5)
      upload = jax.jit(part.update)(
        keys[i], sent, (), one_client(ragged, i), fh.Context(i, before.round, 5, K)
      )[0]
      delta = (made - flat(stacked([upload.params]))[0]) / len(cohort)
      total.kernel[...] += np.outer(seen[-1], delta)
      total.bias[...] += delta
      back = np.float64(hyper.kernel) @ delta
      for place in reversed(range(len(hyper.hidden))):
        below = np.float64(hyper.embeddings[i]) if place == 0 else np.maximum(seen[place - 1], 0)
        total.hidden[place][0][...] += np.outer(below, back)
        total.hidden[place][1][...] += back
        back = np.float64(hyper.hidden[place][0]) @ back * (1 if place == 0 else seen[place - 1] > 0)
      total.embeddings[i] += back
    total = Hyper(total.embeddings, tuple(map(tuple, total.hidden)), total.kernel, total.bias)
    wanted = jax.tree.map(lambda p, g: np.float64(p) - rate * (g + decay * np.float64(p)), hyper, total)
    close(after.server[0], wanted, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_pfedhn_starts_where_all_clients_have_one_model(ragged):
  part = pfedhn(mlp(), SIZES, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  server = part.needs.brings["server"]
  state = server.init(first)
  sent = [server.received(server.sent(first, state), i) for i in (0, 7)]
  chex.assert_trees_all_equal(*[own.params for own in sent], first.params)
  assert state[0].embeddings.shape == (K, 1 + K // 4) and state[0].kernel.shape[0] == 100
  assert len(state[0].hidden) == 4
  other = server.init(part.init_broadcast(jax.random.key(1)))
  assert not np.allclose(state[0].embeddings, other[0].embeddings)
  upload = one_round(part, ragged, sent[0])[2]
  chex.assert_trees_all_equal(upload.params, one_round(fh.fedavg(mlp(), **LOCAL), ragged, first)[2].params)


def test_pfedhn_s_draws_and_bytes(ragged):
  hyper = drawn(jax.random.key(0), 50, 400, 300, 1, jnp.arange(7.0))
  np.testing.assert_array_equal(hyper.models(jnp.arange(50)), np.tile(np.arange(7.0), (50, 1)))
  assert [own[0].shape for own in hyper.hidden] == [(400, 300), (300, 300)]
  assert [float(own[0].std()) for own in hyper.hidden] == pytest.approx(
    [400**-0.5, (2 / 300) ** 0.5], rel=0.02
  )
  size = bytes_of(jax.eval_shape(mlp().init, jax.random.key(0)))
  assert traffic(fh.federated(pfedhn(mlp(), SIZES)), ragged, 1) == {"up": size, "down": size}
  shared = 4 * CLASSES * (5 + 1)
  sent = traffic(fh.federated(fedpac(mlp(), SIZES)), ragged, 1)
  up = size + shared + 4 * CLASSES + 4 * (CLASSES * 5 + 1)  # means, counts, and what is said before
  assert sent == {"up": up, "down": size + shared}


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: fedpac(mlp(), SIZES, mixup=0.2), "mixup = 0.2: mixes labels, and fedpac reads"),
    (lambda: fedas(fh.models.make("two_nn", (4,), 1, fh.tasks.regression())), "goes by classes"),
    (lambda: fedpac(fh.models.make("two_nn", (4,), 1, fh.tasks.regression()), SIZES), "goes by classes"),
    (lambda: fh.federated(fedas(mlp()), fh.mixing.afl()), "fedas brings a mixing part"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()
