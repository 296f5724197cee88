"""What is missing in labels and groups is no class and no client, however it is written."""

from decimal import Decimal

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.data.partition import partition
from fedjax_het.errors import SettingError
from fedjax_het.tasks.missing import missing

KEY = jax.random.key(0)
X = np.zeros((6, 1), np.float32)


class NotAvailable:
  """As pandas' NA: nothing can be told of it."""

  def __ne__(self, other):
    return self

  def __bool__(self):
    raise TypeError("boolean value of NA is ambiguous")


def objects(*values):
  found = np.empty(len(values), object)
  found[:] = values
  return found


MISSING = {
  "nan": np.array([0, 1, np.nan, 1, 0, 1]),
  "half": np.array([0, 1, np.nan, 1, 0, 1], np.float16),
  "None": objects(0, 1, None, 1, 0, 1),
  "NA": objects(0, 1, NotAvailable(), 1, 0, 1),
  "decimal": objects(0, 1, Decimal("nan"), 1, 0, 1),
  "NaT": np.array(["2020", "2021", "NaT", "2021", "2020", "2021"], "M8[Y]"),
  "empty": np.array(["a", "b", " ", "b", "a", "b"]),
  "a text of nan": np.array(["a", "b", np.nan, "b", "a", "b"]),
  "bytes": np.array([b"a", b"b", b"", b"b", b"a", b"b"]),
  "NA's text": objects("a", "b", "<NA>", "b", "a", "b"),
}


@pytest.mark.parametrize("values", MISSING.values(), ids=[*MISSING])
def test_what_is_missing_is_neither_a_class_nor_a_client(values):
  assert missing(values).tolist() == [False, False, True, False, False, False]
  parts = [np.arange(6)]
  for call in (
    lambda: fh.data.from_arrays(KEY, X, values, num_clients=2),
    lambda: fh.data.from_arrays(KEY, X, values, num_clients=2, num_classes=2),
    lambda: fh.data.from_groups(KEY, X, values, np.arange(6) % 2),
    lambda: fh.federate(X, values, parts, KEY, num_classes=2),
    lambda: fh.data.dirichlet(KEY, values, 2, alpha=1.0, min_size=1),
    lambda: fh.data.label_noise(KEY, values, np.eye(2)),
  ):
    with pytest.raises(SettingError, match=r"label of row 2 is missing; 1 of 6 rows have none") as told:
      call()
    assert "return_inverse" not in str(told.value) and "impute" in str(told.value)
  for call in (
    lambda: fh.data.from_groups(KEY, X, np.zeros(6, int), values),
    lambda: partition(KEY, "natural", np.zeros(6, int), groups=values),
  ):
    with pytest.raises(
      SettingError, match=r"row 2 is of no group; 1 of \d+ rows are of none: 2\. Leave such rows out"
    ):
      call()


@pytest.mark.parametrize(
  ("task", "y"),
  [
    (fh.tasks.multilabel(), np.array([[0, 1], [1, np.nan], [0, 0]])),
    (fh.tasks.next_token(), np.array([[0, 1], [1, np.nan], [0, 0]])),
    (fh.tasks.multilabel(), np.array([[0, 1], [1, None], [0, 0]], object)),
    (fh.tasks.regression(), np.array([[0, 1], [1, None], [0, 0]], object)),
    (fh.tasks.regression(), np.array([[0, 1], [1, np.nan], [0, 0]])),
    (fh.tasks.regression(), np.array([[0, 1], [1, np.inf], [0, 0]])),
    (fh.tasks.binary(), np.array([0, np.nan, 1])),
    (fh.tasks.classification(), np.ma.masked_array([0, 1, 1], [False, True, False])),
  ],
)
def test_labels_of_every_task_are_there(task, y):
  with pytest.raises(SettingError, match=r"label of row 1 is (.*missing|not finite|masked).*out of"):
    fh.federate(X[:3], y, [np.arange(3)], KEY, num_classes=2, task=task)


def test_an_infinite_label_is_no_class():
  with pytest.raises(SettingError, match=r"y = inf: the label of row 2 is infinite, which is no class; 1 of"):
    fh.data.from_arrays(KEY, X, [0, 1, np.inf, 1, 0, 1], num_clients=2)


def test_what_is_there_is_not_missing():
  for values in ([0, 1], [0.0, np.inf], ["a", "na"], [True, False], objects("a", 1, (1, 2), np.zeros(2))):
    assert not missing(values).any()
  assert missing(np.ma.masked_array([1, 2], [True, False])).tolist() == [True, False]


@pytest.mark.parametrize(
  ("options", "says"),
  [
    ({"num_clients": 2}, "come in 3 groups. Draw some of them by sample = 2, .*min_size, set 3, or leave"),
    ({"num_clients": 4}, "come in 3 groups, and clients are not cut. Set 3, or leave num_clients out"),
    ({"num_clients": 3, "min_size": 10}, "come in 2 groups of at least min_size = 10 rows.*lower min_size"),
    ({"num_clients": 1, "sample": 2}, "num_clients = 1: sample = 2 draws another number"),
    ({"sample": 4}, "sample = 4: out of range, no more groups have min_size = 1 rows.*at most 3"),
    ({"min_size": 14}, "min_size = 14: out of range, the largest group has no more rows.*at most 13"),
  ],
)
def test_numbers_of_natural_clients_name_the_setting_that_does_it(options, says):
  groups = np.repeat(["a", "b", "c"], [12, 13, 5])
  with pytest.raises(SettingError, match=says):
    partition(KEY, "natural", np.zeros(30, int), groups=groups, **options)
  assert len(partition(KEY, "natural", np.zeros(30, int), 2, groups=groups, sample=2)) == 2
