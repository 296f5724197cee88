"""A user's own arrays and groups, data that come divided, and ids stored in a byte."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data.partition import PARTITIONERS, natural
from fedjax_het.data.scale import as_read
from fedjax_het.data.sources import FOLDERS

KEY = jax.random.key(4)
X = np.arange(60, dtype=np.float32)[:, None]
Y = np.repeat(np.arange(3), 20)
GROUPS = np.array(["b", "a", "c"]).repeat([30, 26, 4])


NUMBER = {"num_classes": 1, "task": fh.tasks.regression()}
PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def rows(data, part, client):
  start, size = (int(values[client]) for values in getattr(data, part))
  return np.asarray(data.x)[start : start + size, 0].astype(int)


def test_arrays_are_dealt_out():
  data = fh.data.from_arrays(
    KEY, X, Y, 5, "dirichlet", alpha=1.0, min_size=4, valid_fraction=0.25, name="mine"
  )
  assert (data.num_clients, data.num_classes, data.name) == (5, 3, "mine")
  assert min(data.train.size) >= 3 and sum(map(sum, (data.train.size, data.valid.size, data.test.size))) == 60
  np.testing.assert_array_equal(data.y, np.asarray(data.x)[:, 0] // 20)
  deal, divide = jax.random.split(KEY)
  parts = fh.data.dirichlet(deal, Y, 5, alpha=1.0, min_size=4)
  same = fh.federate(X, Y, parts, divide, num_classes=3, valid_fraction=0.25, name="mine")
  jax.tree.map(np.testing.assert_array_equal, data, same)
  assert fh.data.from_arrays(KEY, X, Y, 6).train.size.tolist() == [8] * 6


def test_groups_are_clients():
  data = fh.data.from_groups(KEY, X, Y, GROUPS, min_size=5, test_fraction=0.5)
  assert data.num_clients == 2 and data.test.size.tolist() == [13, 15]
  assert set(rows(data, "train", 0)) | set(rows(data, "test", 0)) == set(range(30, 56))  # "a" before "b"
  number = fh.data.from_groups(KEY, X, X, GROUPS, num_classes=1, task=fh.tasks.regression())
  assert number.num_clients == 3 and number.y.dtype == np.float32


@pytest.mark.parametrize(
  ("call", "says"),
  [
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, "dirichlet", alfa=1.0), "Did you mean 'alpha'"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, alpha=1.0), "setting = 'alpha': unknown"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, "natural"), "Use from_groups"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, "iids"), "Did you mean 'iid'"),
    (lambda: fh.data.from_arrays(KEY, X, X[:, 0], 5), "y = dtype.'float32'.: classes are whole numbers"),
    (lambda: fh.data.from_arrays(KEY, X, GROUPS, 5, num_classes=3), "names, y = np.unique.y, return_inv"),
    (
      lambda: fh.data.from_arrays(KEY, X, X[:, 0], 5, task=fh.tasks.regression()),
      "num_classes = None: cannot be derived.*of regression targets",
    ),
    (lambda: fh.data.from_arrays(KEY, X, 3, 5), "y = array.3.: is one label. Give one for each"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, test_fraction=1.0), "test_fraction = 1.0: .*below 1.0"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, task=fh.tasks.binary()), "y = 2: "),
    (lambda: fh.data.from_groups(KEY, X, Y, GROUPS[1:]), r"groups = \(59,\): not one for each of 60"),
    (lambda: fh.data.from_groups(KEY, X, Y, GROUPS, min_size=31), "min_size = 31"),
    (lambda: fh.data.from_groups(KEY, X, Y, GROUPS, sample=4), "sample = 4"),
    (lambda: natural(GROUPS, sample=1), "key = None: a sample needs one"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, split=Y, test_fraction=0.1), "cannot be combined with split"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, split=Y), "split = 'int64 .60,.': not 0 .train."),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, split=Y[:9] * 0), "for 60 rows"),
    (lambda: fh.data.from_arrays(0, X, Y, 5), r"key = 0: not a key. Use key=jax.random.key\(0\)"),
    (lambda: fh.data.from_groups(0, X, Y, GROUPS), "key = 0: not a key"),
    (lambda: fh.data.iid(3, Y, 5), r"key = 3: not a key. Use key=jax.random.key\(3\)"),
    (lambda: fh.data.from_arrays(KEY, X[:50], Y, 5), "y = '60 labels': x has 50 examples"),
    (lambda: fh.data.from_groups(KEY, X[:50], Y, GROUPS), "y = '60 labels': x has 50 examples"),
    (lambda: fh.data.from_arrays(KEY, X, [*Y[:-1], 2**32], 1), "y = 4294967296: int32 cannot hold it"),
    (
      lambda: fh.data.from_arrays(KEY, X, 1e300 * X.astype(float), 1, **NUMBER),
      "y = .e.300: float32 cannot hold it",
    ),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 1, num_classes=2**33, train_y=Y + 2**32),
      "train_y = 42949672..: int32 cannot hold it",
    ),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 5, standardize=("a",)),
      "standardize = .'a',.: not numbers of col",
    ),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 5, standardize=(0.5,)),
      "standardize = .0.5,.: not numbers of col",
    ),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, standardize=(True,)), "standardize = .True,.: not numbers"),
    (lambda: fh.data.from_arrays(KEY, X, Y, 5, stratify="no"), "stratify = 'no': neither True nor False"),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 5, task="regression"),
      r"task = 'regression': not a task. Give one, such as task=fh.tasks.regression\(\)",
    ),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 5, task=fh.tasks.multilabel),
      r"such as task=fh.tasks.multilabel\(\)",
    ),
    (lambda: fh.data.from_groups(KEY, X, Y, GROUPS, num_classes=3, task=[1]), r"task = \[1\]: not a task"),
    (
      lambda: fh.data.from_arrays(KEY, X, Y, 5, split=Y * 0 + 1),
      "split = 'given': client 0 .* none to train on. Lower valid.* have rows of each client that train",
    ),
  ],
)
def test_what_cannot_be_is_named(call, says):
  with pytest.raises(fh.SettingError, match=says):
    call()


def test_two_clients_of_one_name_are_refused():
  groups = np.where(GROUPS == "a", "ann ", "bob ")
  assert fh.data.from_groups(KEY, X, Y, groups).encoder.clients == ("ann", "bob")
  groups[:20] = "bob"
  with pytest.raises(
    fh.SettingError, match="groups = 'bob': names two clients, 'bob' and 'bob ', which differ"
  ):
    fh.data.from_groups(KEY, X, Y, groups)


def test_options_of_another_partition_are_named_before_data_are_read():
  config = get_config()
  config.partition.name = "natural"
  with pytest.raises(
    fh.SettingError, match=r"alpha = 0\.1: unknown to natural.* write --config\.partition=.\{'name'"
  ):
    plan(config)
  config.partition = {"name": "natural", "min_sise": 2}
  with pytest.raises(fh.SettingError, match=r"Did you mean 'min_size'.*sample, seed\.$"):
    plan(config)
  for field, value in (("num_clients", 1.5), ("num_clients", "many"), ("test_fraction", "some")):
    config = get_config()
    config[field] = value
    with pytest.raises(fh.SettingError, match=f"{field} = "):
      plan(config)


def test_the_page_knows_every_data_set_and_its_python_runs():
  table = [line for line in PAGE.splitlines() if line.startswith("| `")]
  for name, (folder, *_) in FOLDERS.items():
    assert any(f"`{name}`" in line and f"`{folder}`" in line for line in table), name
  for name in PARTITIONERS:
    assert any(line.startswith(f"| `{name}` |") for line in table), name
  found: dict = {}
  _, block = re.findall(r"```python\n(.*?)```", PAGE, re.S)  # the first is of files of one's own
  exec(block, found)
  assert found["dealt"].num_clients == 20 and found["natural"].num_clients == 3


def test_small_groups_are_left_out_and_some_are_drawn():
  groups = np.repeat(np.arange(40), np.arange(1, 41))
  large = natural(groups, min_size=31)
  assert [len(part) for part in large] == list(range(31, 41))
  drawn = [[groups[part[0]] for part in natural(groups, 31, 4, jax.random.key(seed))] for seed in range(3)]
  assert all(len(set(ids)) == 4 and ids == sorted(ids) and min(ids) >= 30 for ids in drawn)
  assert len(set(map(tuple, drawn))) > 1 and drawn[0] == [
    groups[part[0]] for part in natural(groups, 31, 4, jax.random.key(0))
  ]


def test_data_that_come_divided():
  split = np.resize([0, 0, 1, -1], 60)
  data = fh.data.from_groups(KEY, X, Y, GROUPS, split=split, valid_fraction=0.2)
  for client, own in enumerate([range(30, 56), range(30), range(56, 60)]):
    train, valid, test = (rows(data, part, client) for part in ("train", "valid", "test"))
    assert sorted(test) == [i for i in own if i % 4 == 2]
    assert sorted([*train, *valid]) == [i for i in own if i % 4 < 2]
    assert len(valid) == (len(train) + len(valid)) // 5


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_ids_in_few_bytes_are_read_as_int32(dtype):
  data = fh.data.from_arrays(KEY, (X % 100).astype(dtype), Y, 2)
  assert data.x.dtype == dtype
  x, _ = jax.jit(lambda fed: fed.clients(jnp.array(1)).take(jnp.arange(5)))(data)
  assert x.dtype == jnp.int32
  np.testing.assert_array_equal(x, data.clients(1).x[30:35])
  assert as_read(data.x, 0.5).dtype == np.float32
