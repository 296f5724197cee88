"""Late evaluations: which rounds they are, and the range of a mean over the last fifth of a run."""

import warnings

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.engine.judged import fewer_late_rounds
from fedjax_het.errors import SettingError
from fedjax_het.metrics.late import is_due, late, late_rounds, over_rounds, unsettled


def last_fifth(rounds):
  """The rounds t > 0.8 T, in exact arithmetic: 5 t > 4 T."""
  return [t for t in range(1, rounds + 1) if 5 * t > 4 * rounds]


@pytest.mark.parametrize("eval_every", [None, 1, 3, 50, 10_000])
@pytest.mark.parametrize("rounds", [1, 2, 4, 5, 9, 10, 100, 103, 500])
def test_the_last_fifth_has_as_many_judged_rounds_as_asked_for(rounds, eval_every):
  there = last_fifth(rounds)
  due = [t for t in there if is_due(t, rounds, eval_every)]
  for count in (0, 1, 2, 7, 10, 1000):
    added = late_rounds(rounds, eval_every, count)
    judged = sorted({*added, *due})
    assert not {*added} & {*due} and {*judged} <= {*there} and len(judged) == len(added) + len(due)
    assert len(judged) == max(len(due), min(count, len(there))), "no more than is asked for, and no fewer"
    assert added == sorted(added)


def test_late_rounds_are_even():
  assert late_rounds(500, 50, 10) == [410, 420, 430, 440, 460, 470, 480, 490]
  assert late_rounds(500, None, 10) == [*range(410, 500, 10)]
  assert late_rounds(100, 15, 4) == [85, 95]  # 90 and 100 are judged anyway: parts of 5, 5, 5 and 5
  assert late_rounds(500, 10, 10) == [] == late_rounds(500, 50, 2)
  assert late_rounds(1, None, 10) == [] == late_rounds(4, 3, 10)


def test_more_than_the_last_fifth_has_is_told():
  (note,) = fewer_late_rounds(4, 10)
  assert note == "late_evaluations = 10, and the last fifth of 4 rounds has 1 round: all are judged."
  assert "has 2 rounds" in fewer_late_rounds(10, 3)[0]
  assert fewer_late_rounds(10, 2) == [] == fewer_late_rounds(1, 0)


def test_the_range_is_numpys():
  means = {t: 0.5 + 0.1 * np.sin(t) for t in range(10, 101, 10)}
  judged = [(t, {"global": {"top1": {"mean": own, "std": 9.0}}}) for t, own in means.items()]
  own = late(judged, 100)["global"]["top1"]
  values = np.array([means[90], means[100]])
  assert own == {"count": 2, "min": values.min(), "max": values.max(), "std": values.std()}
  assert over_rounds([None, np.nan, 0.5]) == {"count": 1, "min": 0.5, "max": 0.5, "std": 0.0}
  nothing = over_rounds([np.nan])
  assert nothing["count"] == 0 and np.isnan([nothing["min"], nothing["max"], nothing["std"]]).all()


def summary(late_std, std=0.1, clients=100, metric="top1", **more):
  own = {"count": 10, "min": 0.8, "max": 0.9, "std": late_std}
  return {
    "num_clients": clients, "metrics": {"global": {metric: {"mean": 0.9, "std": std}}},
    "late": {"global": {metric: own}}, **more,
  }  # fmt: skip


def test_a_mean_is_marked_beyond_half_a_point_and_a_standard_error():
  assert unsettled(summary(0.011), "global", "top1")["max"] == 0.9  # a standard error is .1 / √100
  assert not unsettled(summary(0.009), "global", "top1")
  assert unsettled(summary(0.006, std=0.01), "global", "top1")
  assert not unsettled(summary(0.004, std=0.01), "global", "top1")  # less than half a point
  assert not unsettled(summary(0.02, clients=16, left_out={"global": {"top1": 7}}), "global", "top1")
  assert unsettled(summary(0.026, clients=16), "global", "top1")
  assert not unsettled(summary(0.013, honest=50), "global", "top1")  # .1 / √50
  assert unsettled(summary(0.015, honest=50), "global", "top1")
  for evaluated in ({"end": 100, "before": 25}, {"end": 100, "before": "participants"}):  # .1 / √25
    of_some = dict(evaluated=evaluated, cohort_size=25)
    assert not unsettled(summary(0.019, **of_some), "global", "top1")
    assert unsettled(summary(0.021, **of_some), "global", "top1")
  assert not unsettled(summary(3.0, metric="loss"), "global", "loss")  # not in points
  assert unsettled(summary(0.02, metric="auroc"), "global", "auroc")
  for lacking in ({}, {"late": None}, summary(None), summary(0.1, std=None), {"late": {"global": {}}}):
    assert unsettled(lacking, "global", "top1") is None


@pytest.fixture(scope="module")
def federation():
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(60, 2, 2, 1)).astype(np.float32), rng.integers(0, 3, 60)
  parts = np.array_split(np.arange(60), 6)
  return fh.federate(x, y, parts, jax.random.key(0), num_classes=3, test_fraction=0.5)


def settings(data, **more):
  return {"data": data, "rounds": 10, "cohort_size": 3, "devices": 1, **more}


@pytest.mark.slow
def test_a_run_has_the_range_of_its_history_and_the_same_state(federation):
  algorithm = fh.federated(fh.fedavg(fh.models.logistic_regression((2, 2, 1), 3), lr=0.5))
  plain = fh.run(algorithm, key=jax.random.key(1), **settings(federation, eval_every=4))
  with pytest.warns(UserWarning, match=r"late_evaluations = 5.*has 2 rounds: all are judged"):
    found = fh.run(algorithm, key=jax.random.key(1), **settings(federation, eval_every=4, late_evaluations=5))
  assert [own["round"] for own in plain.history] == [4, 8, 10]
  assert [own["round"] for own in found.history] == [4, 8, 9, 10]
  assert [own for own in found.history if own["round"] != 9] == plain.history  # training losses too
  for one, other in zip(jax.tree.leaves(found.state.broadcast), jax.tree.leaves(plain.state.broadcast)):
    np.testing.assert_array_equal(one, other)
  values = np.array([own["metrics"]["global"]["loss"]["mean"] for own in found.history[2:]])
  expected = {"count": 2, "min": values.min(), "max": values.max(), "std": values.std()}
  assert found.late["global"]["loss"] == expected
  assert plain.late["global"]["loss"]["count"] == 1 and "late" in repr(found)


@pytest.mark.slow
def test_a_sweep_has_the_range_of_each_member(federation):
  def make(lr):
    return fh.federated(fh.fedavg(fh.models.logistic_regression((2, 2, 1), 3), lr=lr))

  own = settings(federation, eval_every=4, late_evaluations=2)
  together = fh.sweep(make, {"lr": [0.1, 0.5]}, [3], **own)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for lr, late_of_member in zip((0.1, 0.5), together.late):
      alone = fh.run(make, key=jax.random.key(3), settings={"lr": lr}, **own)
      assert alone.late == late_of_member
  assert sorted(together.history) == [4, 8, 9, 10]


def test_bad_counts_are_refused(federation):
  algorithm = fh.federated(fh.fedavg(fh.models.logistic_regression((2, 2, 1), 3)))
  for value in (-1, 1.5):
    with pytest.raises(SettingError, match="late_evaluations"):
      fh.run(algorithm, key=jax.random.key(1), **settings(federation, late_evaluations=value))
