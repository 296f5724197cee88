"""Augmentation of mini-batches: each piece by NumPy for given draws, inside local training, and off."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.clients.augmentation import augmented, cropped, cut, flipped, mixed, mixture
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.errors import SettingError
from fedjax_het.local import Batch
from fedjax_het.tasks import classification, mean_loss

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 5, 4, 2)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2], np.int32)
REAL = np.array([1, 1, 1, 1, 0, 0], np.float32)
OFF = {"crop": 0, "flip": False, "cutout": 0, "mixup": 0.0}


def batch(x=X, key=0):
  return Batch(jnp.asarray(x), jnp.asarray(Y), jnp.asarray(REAL), jax.random.key(key))


def test_nothing_is_done_unless_asked_for():
  own = batch()
  assert augmented(own, OFF) is own
  model = fh.models.two_nn((5, 4, 2), 3, hidden=4)
  recipe = recipe_of(model, {})
  assert recipe.trained is model


def test_crops_by_hand():
  corners = RNG.integers(0, 5, (6, 2))
  wide = np.zeros((6, 9, 8, 2), np.float32)
  wide[:, 2:7, 2:6] = X
  expected = [wide[i, r : r + 5, c : c + 4] for i, (r, c) in enumerate(corners)]
  np.testing.assert_array_equal(cropped(X, jnp.asarray(corners), 2), expected)


def test_flips_by_hand():
  flips = np.array([1, 0, 1, 1, 0, 0], bool)
  expected = [own[:, ::-1] if flip else own for own, flip in zip(X, flips)]
  np.testing.assert_array_equal(flipped(X, jnp.asarray(flips)), expected)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_squares_by_hand(side):
  centers = np.array([[0, 0], [4, 3], [2, 1], [0, 3], [3, 2], [1, 1]])
  expected = X.copy()
  for own, (r, c) in zip(expected, centers):
    top, left = r - side // 2, c - side // 2
    own[max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
  np.testing.assert_array_equal(cut(X, jnp.asarray(centers), side), expected)


def test_mixtures_and_their_loss_by_hand():
  lam, partner = RNG.uniform(size=6), np.array([3, 2, 0, 1, 4, 5])
  by_hand = lam[:, None, None, None] * X + (1 - lam)[:, None, None, None] * X[partner]
  np.testing.assert_allclose(
    mixture(X, jnp.asarray(lam, jnp.float32), partner), by_hand, rtol=1e-5, atol=1e-6
  )
  logits = RNG.normal(size=(6, 3))
  weights = np.array([1.0, 2.0, 0.5])
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  for task, w in ((classification(), np.ones(3)), (classification(class_weights=tuple(weights)), weights)):
    of = lambda y: (-w[y] * log_p[np.arange(6), y], w[y])  # noqa: E731
    (first, a), (second, b) = of(Y), of(Y[partner])
    total, weight = lam * first + (1 - lam) * second, lam * a + (1 - lam) * b
    found = mean_loss(mixed(task), jnp.asarray(logits), (Y, Y[partner], jnp.asarray(lam)), REAL)
    np.testing.assert_allclose(found, (total * REAL).sum() / (weight * REAL).sum(), rtol=1e-5)


def test_draws_are_of_the_batch_s_key_each_example_s_own_and_within_bounds():
  ones = np.ones((6, 9, 9, 1), np.float32)
  own = {**OFF, "crop": 2, "cutout": 3}
  found, again, other = (np.asarray(augmented(batch(ones, key), own).x) for key in (0, 0, 1))
  np.testing.assert_array_equal(found, again)
  assert (found != other).any() and len({one.tobytes() for one in found}) > 1
  zeros = (found == 0).sum((1, 2, 3))
  assert (zeros <= 9 + 2 * 2 * 9 - 4).all() and (zeros >= 4).all()


def test_an_example_is_mixed_with_real_ones_alone_and_each_is_a_partner_once():
  x = np.where(REAL[:, None, None, None] > 0, X, np.nan).astype(np.float32)
  made = augmented(batch(x), {**OFF, "mixup": 0.4})
  y, other, lam = made.y
  assert np.isfinite(np.asarray(made.x)[REAL > 0]).all()
  assert sorted(np.asarray(other)[REAL > 0]) == sorted(Y[REAL > 0])
  assert ((lam >= 0) & (lam <= 1)).all() and len(set(np.asarray(lam).tolist())) == 6
  np.testing.assert_array_equal(y, Y)


@pytest.mark.slow
def test_a_step_s_gradient_is_that_of_the_augmented_batch():
  model = fh.models.two_nn((5, 4, 2), 3, hidden=4)
  settings = {"crop": 1, "flip": True, "cutout": 2, "mixup": 0.5, "label_smoothing": 0.1}
  recipe = recipe_of(model, settings)
  params = model.init(jax.random.key(0))
  loss, gradient, _ = recipe.gradient(params, (), batch())
  made = augmented(batch(), recipe.settings)

  def by_hand(params):
    y, other, lam = made.y
    log_p = jax.nn.log_softmax(model.apply(params, made.x))
    target = lam[:, None] * jax.nn.one_hot(y, 3) + (1 - lam)[:, None] * jax.nn.one_hot(other, 3)
    target = 0.9 * target + 0.1 / 3
    return -((target * log_p).sum(1) * REAL).sum() / REAL.sum()

  expected = jax.value_and_grad(by_hand)(params)
  chex.assert_trees_all_close((loss, gradient), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{"crop": 1}, {"flip": True}, {"cutout": 2}])
def test_augmenting_what_is_no_image_is_refused(settings):
  (name,) = settings
  with pytest.raises(
    SettingError, match=rf"{name} = .*augments images \[H, W, C\], and the examples are \(4,\)"
  ):
    fh.fedavg(fh.models.two_nn((4,), 3), **settings)
  with pytest.raises(SettingError, match="crop = -1"):
    fh.fedavg(fh.models.two_nn((4, 4, 1), 3), crop=-1)
