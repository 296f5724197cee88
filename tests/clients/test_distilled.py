"""FedKD and FedGen, whose models are taught, against losses that are written here, in float64."""

import json
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from float64_steps import cross_entropy, features, read
from many_rounds import rounds_of
from one_round import BATCH, CLIENT, LOCAL, LR, add, like, one_round
from small_parts import CLASSES, federation, float64, mlp, round_draws, rows_of, walk

import fedjax_het as fh
from fedjax_het.clients.fedgen import GENERATED, drawn_labels, fedgen
from fedjax_het.clients.fedkd import Private, fedkd, low_rank
from fedjax_het.clients.local_only import local_only
from fedjax_het.engine.capacity import size as bytes_of
from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import SettingError
from fedjax_het.experiment.counted import Counted

WHOLE = dict(energy_start=1.0, energy_end=1.0)


def divergence(teacher, own):
  t = jax.nn.log_softmax(teacher)
  return (jnp.exp(t) * (t - jax.nn.log_softmax(own))).sum(1).mean()


def approximated(change, energy):
  """(what is sent of a matrix, how many numbers) by NumPy; a matrix that is no smaller is sent whole."""
  u, s, v = np.linalg.svd(change, full_matrices=False)
  rank = next((r for r in range(1, len(s)) if (s[:r] ** 2).sum() > energy * (s**2).sum()), len(s))
  numbers = rank * (sum(change.shape) + 1)
  if numbers >= change.size:
    return change, change.size + 1
  return (u[:, :rank] * s[:rank]) @ v[:rank], numbers + 1


@pytest.mark.slow
@pytest.mark.parametrize("least_loss", [1e-3, 9.0])
def test_fedkd_by_hand(least_loss, ragged):
  """Both models' steps, the map of features, and what is sent, in round 4 of 8."""
  part = fedkd(mlp(30), lam=0.7, least_loss=least_loss, energy_start=0.2, energy_end=0.6, rounds=8, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = Private(like(first.params, seed=1), like(jnp.zeros((30, 30)), 0.3))
  context = fh.Context(CLIENT, 4, 3, 12)
  own = ragged.clients(jnp.int32(CLIENT))
  upload, after, info = jax.jit(part.update)(jax.random.key(0), first, state, own, context)

  def quotient(q, w, bridge, x, y):
    losses = sum(cross_entropy(read(p["fc2"], features(p, x)), y) for p in (q, w))
    apart = jnp.square(features(q, x) - features(w, x) @ bridge).mean()
    return apart, jnp.maximum(losses, least_loss)

  def of_mentor(q, w, bridge, x, y):
    apart, divisor = quotient(q, w, bridge, x, y)
    f, t = (read(p["fc2"], features(p, x)) for p in (q, w))
    return cross_entropy(f, y) + 0.7 * (divergence(t, f) + apart) / divisor

  def of_mentee(shared, q, x, y):
    w, bridge = shared
    apart, divisor = quotient(q, w, bridge, x, y)
    f, t = (read(p["fc2"], features(p, x)) for p in (w, q))
    return cross_entropy(f, y) + 0.7 * (divergence(t, f) + apart) / divisor

  batches, total = [(x, y) for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, LOCAL["epochs"])], []
  with jax.enable_x64(True):
    slopes = jax.jit(jax.value_and_grad(of_mentor)), jax.jit(jax.grad(of_mentee))
    mentor, shared = float64(state.mentor), (float64(first.params), float64(state.bridge))
    for x, y in batches:
      loss, one = slopes[0](mentor, *shared, x, y)
      two = slopes[1](shared, mentor, x, y)
      total.append(float(loss))
      mentor, shared = float64(add(mentor, one, -LR)), float64(add(shared, two, -LR))
  chex.assert_trees_all_close(float64(after), Private(mentor, shared[1]), rtol=2e-5, atol=3e-6)
  np.testing.assert_allclose(info.loss, np.mean(total), rtol=1e-5)
  energy, start, numbers = 0.2 + 5 / 8 * 0.4, float64(first.params), 0
  for layer in ("fc1", "fc2"):
    np.testing.assert_allclose(upload.params[layer]["bias"], shared[0][layer]["bias"], rtol=2e-5, atol=3e-6)
    near, sent = approximated(shared[0][layer]["kernel"] - start[layer]["kernel"], energy)
    wanted = start[layer]["kernel"] + near
    np.testing.assert_allclose(upload.params[layer]["kernel"], wanted, rtol=2e-5, atol=3e-6)
    numbers += sent + shared[0][layer]["bias"].size
  whole = sum(leaf.size for leaf in jax.tree.leaves(first.params))
  assert int(info.sent) == 4 * numbers < 4 * whole
  assert part.training.gradients == 2
  chex.assert_trees_all_equal(part.personalize(first, after, None, context, 0.0), after.mentor)
  chex.assert_trees_all_equal(part.global_model(upload), upload.params)


@pytest.mark.parametrize("energy", [0.0, 0.5, 0.9, 0.999, 1.0])
def test_the_least_rank_that_holds_the_energy(energy):
  rng = np.random.default_rng(0)
  change = rng.normal(size=(2, 6, 3)) @ rng.normal(size=(3, 9))
  near, numbers, whole = low_rank(jnp.asarray(change, jnp.float32), energy)
  wanted, sent = approximated(change.reshape(12, 9), energy)
  np.testing.assert_allclose(change if whole else near, wanted.reshape(change.shape), rtol=1e-4, atol=1e-4)
  assert int(numbers) == sent and bool(whole) == (sent > change.size)
  assert bool(whole) == (energy == 1.0)


def test_an_update_of_nothing_is_sent_as_it_is():
  near, numbers, whole = low_rank(jnp.zeros((5, 6)), 0.9)
  assert whole and int(numbers) == 31 and np.isfinite(near).all()


@pytest.mark.slow
def test_fedkd_that_teaches_nothing_is_fedavg_and_local_training_bit_for_bit(ragged):
  part, plain = fedkd(mlp(), lam=0.0, **WHOLE, **LOCAL), fh.fedavg(mlp(), **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = Private(like(first.params, seed=1), jnp.eye(5))
  _, _, upload, after, info = one_round(part, ragged, first, state)
  chex.assert_trees_all_equal(upload.params, one_round(plain, ragged, first)[2].params)
  wanted = one_round(local_only(mlp(), **LOCAL), ragged, state=state.mentor)[3]
  chex.assert_trees_all_equal(after, Private(wanted, state.bridge))
  assert info.sent == () and part.needs.transformed
  # Of all of the energy nothing is left out, whatever the program does for it.
  all_ = dict(energy_start=jnp.float32(1.0), energy_end=jnp.float32(1.0))
  traced = one_round(fedkd(mlp(), lam=0.0, **all_, **LOCAL), ragged, first, state)[2]
  chex.assert_trees_all_equal(traced.params, upload.params)


def test_a_run_of_other_rounds_is_refused():
  fedkd(mlp(), rounds=7).needs.check_rounds(7)
  with pytest.raises(SettingError, match=r"fedkd's rounds = 7: the sent energy grows .* rounds=8"):
    fedkd(mlp(), rounds=7).needs.check_rounds(8)


def test_bytes_are_those_that_clients_report():
  """Of two rounds, in whole numbers beyond 32 bits, and after a checkpoint."""

  def counted(part):
    algorithm = fh.federated(part)
    return Counted(
      SimpleNamespace(algorithm=algorithm, data=federation((4, 4)), plan=SimpleNamespace(cohort_size=2))
    )

  whole, later, plain = counted(fedkd(mlp())), counted(fedkd(mlp())), counted(fh.fedavg(mlp()))
  sent = np.array([[2**30, 3], [2**30, 2**31 - 1]], np.int32)
  infos = RoundInfo(np.zeros((2, 2), np.int32), None, None, fh.Info(sent, sent // 2**20, sent=sent))
  whole.add(infos)
  whole.add(infos)
  down = bytes_of(jax.eval_shape(mlp().init, jax.random.key(0)))
  assert whole.bytes == {"up": 2 * (2**32 + 2), "down": 8 * down}
  kept = json.loads(json.dumps(whole.checkpoint_state()))
  later.resume(4, kept)
  assert later.bytes == whole.bytes
  plain.add(infos._replace(clients=fh.Info(sent, sent)))
  assert plain.bytes == {"up": 4 * down, "down": 4 * down} and "sent" not in plain.checkpoint_state()
  later.resume(3, {"client_steps": 0})  # of a version that kept neither
  assert later.bytes == {"up": 6 * down, "down": 6 * down}


GEN = dict(alpha=0.7, beta=0.4, decay=0.5, diversity=0.8, generated_batch=6, noise=3, hidden=7,
           server_steps=4, server_lr=0.05, server_weight_decay=0.1)  # fmt: skip


def generate(generator, noise, y):
  (a, b), (c, d) = generator
  return jax.nn.relu(noise @ a[:3] + a[3:][y] + b) @ c + d


def labels_of(key, chances, count):
  return np.asarray(jax.random.categorical(key, jnp.log(jnp.asarray(chances, jnp.float32)), shape=(count,)))


def fedgen_client(broadcast, data, i, key, round):
  """A client's parameters after local training, float64."""
  rows, (generator, chances) = [], broadcast.extra
  for x, y, step in walk(key, data, i, BATCH, LOCAL["epochs"]):
    one, two, three = jax.random.split(jax.random.fold_in(step, GENERATED), 3)
    draws = jax.random.uniform(two, (6, 3)), jax.random.uniform(three, (BATCH, 3))[: len(x)]
    rows.append((x, y, labels_of(one, chances, 6), *map(np.asarray, draws)))

  def loss(params, x, y, label, noise, more, generator):
    f = read(params["fc2"], features(params, x))
    right = cross_entropy(read(params["fc2"], generate(generator, noise, label)), label)
    teacher = jax.lax.stop_gradient(read(params["fc2"], generate(generator, more, y)))
    return cross_entropy(f, y) + (round > 0) * 0.5**round * (0.7 * right + 0.4 * divergence(teacher, f))

  with jax.enable_x64(True):
    slope, params, generator = jax.jit(jax.grad(loss)), float64(broadcast.params), float64(tuple(generator))
    for row in rows:
      params = float64(add(params, slope(params, *row, generator), -LR))
  return params


def fedgen_server(generator, heads, counts, key, moments, round):
  """Adam with L2 decay on the ensemble's loss, float64: (generator, moments, mean cross entropy)."""
  chances, draws = counts.sum(0) / counts.sum(), []
  for i in range(4):
    one, two = jax.random.split(jax.random.fold_in(key, i))
    draws.append((labels_of(one, chances, 6), np.asarray(jax.random.uniform(two, (6, 3)))))
  share = counts / np.maximum(counts.sum(0), 1)

  def loss(own, y, noise):
    z = generate(own, noise, y)
    logits = sum(jnp.asarray(share)[i][y][:, None] * read(head, z) for i, head in enumerate(heads))
    wrong = cross_entropy(logits, y)
    pairs = [(a, b) for a in range(6) for b in range(6)]
    far = sum(jnp.square(noise[a] - noise[b]).mean() * jnp.abs(z[a] - z[b]).mean() for a, b in pairs)
    return wrong + 0.8 * jnp.exp(-far / 36), wrong

  with jax.enable_x64(True):
    slope, own, total = jax.jit(jax.grad(loss, has_aux=True)), float64(tuple(generator)), []
    for y, noise in draws:
      gradient, wrong = slope(own, y, noise)
      total.append(float(wrong))
      count, first, second = moments
      gradient = add(gradient, own, 0.1)
      first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
      second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
      count, rate = count + 1, 0.05 * 0.5**round
      moments = count, first, second
      own = jax.tree.map(
        lambda p, m, v: p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8),
        own, first, second,
      )  # fmt: skip
    return float64(own), moments, np.mean(total)


@pytest.mark.slow
def test_fedgen_s_rounds_by_hand(ragged):
  """Two rounds of a cohort of four: local training, the generator's steps, and the figure."""
  part, moments = fedgen(mlp(), **GEN, **LOCAL), None
  for round, (before, after, cohort, keys, infos) in enumerate(rounds_of(part, ragged, 4, 2)):
    counts = np.stack([np.bincount(rows_of(ragged, i)[1], minlength=CLASSES) for i in cohort]).astype(float)
    trained = [fedgen_client(before.broadcast, ragged, i, keys[i], round) for i in cohort]
    sizes = counts.sum(1) / counts.sum()
    wanted = jax.tree.map(lambda *leaves: sum(p * leaf for p, leaf in zip(sizes, leaves)), *trained)
    chex.assert_trees_all_close(float64(after.broadcast.params), wanted, rtol=1e-5, atol=3e-6)
    generator = before.broadcast.extra.generator
    moments = moments or (0, *2 * (jax.tree.map(np.zeros_like, float64(tuple(generator))),))
    server_key = round_draws(before, ragged.num_clients, 4)[2]
    heads = [params["fc2"] for params in trained]
    own, moments, loss = fedgen_server(generator, heads, counts, server_key, moments, round)
    # Adam divides by the root of a mean square, whose float32 rounding is largest where it is small.
    chex.assert_trees_all_close(float64(tuple(after.broadcast.extra.generator)), own, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.broadcast.extra.labels, counts.sum(0) / counts.sum(), rtol=1e-6)
    np.testing.assert_allclose(infos.figures["ensemble_loss"][0], loss, rtol=1e-4)


@pytest.mark.slow
def test_fedgen_without_its_terms_and_in_its_first_round_is_fedavg(ragged):
  plain, off, on = (
    one_round(part, ragged)[2]
    for part in (
      fh.fedavg(mlp(), **LOCAL),
      fedgen(mlp(), alpha=0.0, beta=0.0, **LOCAL),
      fedgen(mlp(), **LOCAL),
    )
  )
  chex.assert_trees_all_equal(off.params, plain.params)
  chex.assert_trees_all_close(on.params, plain.params, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(off.extra, np.bincount(rows_of(ragged, CLIENT)[1], minlength=CLASSES))


@pytest.mark.slow
def test_a_label_that_no_client_has_is_not_generated():
  y = drawn_labels(jax.random.key(0), jnp.array([0.25, 0.0, 0.75]), 4000)
  np.testing.assert_allclose(np.bincount(y, minlength=3) / 4000, [0.25, 0.0, 0.75], atol=0.02)


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: fedgen(mlp(), mixup=0.2), "mixup = 0.2: mixes labels, and fedgen reads"),
    (lambda: fedgen(fh.models.make("two_nn", (4,), 1, fh.tasks.regression())), "goes by classes"),
    (lambda: fedkd(fh.models.make("two_nn", (4,), 1, fh.tasks.regression())), "goes by classes"),
    (lambda: fedgen(mlp(), decay=1.5), "decay = 1.5: out of range"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()
