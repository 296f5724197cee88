"""Each task's loss, gradient and metrics against NumPy and scikit-learn; labels that it does not have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import (
  f1_score,
  mean_absolute_error,
  mean_squared_error,
  r2_score,
  roc_auc_score,
)

import fedjax_het as fh
from fedjax_het import tasks
from fedjax_het.data.rows import count_rows
from fedjax_het.tasks import mean_loss
from fedjax_het.tasks.task import mean_over

RNG = np.random.default_rng(0)
B, C, T, V = 9, 4, 3, 6
REAL = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1], np.float32)
MASK = REAL > 0
WEIGHTS = np.array([0.5, 3.0, 0.0, 1.5], np.float32)


@pytest.fixture(autouse=True)
def draws(monkeypatch):
  """The same of a test, whichever ran before it."""
  monkeypatch.setitem(globals(), "RNG", np.random.default_rng(1))


def log_softmax(z):
  z = np.float64(z)
  return z - np.log(np.exp(z).sum(-1, keepdims=True))


def sigmoid(z):
  return 1 / (1 + np.exp(-np.float64(z)))


def of_classes(weights):
  """Σ c_y·(-log P(y)) / Σ c_y, and c_y (P - onehot) / Σ c_y."""
  z, y = RNG.normal(size=(B, C)), RNG.integers(0, C, B)
  c = (np.ones(C) if weights is None else weights)[y] * REAL
  own = log_softmax(z)
  loss = -(c * own[np.arange(B), y]).sum() / c.sum()
  return tasks.classification(weights), z, y, loss, c[:, None] * (np.exp(own) - np.eye(C)[y]) / c.sum()


def of_one_logit(weight):
  z, y = RNG.normal(size=(B, 1)), RNG.integers(0, 2, B)
  c, p = np.where(y == 1, weight, 1.0), sigmoid(z[:, 0])
  loss = -(REAL * c * np.where(y == 1, np.log(p), np.log(1 - p))).sum() / REAL.sum()
  return tasks.binary(weight), z, y, loss, (REAL * c * (p - y))[:, None] / REAL.sum()


def of_many_labels(weight):
  z, y = RNG.normal(size=(B, C)), RNG.integers(0, 2, (B, C))
  c, p = np.where(y == 1, weight, 1.0) * REAL[:, None], sigmoid(z)
  loss = -(c * np.where(y == 1, np.log(p), np.log(1 - p))).sum() / (C * REAL.sum())
  return tasks.multilabel(weight), z, y, loss, c * (p - y) / (C * REAL.sum())


def of_tokens(ignore):
  """Positions of the ids 0 and -7 do not count, wherever they are, and texts count by their others."""
  z, y = RNG.normal(size=(B, T, V)), RNG.integers(0, V, (B, T))
  y[0], y[3, 1] = -7, -7
  there = ~np.isin(y, ignore) * REAL[:, None]
  own, hot = log_softmax(z), np.eye(V)[y % V]
  loss = -(there * (own * hot).sum(-1)).sum() / there.sum()
  return tasks.next_token(ignore), z, y, loss, there[..., None] * (np.exp(own) - hot) / there.sum()


def of_numbers(shape):
  y = RNG.normal(size=shape)
  z = RNG.normal(size=(B, y.size // B))
  error = z - y.reshape(z.shape)
  count = z.shape[1] * REAL.sum()
  loss = (REAL[:, None] * error**2).sum() / count
  return tasks.regression(), z, y.astype(np.float32), loss, 2 * REAL[:, None] * error / count


@pytest.mark.parametrize(
  "case",
  [
    of_classes(None), of_classes(WEIGHTS), of_one_logit(1.0), of_one_logit(3.0), of_many_labels(1.0),
    of_many_labels(0.25), of_tokens((0, -7)), of_numbers((B,)), of_numbers((B, 2)),
  ],
)  # fmt: skip
def test_the_mean_loss_and_its_gradient(case):
  task, z, y, loss, gradient = case
  found = jax.value_and_grad(lambda z: mean_loss(task, z, jnp.asarray(y), REAL))(jnp.asarray(z, jnp.float32))
  np.testing.assert_allclose(found[0], loss, rtol=2e-6)
  np.testing.assert_allclose(found[1], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
  ("task", "z", "y", "real"),
  [
    (tasks.next_token((0,)), np.ones((B, T, V)), np.zeros((B, T), int), REAL),
    (tasks.classification((1.0, 1.0, 0.0)), np.ones((B, 3)), np.full(B, 2), REAL),
    (tasks.multilabel(), np.ones((B, C)), np.ones((B, C), int), 0 * REAL),
  ],
)
def test_a_batch_that_has_nothing_that_counts_moves_nothing(task, z, y, real):
  z, y = jnp.asarray(z, jnp.float32), jnp.asarray(y)
  loss, gradient = jax.value_and_grad(lambda z: mean_loss(task, z, y, real))(z)
  assert loss == 0.0 and not np.asarray(gradient).any()


# Metrics.


def judged(task, z, y, mask=MASK):
  """The metrics of a client whose other rows hold NaN."""
  z = np.where(mask.reshape(-1, *[1] * (np.ndim(z) - 1)), z, np.nan)
  found = task.metrics(task.scores(jnp.asarray(z, jnp.float32), jnp.asarray(y)), jnp.asarray(y), mask)
  assert all(value.dtype == jnp.float32 and value.shape == () for value in found.values())
  assert set(found) <= set(fh.metrics.catalogue.METRICS) and "loss" in found
  assert any(name in found for name in task.headline)
  return {name: float(value) for name, value in found.items()}


@pytest.mark.slow
def test_many_labels_against_scikit_learn():
  z, y = RNG.normal(size=(40, 5)), RNG.integers(0, 2, (40, 5))
  y[:, 1], z[:, 1] = 0, -1.0  # no positive, true or predicted: it has no F1 and no AUROC
  mask = RNG.random(40) < 0.7
  found, z, y = judged(tasks.multilabel(9.0), z, y, mask), z[mask], y[mask]
  guess, some = z > 0, [0, 2, 3, 4]
  wanted = {
    "accuracy": (guess == y).mean(),
    "exact": (guess == y).all(1).mean(),
    "f1_macro": f1_score(y, guess, average="macro", zero_division=np.nan),
    "f1_micro": f1_score(y, guess, average="micro"),
    "auroc": roc_auc_score(y[:, some], z[:, some], average="macro"),
    "loss": -np.where(y == 1, np.log(sigmoid(z)), np.log(1 - sigmoid(z))).mean(),
  }
  assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_numbers_against_scikit_learn(shape):
  y = 3.0 + RNG.normal(size=shape)
  z = (y + RNG.normal(size=shape)).reshape(40, -1)
  mask = RNG.random(40) < 0.7
  found, z, y = judged(tasks.regression(), z, y, mask), z[mask], y[mask].reshape(mask.sum(), -1)
  mse = mean_squared_error(y, z)
  wanted = {"mse": mse, "loss": mse, "rmse": mse**0.5, "mae": mean_absolute_error(y, z), "r2": r2_score(y, z)}
  assert found == pytest.approx(wanted, rel=1e-4)


def test_tokens_by_hand():
  task, z, y, loss, _ = of_tokens((0, -7))
  found = judged(task, z, y)
  there = ~np.isin(y, (0, -7)) & MASK[:, None]
  order = np.argsort(-z, axis=-1)
  wanted = {
    "top1": (order[..., 0] == y)[there].mean(),
    "top5": (order[..., :5] == y[..., None]).any(-1)[there].mean(),
    "loss": loss,
    "perplexity": np.exp(loss),
  }
  assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_a_client_that_does_not_define_a_metric_has_none():
  nothing = np.zeros(B, bool)
  for task, z, y in (
    (tasks.multilabel(), np.ones((B, C)), np.ones((B, C), int)),
    (tasks.next_token(), np.ones((B, T, V)), np.zeros((B, T), int)),
    (tasks.regression(), np.ones((B, 1)), np.ones(B)),
    (tasks.binary(), np.ones((B, 1)), np.ones(B, int)),
  ):
    assert np.isnan(list(judged(task, z, y, nothing).values())).all(), task.name
  ignored = judged(tasks.next_token((2,)), np.ones((B, T, V)), np.full((B, T), 2))
  assert np.isnan(list(ignored.values())).all()
  inexact = judged(tasks.regression(), np.ones((7, 1)), np.full(7, 0.1), np.ones(7, bool))  # mean not 0.1
  assert np.isnan(inexact["r2"])
  alike = judged(tasks.regression(), np.ones((B, 1)), np.full(B, 2.0))
  assert np.isnan(alike.pop("r2")) and set(alike.values()) == {1.0}
  of_one_kind = judged(tasks.multilabel(), np.ones((B, C)), np.ones((B, C), int))
  assert np.isnan(of_one_kind.pop("auroc")) and of_one_kind["f1_macro"] == 1.0


@pytest.mark.parametrize(
  ("task", "z", "y"),
  [
    (tasks.multilabel(), np.full((B, C), np.nan), (np.arange(B)[:, None] + np.arange(C)) % 2),
    (tasks.next_token(), np.full((B, T, V), np.nan), np.zeros((B, T), int)),
    (tasks.regression(), np.full((B, 1), np.nan), np.arange(B)),
  ],
)
def test_a_model_that_diverged_is_wrong_everywhere(task, z, y):
  found = judged(task, z, y, np.ones(B, bool))
  assert found.pop("loss") == np.inf
  assert all(value in (0.0, np.inf, -np.inf) for value in found.values())


def test_weights_are_ordinary_values():
  """Also traced ones, as of a sweep's members; and one a label."""
  z, y = jnp.asarray(RNG.normal(size=(B, 2)), jnp.float32), jnp.asarray(RNG.integers(0, 2, (B, 2)))
  loss = lambda task, z, y: mean_loss(task, z, y, REAL)  # noqa: E731
  for w in (0.5, 1.0, 3.0):
    for make, outputs, labels in (
      (tasks.binary, z[:, :1], y[:, 0]),
      (tasks.multilabel, z, y),
      (lambda w: tasks.classification((1.0, w)), z, y[:, 0]),
      (lambda w: tasks.multilabel((2.0, w)), z, y),
    ):
      traced = jax.jit(lambda w, z, y, make=make: loss(make(w), z, y))(w, outputs, labels)
      np.testing.assert_allclose(traced, loss(make(w), outputs, labels), rtol=1e-6)
  each = [loss(tasks.binary(w), z[:, i : i + 1], y[:, i]) for i, w in enumerate((2.0, 3.0))]
  np.testing.assert_allclose(loss(tasks.multilabel((2.0, 3.0)), z, y), np.mean(each), rtol=1e-6)


def test_balanced_weights_let_every_class_count_alike():
  y = np.array([0] * 6 + [2] * 3 + [3])
  weights = np.array(tasks.balanced(y, 4))
  assert weights[1] == 0.0
  np.testing.assert_allclose((weights[y] @ np.eye(4)[y])[[0, 2, 3]], 10 / 4)
  answers = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]])
  assert tasks.balanced_positive(answers) == [1.0, 2.0, 1.0] and tasks.balanced_positive(answers[:, 0]) == 1.0


def test_a_mean_is_over_what_counts():
  values, mask = jnp.array([1.0, 2.0, 5.0]), jnp.array([True, True, False])
  assert mean_over(values, mask) == 1.5 and mean_over(values, mask, jnp.array([2.0, 4.0, 8.0])) == 0.5
  assert jnp.isnan(mean_over(values, mask, jnp.zeros(3))) and jnp.isnan(mean_over(values, ~mask & mask))


# Labels and outputs that do not fit.

ROWS = np.arange(B)


@pytest.mark.parametrize(
  ("task", "y", "num_classes", "says"),
  [
    (tasks.multilabel(), np.zeros(B, int), 3, r"y is int64 \(9,\), not \[N, A\]"),
    (tasks.multilabel(), np.where(np.arange(B)[:, None] == 5, 2, np.ones((B, 3), int)), 3,
     "y = 2: the label of row 5 is not one of the classes 0 to 1, no and yes"),
    (tasks.multilabel(), np.zeros((B, 3), int), 4, "num_classes = 4: y has 3 labels an example. Say"),
    (tasks.next_token(), np.zeros(B, int), V, r"not \[N, T\]"),
    (tasks.next_token(), np.full((B, T), V), V, f"y = {V}: the label of row 0 is not .* classes 0 to 5"),
    (tasks.next_token(), np.zeros((B, T)), V, "the label of row 0 is float64, not a whole number"),
    (tasks.next_token(), np.full((B, T), -2), V, "y = -2: .* Number the classes from 0"),
    (tasks.regression(), np.where(ROWS == 4, np.inf, 0.0), 1, "y = inf: the label of row 4 is not finite"),
    (tasks.regression(), np.arange(B) % 3, 3, "num_classes=1 .*leave out the task for classes"),
    (tasks.regression(), np.zeros((B, 2)), 1, "num_classes = 1: y has 2 numbers an example. Say"),
    (tasks.regression(), np.zeros(B).astype(str), 1, "not numbers"),
    (tasks.regression(), np.zeros((B, 2, 2)), 4, "more than two axes"),
    (tasks.regression(), np.zeros(B - 1), 1, "x has 9 examples"),
  ],
)  # fmt: skip
def test_a_label_that_a_task_does_not_have_is_named(task, y, num_classes, says):
  with pytest.raises(fh.SettingError, match=says):
    task.check(y, B, ROWS, num_classes)


def test_labels_that_a_task_has_pass_and_rows_that_nobody_uses_hold_anything():
  tasks.next_token((-1, 99)).check(np.full((B, T), 99), B, ROWS, V)
  tasks.multilabel().check(np.ones((B, 3), bool), B, ROWS, 3)
  tasks.regression().check(np.where(ROWS == 4, np.nan, 0.0), B, np.arange(4), 1)
  tasks.regression().check(np.arange(B), B, ROWS, 1)


@pytest.mark.parametrize(
  ("task", "y", "shape", "says"),
  [
    (tasks.classification(), np.zeros(B, int), (T, V), r"classification.*\[B, C\], .* \[B, 3, 6\]"),
    (tasks.classification((1.0, 2.0)), np.zeros(B, int), (3,), "class_weights = 2: .* 3 classes"),
    (tasks.binary(), np.zeros(B, int), (2,), r"binary.*\[B, 1\], .*\[B, 2\]"),
    (tasks.multilabel((1.0, 2.0)), np.zeros((B, 3), int), (3,), "positive_weight = 2: there are 3 labels"),
    (tasks.multilabel(jnp.ones(2)), np.zeros((B, 3), int), (3,), "positive_weight = 2: there are 3 labels"),
    (tasks.multilabel(), np.zeros((B, 3), int), (4,), r"\[B, 3\], one a label, .*\[B, 4\]"),
    (tasks.next_token(), np.zeros((B, T), int), (T + 1, V), r"\[B, 3, V\], .*\[B, 4, 6\]"),
    (
      tasks.next_token(),
      np.full((B, T), V),
      (T, V),
      "y = 6: .* the model's 6 logits.* give the model 7 logits",
    ),
    (tasks.next_token((0,)), np.zeros((B, T), int), (T, V), "no token of any client counts"),
    (tasks.regression(), np.zeros(B), (2,), r"\[B, 1\], .*\[B, 2\]"),
  ],
)
def test_outputs_that_do_not_fit_a_task_are_named(task, y, shape, says):
  with pytest.raises(fh.SettingError, match=says):
    task.check_outputs(y, ROWS, shape, 2)


@pytest.mark.parametrize(
  ("make", "says"),
  [
    (lambda: tasks.classification((1.0, -1.0)), "class_weights = -1.0"),
    (lambda: tasks.classification(2.0), r"class_weights = 2.0: not a row of numbers"),
    (lambda: tasks.classification(((1.0, 2.0),)), r"class_weights = .*: not a row of numbers"),
    (lambda: tasks.classification((1.0, None)), "class_weights = None: not a number"),
    (lambda: tasks.classification((0, 0.0)), "class_weights = .*: no class counts"),
    (lambda: tasks.binary(0.0), "positive_weight = 0.0"),
    (lambda: tasks.binary([1.0, 2.0]), r"positive_weight = \[1.0, 2.0\]: not a number"),
    (lambda: tasks.binary(np.ones(2)), "positive_weight = array.*: not a number"),
    (lambda: tasks.multilabel(-1.0), "positive_weight = -1.0"),
    (lambda: tasks.next_token((0.5,)), "ignore = 0.5"),
    (lambda: tasks.next_token(0), r"ignore = 0: not a row of ids. Write ignore=\(0,\)"),
  ],
)
def test_settings_of_tasks_are_checked(make, says):
  with pytest.raises(fh.SettingError, match=says):
    make()


# Examples that are trees.

PARTS = [np.array([0, 3, 4, 8]), np.array([1, 2, 5, 6, 7])]


def federate(x, **settings):
  return fh.federate(x, np.arange(B) % 2, PARTS, jax.random.key(0), num_classes=2, **settings)


def test_a_tree_of_examples_keeps_its_rows_together():
  tokens = np.arange(B * T).reshape(B, T)
  x = {
    "tokens": tokens,
    "mask": tokens % 2 > 0,
    "image": np.full((B, 2, 2), 255, np.uint8),
    "table": tokens * 1.0,
  }
  x["table"][3] = np.nan
  data = federate(x, test_fraction=0.25, valid_fraction=0.34)
  assert count_rows(data.x) == B and data.x["tokens"].dtype == np.int32 and data.x["image"].dtype == np.uint8
  for i, own in enumerate(PARTS):
    train = data.clients(jnp.int32(i))
    seen, _ = train.take(jnp.arange(int(train.size)))
    assert (seen["image"] == 1.0).all() and seen["mask"].dtype == bool
    np.testing.assert_array_equal(seen["mask"], seen["tokens"] % 2 > 0)
    rows = np.sort(np.concatenate([part.rows(np.array([i])) for part in (data.train, data.valid, data.test)]))
    assert sorted(data.x["tokens"][rows, 0] // T) == sorted(own)
    missing = data.x["tokens"][rows, 0] == 9
    known = data.x["tokens"][data.train.rows(np.array([i]))]
    known = known[known[:, 0] != 9].mean(0)
    np.testing.assert_allclose(data.x["table"][rows][missing], np.tile(known, (missing.sum(), 1)))
    np.testing.assert_array_equal(data.x["table"][rows][~missing], data.x["tokens"][rows][~missing])


@pytest.mark.parametrize(
  ("x", "settings", "says"),
  [
    ({"a": np.zeros((B, 2)), "b": np.zeros((B - 1, 2))}, {}, "different numbers of rows"),
    ({}, {}, "has no array"),
    ({"a": np.zeros((B, 2)), "b": "text"}, {}, "not rows of numbers"),
    ({"a": np.zeros((B, 2))}, {"scale": 0.5}, "x is a tree"),
    ({"a": np.zeros((B, 2))}, {"standardize": (0,)}, "x is {'a': 'float64"),
  ],
)
def test_trees_that_are_no_examples_are_named(x, settings, says):
  with pytest.raises(fh.SettingError, match=says):
    federate(x, **settings)


def test_only_classes_are_stratified():
  y = np.zeros((B, 2), int)
  with pytest.raises(fh.SettingError, match="stratify = True: the labels of multilabel are no classes"):
    fh.federate(
      y, y, PARTS, jax.random.key(0), num_classes=2, task=tasks.multilabel(), stratify=True, test_fraction=0.5
    )
