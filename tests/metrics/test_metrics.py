"""Classification and fairness metrics against independent arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, top_k_accuracy_score

from fedjax_het.metrics.catalogue import METRICS
from fedjax_het.metrics.classification import auroc, calibration_errors, metrics, rank_of_label, scores
from fedjax_het.metrics.fairness import gini, left_out, summarize, summarize_all


def evaluate(logits, labels, mask):
  return metrics(scores(logits, labels), labels, mask)


NAMES = ["ece", "loss", "mce", "top1", "top5"]
run = jax.jit(evaluate)


def draw(seed, n=200, classes=10, scale=2.0):
  rng = np.random.default_rng(seed)
  logits = (scale * rng.standard_normal((n, classes))).astype(np.float32)
  labels = np.where(rng.random(n) < 0.5, logits.argmax(1), rng.integers(0, classes, n))
  return logits, labels, np.ones(n, bool)


def softmax(logits):
  z = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
  return z / z.sum(1, keepdims=True)


def calibration_loop(confidence, correct, bins=15):
  """Bin by bin, example by example: weighted and largest |accuracy - confidence|."""
  ece, mce = 0.0, 0.0
  for b in range(bins):
    inside = [n for n, c in enumerate(confidence) if b / bins < c <= (b + 1) / bins]
    if inside:
      accuracy = sum(bool(correct[n]) for n in inside) / len(inside)
      gap = abs(accuracy - sum(confidence[n] for n in inside) / len(inside))
      ece += gap * len(inside) / len(confidence)
      mce = max(mce, gap)
  return ece, mce


@pytest.mark.parametrize("classes, scale", [(10, 2.0), (10, 0.1), (62, 6.0), (5, 1.0), (3, 1.0), (2, 1.0)])
def test_matches_sklearn_and_the_loop(classes, scale):
  logits, labels, mask = draw(classes, classes=classes, scale=scale)
  p, names = softmax(logits), np.arange(classes)
  got = {name: float(value) for name, value in run(logits, labels, mask).items()}
  assert sorted(got) == (["auroc", *NAMES] if classes == 2 else NAMES)
  if classes == 2:
    assert got["auroc"] == pytest.approx(roc_auc_score(labels, p[:, 1]), abs=1e-6)
  assert got["top1"] == pytest.approx(accuracy_score(labels, p.argmax(1)), abs=1e-6)
  top5 = top_k_accuracy_score(labels, p, k=5, labels=names) if classes > 5 else 1.0
  assert got["top5"] == pytest.approx(top5, abs=1e-6)
  assert got["loss"] == pytest.approx(log_loss(labels, p, labels=names), rel=1e-5)
  ece, mce = calibration_loop(p.max(1), p.argmax(1) == labels)
  assert got["ece"] == pytest.approx(ece, abs=1e-5)
  assert got["mce"] == pytest.approx(mce, abs=1e-5)


@pytest.mark.slow
def test_types_and_jit_and_vmap():
  logits, labels, mask = draw(0, n=60)
  batch = [jnp.stack([jnp.asarray(v), jnp.asarray(v)[::-1]]) for v in (logits, labels, mask & (labels > 2))]
  whole = jax.vmap(evaluate)(*batch)
  for i in range(2):
    eager = evaluate(*(v[i] for v in batch))
    for name in NAMES:
      assert eager[name].dtype == jnp.float32 and eager[name].shape == ()
      np.testing.assert_allclose(whole[name][i], eager[name], rtol=1e-6)
      np.testing.assert_allclose(run(*(v[i] for v in batch))[name], eager[name], rtol=1e-6)
  half = evaluate(jnp.asarray(logits, jnp.bfloat16), labels, mask)
  assert all(value.dtype == jnp.float32 for value in half.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 17, 50]))
def test_a_mask_is_a_slice_whatever_it_hides(seed, count):
  logits, labels, _ = draw(seed, n=50)
  mask = np.random.default_rng(seed).permutation(50) < count
  kept = {name: float(value) for name, value in run(logits[mask], labels[mask], mask[mask]).items()}
  logits[~mask], labels[~mask] = np.nan, -7
  for name, value in run(logits, labels, mask).items():
    assert float(value) == pytest.approx(kept[name], rel=1e-5, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 20.0))
def test_ranges_and_order_of_examples(seed, scale):
  logits, labels, mask = draw(seed, n=50, scale=scale)
  got = run(logits, labels, mask)
  assert 0 <= got["ece"] <= got["mce"] + 1e-6 <= 1 + 2e-6
  assert 0 <= got["top1"] <= got["top5"] <= 1 and got["loss"] >= 0
  order = np.random.default_rng(seed).permutation(50)
  for name, value in run(logits[order], labels[order], mask).items():
    assert float(value) == pytest.approx(float(got[name]), rel=1e-5, abs=1e-6)


def test_ties_go_to_the_lower_class():
  labels = np.arange(10)
  np.testing.assert_array_equal(rank_of_label(jnp.zeros((10, 10)), labels), labels)
  constant = run(np.zeros((10, 10), np.float32), labels, np.ones(10, bool))
  assert float(constant["top1"]) == pytest.approx(0.1) and float(constant["top5"]) == pytest.approx(0.5)
  assert float(constant["ece"]) == pytest.approx(0.0, abs=1e-6)


def test_bins_are_closed_on_the_right():
  edge = np.float32(1 / 3)  # the edge between bins 4 and 5; the next float up lies in bin 5
  confidence = np.array([edge, np.nextafter(edge, np.float32(1)), 1.0, 1.0], np.float32)
  ece, mce = calibration_errors(confidence, np.array([True, False, True, False]), np.ones(4, bool))
  assert float(mce) == pytest.approx(2 / 3, abs=1e-6)  # apart; in one bin their mean would be 1/6
  assert float(ece) == pytest.approx((2 / 3 + 1 / 3 + 1) / 4, abs=1e-6)


def test_no_example_is_nan_and_a_nan_model_is_not():
  logits, labels, mask = draw(1, n=20)
  assert all(np.isnan(value) for value in run(logits, labels, ~mask).values())
  got = run(np.full_like(logits, np.nan), labels, mask)
  assert float(got["top1"]) == np.mean(labels < 0) == 0.0
  assert np.isinf(got["loss"]) and float(got["ece"]) == float(got["mce"]) == 1.0


# Binary tasks.


def pairwise_auroc(scores, labels):
  pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
  return np.mean(pairs) if pairs else np.nan


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 5, 300]), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_auroc_is_the_share_of_ordered_pairs(seed, levels, positives):
  rng = np.random.default_rng(seed)
  scores = rng.integers(-levels, levels, 60).astype(np.float32) / 3
  scores[rng.random(60) < 0.05] = np.inf
  labels, mask = (rng.random(60) < positives).astype(np.int32), rng.random(60) < 0.8
  got = float(jax.jit(auroc)(np.where(mask, scores, np.nan), labels, mask))
  assert got == pytest.approx(pairwise_auroc(scores[mask], labels[mask]), abs=1e-6, nan_ok=True)
  if 0 < labels[mask].sum() < mask.sum():
    finite = np.minimum(scores, 1e9)
    assert got == pytest.approx(roc_auc_score(labels[mask], finite[mask]), abs=1e-6)


def test_auroc_of_many_rows_and_of_a_single_class():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 2, 200_000)
  scores = np.round(rng.normal(labels), 2).astype(np.float32)
  whole = np.ones(len(labels), bool)
  assert float(jax.jit(auroc)(scores, labels, whole)) == pytest.approx(
    roc_auc_score(labels, scores), abs=1e-5
  )
  for label in (0, 1):
    got = run(scores[:50, None], np.full(50, label), whole[:50])
    assert np.isnan(got["auroc"]) and not np.isnan(got["top1"])
  assert np.isnan(run(scores[:50, None], labels[:50], ~whole[:50])["auroc"])


@pytest.mark.parametrize("scale", [0.1, 2.0, 50.0])
def test_one_logit(scale):
  rng = np.random.default_rng(3)
  logit = (scale * rng.standard_normal(200)).astype(np.float32)
  labels, mask = (rng.random(200) < 0.5).astype(np.int32), np.ones(200, bool)
  z = logit.astype(np.float64)
  p = 1 / (1 + np.exp(-z))
  got = {name: float(value) for name, value in run(logit[:, None], labels, mask).items()}
  assert got["top1"] == pytest.approx(np.mean((z > 0) == labels)) and got["top5"] == 1.0
  assert got["loss"] == pytest.approx(np.mean(np.logaddexp(0, z) - labels * z), rel=1e-5)
  assert got["auroc"] == pytest.approx(roc_auc_score(labels, z), abs=1e-6)
  ece, mce = calibration_loop(np.maximum(p, 1 - p).astype(np.float32), (z > 0) == labels)
  assert got["ece"] == pytest.approx(ece, abs=1e-5) and got["mce"] == pytest.approx(mce, abs=1e-5)
  two = run(np.stack([np.zeros_like(logit), logit], 1), labels, mask)
  assert got == {name: float(value) for name, value in two.items()}


def test_one_logit_at_zero_and_nan():
  zero = run(np.zeros((4, 1), np.float32), np.array([0, 1, 0, 0]), np.ones(4, bool))
  assert float(zero["top1"]) == 0.75 and float(zero["auroc"]) == 0.5  # a tie goes to class 0
  assert float(zero["loss"]) == pytest.approx(np.log(2))
  broken = run(np.full((4, 1), np.nan, np.float32), np.array([0, 1, 0, 1]), np.ones(4, bool))
  assert float(broken["top1"]) == float(broken["auroc"]) == 0.0
  assert np.isinf(broken["loss"]) and float(broken["ece"]) == 1.0


@pytest.mark.slow
def test_binary_metrics_under_vmap():
  logits, labels, _ = draw(2, n=40, classes=2)
  mask = np.arange(40) < np.array([[40], [17], [1], [0]])
  whole = jax.vmap(evaluate, (None, None, 0))(logits, labels, mask)
  for i in range(4):
    for name, value in run(logits, labels, mask[i]).items():
      np.testing.assert_allclose(whole[name][i], value, rtol=1e-6)


# Fairness.

values = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=60)


def pairwise_gini(x):
  return sum(abs(a - b) for a in x for b in x) / (2 * len(x) * sum(x)) if sum(x) else 0.0


@settings(max_examples=100, deadline=None)
@given(values, st.booleans(), st.randoms())
def test_fairness_properties(x, higher, random):
  got = summarize(x, higher)
  assert 0 <= got["gini"] < 1 and got["gap"] >= 0 and got["std"] >= 0
  assert got["gini"] == pytest.approx(pairwise_gini(x), abs=1e-9)
  assert (got["worst10"] <= got["best10"]) if higher else (got["worst10"] >= got["best10"])
  shuffled = random.sample(x, len(x))
  assert summarize(shuffled, higher) == got
  assert summarize([*x, float("nan")], higher) == got


def test_summarize_by_hand():
  x = np.arange(25, dtype=np.float32)[::-1] / 25
  got = summarize(x)
  assert got["mean"] == pytest.approx(0.48) and got["std"] == pytest.approx(np.std(np.arange(25)) / 25)
  assert got["worst10"] == pytest.approx(0.02) and got["best10"] == pytest.approx(0.94)
  assert got["gap"] == pytest.approx(0.96)
  loss = summarize(x, higher_is_better=False)
  assert loss["worst10"] == got["best10"] and loss["best10"] == got["worst10"] and loss["gap"] == got["gap"]
  assert all(type(value) is float for value in got.values())


@pytest.mark.parametrize("k", [1, 4, 9, 10, 19, 20])
def test_a_tenth_is_at_least_one_client(k):
  x = np.arange(k) / k
  assert summarize(x)["worst10"] == pytest.approx(x[: max(1, k // 10)].mean())


def test_equal_clients_have_no_spread():
  got = summarize([0.1] * 7)  # whose mean is not 0.1 to the last bit
  assert got["std"] == got["gini"] == got["gap"] == 0.0 and got["worst10"] == got["best10"] == 0.1


def test_gini_edges():
  assert gini([0.0, 0.0, 0.0]) == 0.0
  assert gini([0.3] * 7) == 0.0
  assert gini([0.0, 0.0, 0.0, 1.0]) == pytest.approx(0.75)
  assert gini([5e-324, 1e308]) == pytest.approx(0.5)
  assert np.isnan(gini([-1.0, 1.0])) and np.isnan(gini([1.0, np.inf]))


def test_nobody_left_and_a_diverged_client():
  assert all(np.isnan(value) for value in summarize([np.nan, np.nan]).values())
  assert summarize([1.0, np.inf], higher_is_better=False)["worst10"] == np.inf
  with pytest.raises(ValueError, match="one number a client"):
    summarize(np.zeros((3, 2)))


@pytest.mark.slow
def test_a_client_of_one_class_is_left_out_of_auroc_and_counted():
  """Three of five clients have both classes: the figures are theirs, against scikit-learn's AUROC."""
  rng = np.random.default_rng(5)
  scores, labels = rng.normal(size=(5, 8)).astype(np.float32), rng.integers(0, 2, (5, 8))
  labels[1], labels[3] = 0, 1
  got = jax.vmap(evaluate)(scores[..., None], labels, np.ones((5, 8), bool))
  mixed = [float(roc_auc_score(labels[i], scores[i])) for i in (0, 2, 4)]
  for name, value in summarize_all(got)["auroc"].items():
    assert value == pytest.approx(summarize(mixed)[name], abs=1e-6)
  assert summarize_all(got)["auroc"]["mean"] == pytest.approx(np.mean(mixed), abs=1e-6)
  assert left_out(got) == {"auroc": 2}
  assert left_out({"top1": [1.0, np.nan], "loss": [np.inf, np.nan], "ece": [0.0, 0.0]}) == {
    "top1": 1,
    "loss": 1,
  }


def test_summarize_all_knows_the_direction():
  x = np.linspace(0, 1, 30)
  got = summarize_all(dict.fromkeys(METRICS, x))
  low = {"loss", "ece", "mce", "mse", "rmse", "mae", "perplexity"}
  assert {name for name, own in got.items() if own["worst10"] > 0.9} == low
  assert all(got[name] == summarize(x) and got[name]["worst10"] < 0.1 for name in set(METRICS) - low)
  with pytest.raises(ValueError, match="'bleu' good or bad"):
    summarize_all({"bleu": x})
