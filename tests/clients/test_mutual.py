"""FML and FD, whose models teach by what they say of examples, against losses that are written here."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_round import BATCH, CLIENT, LOCAL, LR, add, like, one_round
from small_parts import CLASSES, SIZES, federation, float64, mlp, rows_of, walk

import fedjax_het as fh
from fedjax_het.clients.fd import fd
from fedjax_het.clients.fedproto import Prototypes
from fedjax_het.clients.fml import divergence, fml
from fedjax_het.clients.local_only import local_only
from fedjax_het.engine.capacity import size as bytes_of
from fedjax_het.errors import SettingError
from fedjax_het.experiment.traffic import traffic


def logits(params, x):
  h = jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
  return h @ params["fc2"]["kernel"] + params["fc2"]["bias"]


def cross_entropy(f, y):
  return (jax.nn.logsumexp(f, axis=1) - f[jnp.arange(len(y)), y]).mean()


def test_the_divergence_by_hand():
  teacher, own = np.random.default_rng(0).normal(size=(2, 6, 4))
  p, q = (np.exp(f) / np.exp(f).sum(1, keepdims=True) for f in (teacher, own))
  found = divergence(*(jnp.asarray(f, jnp.float32) for f in (teacher, own)))
  np.testing.assert_allclose(found, (p * np.log(p / q)).sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_fml_by_hand(ragged):
  """Each model's step is along its own loss, in which the other one, as it was before the step, is fixed."""
  part = fml(mlp(), alpha=0.7, beta=0.2, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = like(first.params, seed=1)
  _, _, upload, after, info = one_round(part, ragged, first, state)

  def loss(params, teacher, weight, x, y):
    f, t = logits(params, x), jax.nn.softmax(logits(teacher, x))
    apart = (t * (jnp.log(t) - jax.nn.log_softmax(f))).sum(1).mean()
    return weight * cross_entropy(f, y) + (1 - weight) * apart

  slope, private, shared, total = jax.jit(jax.value_and_grad(loss)), state, first.params, []
  for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, LOCAL["epochs"]):
    x = jnp.asarray(x, jnp.float32)
    (own, one), (_, two) = slope(private, shared, 0.7, x, y), slope(shared, private, 0.2, x, y)
    private, shared = add(private, one, -LR), add(shared, two, -LR)
    total.append(float(own))
  chex.assert_trees_all_close(after, private, rtol=1e-4, atol=1e-5)
  chex.assert_trees_all_close(upload.params, shared, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(info.loss, np.mean(total), rtol=1e-4)
  assert part.training.gradients == 2 and int(info.steps) == LOCAL["epochs"] * -(-SIZES[CLIENT] // BATCH)
  context = fh.Context(CLIENT)
  chex.assert_trees_all_equal(part.personalize(first, after, None, context, 0.0), after)
  chex.assert_trees_all_equal(part.global_model(upload), upload.params)


@pytest.mark.slow
def test_models_that_teach_nothing_are_fedavg_and_local_training_bit_for_bit(ragged):
  part, plain = fml(mlp(), alpha=1.0, beta=1.0, **LOCAL), fh.fedavg(mlp(), **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  state = like(first.params, seed=1)
  _, _, upload, after, _ = one_round(part, ragged, first, state)
  chex.assert_trees_all_equal(upload.params, one_round(plain, ragged, first)[2].params)
  chex.assert_trees_all_equal(after, one_round(plain, ragged, fh.Message(state))[2].params)
  chex.assert_trees_all_equal(one_round(part, ragged, first)[1], first.params)


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["cross_entropy", "squared"])
def test_fd_by_hand(distance, ragged):
  part = fd(mlp(), lam=0.7, distance=distance, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  assert first.params == () and not first.pooled.known.any()
  known = fh.Message((), pooled=Prototypes(like(first.pooled.mean), jnp.array([1.0, 0.0, 1.0])))
  _, state, upload, after, _ = one_round(part, ragged, known)

  def loss(params, x, y):
    f = logits(params, x)
    other = known.pooled.mean[y]
    away = ((f - other) ** 2).sum(1) / CLASSES
    if distance == "cross_entropy":
      away = -(jnp.exp(other) / jnp.exp(other).sum(1, keepdims=True) * jax.nn.log_softmax(f)).sum(1)
    return cross_entropy(f, y) + 0.7 * (away * jnp.array([1.0, 0.0, 1.0])[y]).mean()

  params, slope = state, jax.jit(jax.grad(loss))
  for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, LOCAL["epochs"]):
    params = add(params, slope(params, jnp.asarray(x, jnp.float32), y), -LR)
  chex.assert_trees_all_close(after, params, rtol=1e-4, atol=1e-5)
  x, y = rows_of(ragged, CLIENT)
  f = np.asarray(logits(float64(after), x))
  for c in range(CLASSES):
    if (y == c).any():
      np.testing.assert_allclose(upload.pooled.values.mean[c], f[y == c].mean(0), rtol=1e-3, atol=1e-4)
  np.testing.assert_array_equal(upload.pooled.weights, np.bincount(y, minlength=CLASSES))
  assert upload.pooled.values.known.all()


@pytest.mark.slow
def test_fd_without_its_term_is_local_training_bit_for_bit(ragged):
  found, wanted = (
    one_round(part, ragged)[3] for part in (fd(mlp(), lam=0.0, **LOCAL), local_only(mlp(), **LOCAL))
  )
  chex.assert_trees_all_equal(found, wanted)


def test_what_they_send():
  data, size = federation((4, 4)), bytes_of(jax.eval_shape(mlp().init, jax.random.key(0)))
  assert traffic(fh.federated(fml(mlp())), data, 1) == {"up": size, "down": size}
  sent = 4 * (CLASSES * CLASSES + CLASSES)
  assert traffic(fh.federated(fd(mlp())), data, 1) == {"up": sent + 4 * CLASSES, "down": sent}


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: fd(mlp(), mixup=0.2), "mixup = 0.2: mixes labels, and fd reads"),
    (lambda: fml(fh.models.make("two_nn", (4,), 1, fh.tasks.regression())), "goes by classes"),
    (lambda: fd(fh.models.make("two_nn", (4,), 1, fh.tasks.regression())), "goes by classes"),
    (lambda: fml(mlp(), alpha=1.5), "alpha = 1.5: out of range"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()
