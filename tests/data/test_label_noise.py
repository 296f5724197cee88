"""Label noise: by the matrices of eq. 2.7 and 2.8, on training labels alone, whoever has them."""

import json

import jax
import numpy as np
import pytest
from changed_configs import with_values
from launching import small
from rich.console import Console
from scipy import stats

import fedjax_het as fh
from configs import table_2_6
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.report import report
from fedjax_het.program.where import Where

KEY = jax.random.key(5)
Y = np.random.default_rng(0).integers(0, 5, 60_000)


def pair(epsilon):
  """Eq. 2.7, written out."""
  a, b = 1 - epsilon, epsilon
  return [[a, b, 0, 0, 0], [0, a, b, 0, 0], [0, 0, a, b, 0], [0, 0, 0, a, b], [b, 0, 0, 0, a]]


def symmetric(epsilon):
  """Eq. 2.8, written out."""
  a, b = 1 - epsilon, epsilon / 4
  return [[a, b, b, b, b], [b, a, b, b, b], [b, b, a, b, b], [b, b, b, a, b], [b, b, b, b, a]]


def frequencies(before, after):
  counts = np.zeros((5, 5))
  np.add.at(counts, (before, after), 1)
  return counts


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.6])
@pytest.mark.parametrize(
  ("flip", "written"), [(fh.data.pair_flip, pair), (fh.data.symmetric_flip, symmetric)]
)
def test_labels_move_as_often_as_the_equations_say(flip, written, ratio):
  wanted = np.array(written(ratio))
  np.testing.assert_allclose(flip(5, ratio), wanted, rtol=1e-12)
  for dtype in (np.int32, np.uint8):
    noisy = fh.data.label_noise(KEY, Y.astype(dtype), flip(5, ratio))
    assert noisy.dtype == dtype
    counts = frequencies(Y, noisy)
    for own, probabilities in zip(counts, wanted, strict=True):
      possible = probabilities > 0
      assert own[~possible].sum() == 0
      assert stats.chisquare(own[possible], probabilities[possible] * own.sum()).pvalue > 1e-3


def test_of_two_labels_both_noises_are_the_same():
  """Of yes and no, also as bool, as a binary task may have them."""
  np.testing.assert_array_equal(fh.data.pair_flip(2, 0.3), fh.data.symmetric_flip(2, 0.3))
  noisy = fh.data.label_noise(KEY, Y > 1, fh.data.pair_flip(2, 0.3))
  assert noisy.dtype == bool
  assert stats.binomtest(int((noisy != (Y > 1)).sum()), len(Y), 0.3).pvalue > 1e-3


def test_draws_are_by_place_and_key_and_independent_of_one_another():
  flip = fh.data.symmetric_flip(5, 0.5)
  noisy = fh.data.label_noise(KEY, Y, flip)
  np.testing.assert_array_equal(noisy, fh.data.label_noise(KEY, Y, flip))
  np.testing.assert_array_equal(noisy[:100], fh.data.label_noise(KEY, Y[:100], flip))
  other = np.where(np.arange(len(Y)) % 2, Y, (Y + 1) % 5)  # every second label is another
  np.testing.assert_array_equal(noisy[1::2], fh.data.label_noise(KEY, other, flip)[1::2])
  moved, elsewhere = noisy != Y, fh.data.label_noise(jax.random.key(6), Y, flip) != Y
  for a, b in ((moved[1:], moved[:-1]), (moved, elsewhere)):
    assert abs(np.mean(a & b) - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(a))


@pytest.mark.parametrize("flip", [fh.data.pair_flip, fh.data.symmetric_flip])
def test_no_noise_is_the_identity_and_all_noise_leaves_no_label(flip):
  same = fh.data.label_noise(KEY, Y, flip(5, 0.0))
  np.testing.assert_array_equal(same, Y)
  assert (fh.data.label_noise(KEY, Y, flip(5, 1.0)) != Y).all()
  beyond = np.array([-1, 0, 7])  # rows that nobody has may hold anything
  np.testing.assert_array_equal(fh.data.label_noise(KEY, beyond, flip(2, 1.0)), [-1, 1, 7])


def test_what_is_no_noise_is_named():
  for flip in (fh.data.pair_flip, fh.data.symmetric_flip):
    for setting, given in (("num_classes", (1, 0.1)), ("ratio", (3, 1.5)), ("ratio", (3, -0.1))):
      with pytest.raises(SettingError, match=f"^{setting} = "):
        flip(*given)
  for transition in ([[1.0, 0.0]], [[0.5, 0.6], [0, 1]], [[1.5, -0.5], [0, 1]]):
    with pytest.raises(SettingError, match=r"^transition = "):
      fh.data.label_noise(KEY, Y, transition)
  with pytest.raises(SettingError, match=r"^key = 3.*jax\.random\.key\(3\)"):
    fh.data.label_noise(3, Y, fh.data.pair_flip(5, 0.1))


def noisy_cell(clients, ratio=0.4, name="pair", **changes):
  given = {"name": name, "ratio": ratio} if name else {}
  changes = {"partition__alpha": 100.0, "cohort_size": 2} | changes
  return build(plan(small(num_clients=clients, label_noise=given, **changes))).data


def by_example(data, part):
  """Label by example, as bytes."""
  rows = getattr(data, part).rows()
  return dict(zip([x.tobytes() for x in data.x[rows]], data.y[rows].tolist()))


def test_a_run_trains_and_validates_on_noisy_labels_and_is_tested_on_clean_ones():
  clean, noisy = noisy_cell(10, name=None), noisy_cell(10)
  np.testing.assert_array_equal(noisy.x, clean.x)  # the same split
  np.testing.assert_array_equal(noisy.y[noisy.test.rows()], clean.y[clean.test.rows()])
  for part in ("train", "valid"):
    rows = getattr(clean, part).rows()
    ups = (noisy.y - clean.y)[rows] % 10
    assert set(ups) == {0, 1} and 0.3 < ups.mean() < 0.5
  np.testing.assert_array_equal(noisy_cell(10, ratio=0.0).y, clean.y)


def test_labels_to_train_on_are_checked_like_all_and_may_be_of_any_task():
  x, parts = np.zeros((9, 2), np.float32), np.split(np.arange(9), 3)
  with pytest.raises(SettingError, match=r"y = .*row 4"):
    fh.federate(x, np.zeros(9, int), parts, KEY, num_classes=2, train_y=np.arange(9) // 4 * 2)
  y, task = np.arange(18.0).reshape(9, 2), fh.tasks.regression()
  data = fh.federate(x, y, parts, KEY, num_classes=2, task=task, test_fraction=0.4, train_y=-y)
  assert (data.y[data.test.rows()] >= 0).all() and (data.y[data.train.rows()] <= 0).all()


def test_noise_does_not_depend_on_the_clients():
  """An example that two federations train on has the same label in both."""
  few, many = (by_example(noisy_cell(clients), "train") for clients in (4, 25))
  assert len(few.keys() & many.keys()) > 700
  assert all(few[x] == many[x] for x in few.keys() & many.keys())


BAD = {
  "name": (dict(name="pear"), r"label_noise\.name = 'pear': unknown\. Did you mean 'pair'"),
  "no name": (dict(ratio=0.1), "label_noise = .*has no name, and so no effect"),
  "no ratio": (dict(name="pair"), r"label_noise\.ratio = None"),
  "ratio": (dict(name="pair", ratio=1.5), "ratio = 1.5: out of range"),
  "setting": (dict(name="pair", rate=0.5), r"label_noise\.rate = 0\.5.*Did you mean 'ratio'"),
  "classes": (dict(name="pair", ratio=0.5, num_classes=3), "label_noise.num_classes = 3: comes from"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sections_are_named(name):
  given, message = BAD[name]
  with pytest.raises(SettingError, match=message):
    build(plan(small(label_noise=given)))


def test_labels_that_are_no_classes_are_refused():
  config = small(
    label_noise={"name": "pair", "ratio": 0.1}, task={"name": "regression"}, algorithm={"name": "fedavg"},
    partition={"name": "iid"},
  )  # fmt: skip
  with pytest.raises(SettingError, match=r"label_noise = .*the labels of regression are no classes"):
    build(plan(config))


def cell_on_digits():
  config = table_2_6.get_config("noise=symmetric,ratio=0.6,algorithm=fedavg")
  assert config.partition.to_dict() == {"name": "dirichlet", "alpha": 10.0} and config.num_clients == 100
  config.update(dataset="digits", model={"name": "logistic_regression"}, rounds=2, num_clients=10)
  config.local.epochs = 1
  return config


def test_a_run_says_how_many_labels_are_wrong():
  noisy, clean = (
    build(plan(cell_on_digits())),
    build(plan(with_values(cell_on_digits(), {"label_noise": {}}))),
  )
  rows = np.concatenate([noisy.data.train.rows(), noisy.data.valid.rows()])
  changed = np.mean(noisy.data.y[rows] != clean.data.y[rows])
  assert noisy.label_noise == {"name": "symmetric", "ratio": 0.6, "changed": changed}
  assert 0.55 < changed < 0.65 and clean.label_noise is None
  np.testing.assert_array_equal(noisy.source.y, clean.source.y)  # which the picture of the partition shows
  console = Console(width=200)
  with console.capture() as capture:
    console.print(report({"label_noise": noisy.label_noise}))
  wrong = f"{100 * changed:.1f} % of training and validation labels are wrong"
  assert f"label noise: symmetric, ratio 0.6; {wrong}" in capture.get()


@pytest.mark.slow
def test_a_cell_of_table_2_6_is_run(tmp_path):
  summary = run_experiment(cell_on_digits(), str(tmp_path), Where(devices=1))
  assert summary["label_noise"] == build(plan(cell_on_digits())).label_noise
  assert json.loads((tmp_path / "summary.json").read_text()) == summary
  clean = run_experiment(
    with_values(cell_on_digits(), {"label_noise": {}}), str(tmp_path / "clean"), Where(devices=1)
  )
  assert "label_noise" not in clean
  assert clean["metrics"]["global"]["top1"]["mean"] > summary["metrics"]["global"]["top1"]["mean"] + 0.1


@pytest.mark.parametrize("labels", [Y + 0.5, np.stack([Y, Y], 1), np.array(3)])
def test_what_are_no_classes(labels):
  with pytest.raises(SettingError, match=r"labels = .*: not one whole number an example\. Give classes"):
    fh.data.label_noise(KEY, labels, fh.data.pair_flip(5, 0.1))


def test_a_label_that_is_no_class_of_the_matrix_stays():
  assert fh.data.label_noise(KEY, [-1, 5, 0], fh.data.pair_flip(5, 1.0)).tolist() == [-1, 5, 1]
