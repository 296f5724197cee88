"""A method's own term, features, calibrated losses and FedDecorr, against plain NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_round import CLIENT, LOCAL, LR, add, one_round
from small_parts import CLASSES, SIZES, float64, linear, mlp, one_client, rows_of

import fedjax_het as fh
from fedjax_het.clients.calibration import RULES, calibrated, correlation, counts_of
from fedjax_het.clients.fedem import fedem, responsibilities
from fedjax_het.clients.one_model import one_model
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.errors import SettingError
from fedjax_het.local import Batch
from fedjax_het.models.features import feature_size, linear_head, with_features

X = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)


def test_features_are_the_input_of_the_last_layer():
  """Of a plain function by the identity in its place, of a linen module as they pass."""
  for model in (mlp(), fh.models.two_nn((4,), CLASSES, hidden=6)):
    params = model.init(jax.random.key(0))
    found = with_features(model).apply(params, X)
    own = float64(params["fc1"])
    kernel = np.asarray(own["kernel"])
    z = X @ kernel + own["bias"]
    if model.name == "mlp":
      np.testing.assert_allclose(found.features, np.tanh(z), atol=1e-6)
    np.testing.assert_array_equal(found.outputs, model.apply(params, X))
    np.testing.assert_allclose(linear_head(model)(params)(found.features), found.outputs, atol=1e-6)
    assert found.features.shape == (7, feature_size(model))


def test_a_model_without_a_linear_head_is_refused():
  nameless = mlp()._replace(head=())
  with pytest.raises(SettingError, match="model = 'mlp': names no head"):
    with_features(nameless)
  with pytest.raises(SettingError, match=r"has a last layer fc/bias of"):
    feature_size(linear())


def by_hand(rule, logits, y, counts, tau):
  """The loss of one row at a time, with sums over the classes that take part."""
  found = []
  for f, label in zip(logits, y):
    total = 0.0
    for c in range(len(f)):
      if rule == "fedrs":
        total += np.exp(f[c] if counts[c] else tau * f[c])
      elif counts[c]:
        total += (
          np.exp(f[c]) * (counts[c] / counts.sum()) ** tau
          if rule == "logit_adjustment"
          else np.exp(f[c] - tau * counts[c] ** -0.25)
        )
    own = f[label]
    own += {"logit_adjustment": tau * np.log(counts[label] / counts.sum()),
            "fedlc": -tau * counts[label] ** -0.25, "fedrs": 0.0}[rule]  # fmt: skip
    found.append(np.log(total) - own)
  return np.array(found)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("counts", [(3, 0, 5), (2, 4, 1), (0, 9, 0)])
def test_calibrated_losses_by_hand(rule, counts):
  counts, logits = np.array(counts, np.float64), X[:, :3].astype(np.float64)
  y = np.flatnonzero(counts)[np.arange(7) % (counts > 0).sum()]
  task = calibrated(mlp().task, rule, 0.7, jnp.asarray(counts, jnp.float32))
  found, weight = task.losses(jnp.asarray(logits, jnp.float32), jnp.asarray(y))
  np.testing.assert_allclose(found, by_hand(rule, logits, y, counts, 0.7), rtol=2e-5, atol=1e-6)
  gradient = jax.grad(lambda f: task.losses(f, jnp.asarray(y))[0].sum())(jnp.asarray(logits, jnp.float32))
  assert weight is None and np.isfinite(gradient).all()


@pytest.mark.parametrize("rule", RULES)
def test_smoothed_labels_of_calibrated_losses_are_of_the_classes_that_take_part(rule):
  """A class that the client lacks has no part, so that its loss, of a logit of -1e9, is in no mean."""
  counts, y, share = np.array([3.0, 0, 5]), np.array([0, 2] * 3), 0.1
  given = {"calibration": rule, "calibration_strength": 0.7, "label_smoothing": share}
  task = recipe_of(mlp(), given)._replace(counts=jnp.asarray(counts, jnp.float32)).trained.task
  found = task.losses(jnp.asarray(X[:6, :3]), jnp.asarray(y))[0]
  of = lambda labels: by_hand(rule, X[:6, :3].astype(np.float64), labels, counts, 0.7)  # noqa: E731
  classes = range(3) if rule == "fedrs" else (0, 2)
  if rule == "fedrs":  # the logit of a class that the client lacks is multiplied in the label's place, too
    of = lambda labels: np.log(np.exp(f := X[:6, :3] * [1, 0.7, 1]).sum(1)) - f[range(6), labels]  # noqa: E731
  wanted = (1 - share) * of(y) + share * np.mean([of(np.full(6, c)) for c in classes], 0)
  np.testing.assert_allclose(found, wanted, rtol=2e-5)


NOT_ONE_MODEL = {
  "apfl": fh.apfl, "pfedme": fh.pfedme, "superfed_mm": fh.superfed_mm,
  "superfed_mm, first": lambda *a, **own: fh.superfed_mm(*a, nu_from="first", start_round=3, **own),
}  # fmt: skip


def test_training_that_does_not_know_the_client_s_counts_is_an_error():
  """With counts of its own a rule would be the identity."""
  recipe = recipe_of(mlp(), {"calibration": "fedlc"})
  with pytest.raises(SettingError, match=r"calibration = 'fedlc': .* recipe\.fitted"):
    recipe.gradient(mlp().init(jax.random.key(0)), (), None)


@pytest.mark.parametrize("name", NOT_ONE_MODEL)
@pytest.mark.slow
def test_losses_are_calibrated_in_every_local_training(name, ragged):
  lacking = ragged.__class__(**{**vars(ragged), "y": jnp.minimum(ragged.y, 1)})  # no client has class 2
  plain, on = (
    client_round(NOT_ONE_MODEL[name](mlp(), lr=0.1, epochs=1, batch_size=4, calibration=rule), lacking)
    for rule in ("none", "logit_adjustment")
  )
  moved = jax.tree.map(lambda a, b: float(abs(a - b).max()), plain[0].params, on[0].params)
  assert max(jax.tree.leaves(moved)) > 1e-3


def test_fedrs_of_strength_one_is_plain_and_said_to_be(ragged):
  said = fh.fedavg(mlp(), calibration="fedrs").needs.remarks(ragged)
  assert [*said] == ["calibration = fedrs: no effect beside calibration_strength = 1."]
  assert not [*fh.fedavg(mlp(), calibration="fedrs", calibration_strength=0.5).needs.remarks(ragged)]
  with pytest.raises(SettingError, match=r"calibration_strength = 1\.5: out of range"):
    fh.fedavg(mlp(), calibration="fedrs", calibration_strength=1.5)


@pytest.mark.parametrize(
  "part", [fh.fedlc, fh.fedrod, fh.gpfl, fh.knn_per, fh.fedproto, fh.fedas, fh.fedgen, fh.fd]
)
def test_methods_that_count_classes_ask_for_their_number(part):
  with pytest.raises(SettingError, match="does not say its num_classes"):
    part(mlp()._replace(num_classes=0))


def test_the_counts_are_the_client_s_own(ragged):
  for i in (0, 1, 5):
    _, y = rows_of(ragged, i)
    np.testing.assert_array_equal(
      counts_of(one_client(ragged, i), CLASSES), np.bincount(y, minlength=CLASSES)
    )


@pytest.mark.parametrize("real", [7, 5, 2, 1])
@pytest.mark.slow
def test_the_penalty_on_correlated_features_by_hand(real):
  z = np.random.default_rng(1).normal(size=(7, 9)) @ np.random.default_rng(2).normal(size=(9, 9))
  z[:, 3] = 0.5  # a feature without variance
  wanted = 0.0
  if real > 1:
    own = z[:real] - z[:real].mean(0)
    own = own / np.sqrt(own.var(0, ddof=1) + 1e-8)
    wanted = np.square(own.T @ own / (real - 1)).sum() / 81
  weight = jnp.asarray(np.arange(7) < real, jnp.float32)
  batch = Batch(jnp.zeros((7, 1)), jnp.zeros(7, jnp.int32), weight, jax.random.key(0))
  np.testing.assert_allclose(correlation(jnp.asarray(z, jnp.float32), batch), wanted, rtol=1e-5)
  slope = jax.grad(lambda own: correlation(own, batch))(jnp.asarray(z, jnp.float32))
  assert np.isfinite(slope).all()


def client_round(part, data, client=8):
  key = jax.random.key(0)
  broadcast = part.init_broadcast(key)
  state = part.init(key, broadcast, None, fh.Context(client))
  return jax.jit(part.update)(key, broadcast, state, one_client(data, client), fh.Context(client, 0, 3, 12))


@pytest.mark.slow
def test_a_term_is_added_to_the_loss_and_to_its_gradient(ragged):
  """A term of half the squared parameters is weight decay."""
  local = dict(lr=0.1, epochs=1, batch_size=4, momentum=0.0)
  half = lambda params, seen: 0.15 * sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params))  # noqa: E731
  recipe = recipe_of(mlp(), dict(local, weight_decay=0.0))
  training = one_model(recipe, term=lambda *_: half)
  plain = fh.fedavg(mlp(), **local, weight_decay=0.3)
  own = plain._replace(update=fh.in_one_go(training))
  chex.assert_trees_all_close(
    client_round(own, ragged)[0].params, client_round(plain, ragged)[0].params, rtol=1e-5, atol=1e-6
  )


@pytest.mark.parametrize("changed", [dict(calibration="fedlc"), dict(decorrelate=0.5)])
@pytest.mark.slow
def test_these_options_change_training_and_are_off_by_default(changed, ragged):
  local = dict(lr=0.1, epochs=1, batch_size=4)
  plain, off, on = (
    client_round(fh.fedavg(mlp(), **local, **own), ragged)[0].params
    for own in ({}, {"decorrelate": 0.0, "calibration": "none"}, changed)
  )
  chex.assert_trees_all_equal(plain, off)
  assert not np.allclose(plain["fc1"]["kernel"], on["fc1"]["kernel"], atol=1e-6)


def test_a_task_without_classes_is_refused():
  model = fh.models.make("two_nn", (4,), 1, fh.tasks.regression())
  with pytest.raises(SettingError, match="calibration = 'fedlc': goes by classes with a logit each"):
    fh.fedavg(model, calibration="fedlc")


@pytest.mark.slow
def test_fedem_follows_its_objective_with_class_weights(ragged):
  """A full batch is a step along ∇ of Σ q c ℓ / Σ c."""
  model = mlp()._replace(task=fh.tasks.classification(class_weights=(1.0, 10.0, 1.0)))
  part = fedem(model, models=2, **LOCAL | dict(batch_size=SIZES[CLIENT], epochs=1))
  first, state, upload, _, _ = one_round(part, ragged)
  x, y = one_client(ragged, CLIENT).take(jnp.arange(SIZES[CLIENT]))
  q = responsibilities(model, first.params, state, x, y)

  def objective(models):
    losses, weight = jax.vmap(lambda own: model.task.losses(model.apply(own, x), y))(models)
    return (q * losses).sum() / weight[0].sum()

  wanted = add(first.params, jax.grad(objective)(first.params), -LR)
  chex.assert_trees_all_close(upload.params, wanted, rtol=1e-4, atol=1e-6)
