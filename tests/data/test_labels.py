"""Labels that a model cannot have, and rows that are missing or come twice, are named at once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import CLASSES, FEATURES, federation, mlp

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data.container import Part
from fedjax_het.experiment import build
from fedjax_het.tasks.labels import check_axes

KEY = jax.random.key(0)
N = 12
X = np.zeros((N, 3), np.float32)
Y = np.arange(N) % 2
PARTS = [np.arange(5), np.arange(5, 12)]


def one_wrong(label, row=7):
  return np.where(np.arange(N) == row, label, Y)


@pytest.mark.parametrize("y", [Y, Y.astype(bool), Y.tolist(), Y.astype(np.uint8), jnp.asarray(Y)])
def test_whole_numbers_and_yes_or_no_are_labels(y):
  data = fh.federate(X, y, PARTS, KEY, num_classes=2)
  assert data.y.dtype == np.int32
  assert np.sort(data.y).tolist() == np.sort(Y).tolist()


def test_rows_that_nobody_has_may_hold_anything():
  data = fh.federate(X, one_wrong(-1, row=11), [np.arange(5), np.arange(5, 11)], KEY, num_classes=2)
  assert data.y.min() == 0


@pytest.mark.parametrize(
  ("y", "says"),
  [
    (Y.astype(np.float32), "y = 0.0: the label of row 0 is float32, not a whole number. .*y.astype"),
    (Y + 0.5, "y = 0.5: .* These look like regression targets, not classes: give task="),
    (one_wrong(np.nan, row=2), "y = nan: the label of row 2 is missing.*leave rows without a label out"),
    (Y.astype(object), "y = 0: the label of row 0 is object, not a whole number. .*y.astype"),
    (one_wrong(None, row=2), "y = None: the label of row 2 is missing"),
    (np.ma.masked_array(Y, np.arange(N) == 2), "y = masked: the label of row 2 is masked. .*out of parts"),
    (np.float32(1.0), "y = 1.0: one value, and x has 12 examples. Give one label per row"),
    (Y.astype(str), "y = '0': the label of row 0 is .*not a whole number"),
    (Y[:, None], r"y = \[0\]: .*y is int64 \(12, 1\), not \[N\]. Squeeze it"),
    (np.eye(2)[Y], r"y = \[1.0, 0.0\]: .*argmax"),
    (2 * Y - 1, r"y = -1: the label of row 0 is .* 0 to 1\. Write 0 for -1: \(y \+ 1\) // 2"),
    (one_wrong(-3), r"y = -3: the label of row 7 .* Number the classes from 0\."),
    (one_wrong(2), "y = 2: the label of row 7 is not one of the classes 0 to 1. .*num_classes=3"),
    (one_wrong(255).astype(np.uint8), "y = 255: the label of row 7"),
    (Y[:-1], "y = '11 labels': x has 12 examples"),
  ],
)
def test_a_label_that_is_no_class_is_named_with_its_remedy(y, says):
  with pytest.raises(fh.SettingError, match=says) as error:
    fh.federate(X, y, PARTS, KEY, num_classes=2)
  assert error.value.setting == "y"


def test_labels_of_other_axes_of_which_there_are_none():
  with pytest.raises(fh.SettingError, match=r"^y = \[\]: .*\(0, 3\), not \[N\]"):
    check_axes(np.zeros((0, 3), int), "[N]")


@pytest.mark.parametrize("num_classes", [2.5, "3", None, 0])
def test_a_number_of_classes_is_a_whole_number_from_one(num_classes):
  with pytest.raises(fh.SettingError, match=f"^num_classes = {num_classes!r}: "):
    fh.federate(X, Y, PARTS, KEY, num_classes=num_classes)


def test_examples_and_parts_may_be_lists_or_arrays_of_rows():
  rows = np.arange(N).reshape(2, N // 2)
  examples = np.arange(2 * N, dtype=np.float32).reshape(N, 2)
  listed, data = (fh.federate(x, Y, rows, KEY, num_classes=2) for x in (examples.tolist(), examples))
  assert data.num_clients == 2 and listed.x.dtype == np.float32
  np.testing.assert_array_equal(listed.x, data.x)
  for i, own in enumerate(rows):
    found = [data.x[part.rows(np.array([i]))] for part in (data.train, data.valid, data.test)]
    np.testing.assert_array_equal(np.sort(np.concatenate(found), axis=0), examples[own])


@pytest.mark.parametrize(
  ("x", "says"),
  [
    ([[0.0, 1.0]] * (N - 1) + [[0.0]], "x = 'list': its rows are not equally long"),
    (X.astype(object), "x = 'object .*not rows of numbers. .*float32"),
    (np.float32(1.0), "not rows of numbers"),
    (np.ma.masked_equal(np.arange(N), 3), "x = 'a masked array': .*filled"),
  ],
)
def test_what_are_no_examples_is_named(x, says):
  with pytest.raises(fh.SettingError, match=says):
    fh.federate(x, Y, PARTS, KEY, num_classes=2)


@pytest.mark.parametrize(
  ("parts", "says"),
  [
    ([np.arange(5), np.arange(4, 12)], "parts = 4: clients 0 and 1 both have this row"),
    ([np.arange(5), np.array([8, 6, 8])], "parts = 8: client 1 has this row twice"),
    ([np.arange(5), np.array([6, 12])], "parts = 12: client 1 names this row, and x has 12. .* 0 to 11"),
    ([np.arange(5), np.array([6, -1])], "parts = -1: client 1"),
    ([np.arange(5), np.arange(N) > 5], "client 1 has no vector of row numbers. .*flatnonzero"),
  ],
)
def test_rows_that_are_not_there_or_come_twice_are_named(parts, says):
  with pytest.raises(fh.SettingError, match=says) as error:
    fh.federate(X, Y, parts, KEY, num_classes=2)
  assert error.value.setting == "parts"


# Where the data meet a model.


def with_labels(y):
  data = federation((5, 3, 4))
  return dataclasses.replace(data, y=y(np.asarray(data.y)))


def one_logit():
  return fh.models.logistic_regression((FEATURES,), 1)


def never(*args, **kwargs):
  raise AssertionError("something was compiled")


@pytest.mark.parametrize(
  ("y", "model", "says"),
  [
    (
      lambda y: y + 1,
      mlp(),
      f"y = {CLASSES}: .* 0 to {CLASSES - 1}, .* {CLASSES} logits.* model num_classes={CLASSES + 1}",
    ),
    (lambda y: y, fh.models.logistic_regression((FEATURES,), 2), "y = 2: .* give the model num_classes=3 "),
    (lambda y: y - 1, mlp(), "y = -1: the label of row .* is not one of"),
    (lambda y: y, one_logit(), "y = 2: the label of row .* classes 0 to 1, which one logit"),
    (lambda y: 2 * (y % 2) - 1, one_logit(), r"y = -1: .*\(y \+ 1\) // 2"),
    (lambda y: y.astype(np.float32), mlp(), "float32, not a whole number. .*astype"),
    (lambda y: y[:, None], mlp(), r"not \[N\]. Squeeze"),
    (lambda y: y[1:], mlp(), "examples"),
  ],
)
def test_data_made_by_hand_must_fit_the_model(y, model, says, monkeypatch):
  data = with_labels(y)
  monkeypatch.setattr(jax, "device_put", never)
  settings = {"rounds": 1, "cohort_size": 2}
  with pytest.raises(fh.SettingError, match=says):
    fh.run(fh.federated(fh.fedavg(model)), data, key=KEY, **settings)
  for each in (data, [federation((5, 3, 4)), data]):  # one for all, one a seed
    if isinstance(each, list) and model.num_classes == 1:  # the other labels are wrong here too
      continue
    with pytest.raises(fh.SettingError, match=says):
      fh.sweep(
        lambda lr: fh.federated(fh.fedavg(model, lr=lr)),
        {"lr": [0.1, 0.2]},
        seeds=(0, 1),
        data=each,
        **settings,
      )


@pytest.mark.parametrize(
  "client",
  [
    fh.fedavg(mlp()),
    fh.superfed(mlp(), start_round=0),
    fh.fedevg(mlp(), per_class=1),
    fh.fedevg(mlp(), per_class=1, persistent=True),
    fh.fedcvae(fh.models.make("cvae_mlp", (FEATURES,), CLASSES), per_class=1),
    fh.fedcgan(fh.models.make("cgan_mlp", (FEATURES,), CLASSES), per_class=1),
  ],
  ids=lambda client: client.name,
)
def test_of_every_method_the_logits_are_counted(client):
  server = fh.server.sgld(rounds=1, bounded=False) if client.name == "fedevg" else None
  algorithm = fh.federated(client._replace(needs=client.needs._replace(check_examples=None)), server=server)
  fh.Engine(algorithm, federation((5, 3, 4)), 2, devices=1)
  with pytest.raises(fh.SettingError, match=f"y = {CLASSES}: "):
    fh.Engine(algorithm, with_labels(lambda y: y + 1), 2, devices=1)


def test_a_model_of_another_shape_is_named():
  model = fh.models.logistic_regression((FEATURES + 1,), CLASSES)
  kernels = rf"\({FEATURES}, {CLASSES}\).*\({FEATURES + 1}, {CLASSES}\)"
  says = rf"model = \({FEATURES},\): it cannot be applied .*{kernels}"
  with pytest.raises(fh.SettingError, match=says):
    fh.Engine(fh.federated(fh.fedavg(model)), federation((5, 3, 4)), 2, devices=1)


def test_labels_that_no_client_has_are_not_asked():
  data = federation((5, 3, 4))
  y = np.asarray(data.y).copy()
  y[int(data.train.start[0])] = 99
  empty = Part(data.train.start, data.train.size.at[0].set(0))
  fh.Engine(fh.federated(fh.fedavg(mlp())), dataclasses.replace(data, y=y, train=empty), 2, devices=1)


def test_the_launcher_names_a_wrong_label(monkeypatch):
  source = build.datasets.load("digits")
  monkeypatch.setattr(build.datasets, "load", lambda *_, **__: source._replace(y=source.y + 1))
  with pytest.raises(fh.SettingError, match=r"y = 10: the label of row .* 0 to 9"):
    build.build(plan(get_config()))
