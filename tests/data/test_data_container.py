"""The flat container: sizes, disjoint parts, and views that map over clients of unequal size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.data import from_arrays, select
from fedjax_het.data.container import view_axes
from fedjax_het.data.federate import federate
from fedjax_het.errors import SettingError

KEY = jax.random.key(3)


def ragged(sizes, dtype=np.float32):
  """Data whose x is the row number and whose y is its client, with clients of `sizes`."""
  total = sum(sizes)
  rows = np.random.default_rng(0).permutation(total)
  parts = np.split(rows, np.cumsum(sizes)[:-1])
  y = np.zeros(total, np.int64)
  for i, part in enumerate(parts):
    y[part] = i
  return np.arange(total).astype(dtype)[:, None], y, parts


def rows_of(data, part, client):
  """The row numbers (the values of x) in one part of one client, read from the flat array itself."""
  start, size = (int(values[client]) for values in getattr(data, part))
  return np.asarray(data.x)[start : start + size, 0].astype(int).tolist()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
  st.lists(st.integers(5, 40), min_size=1, max_size=6),
  st.sampled_from([0.0, 0.2, 0.29, 0.5]),
  st.sampled_from([0.0, 0.1, 0.5]),
)
def test_parts_are_disjoint_complete_and_of_the_promised_size(sizes, test_fraction, valid_fraction):
  x, y, parts = ragged(sizes)
  data = federate(
    x, y, parts, KEY, num_classes=len(sizes), test_fraction=test_fraction, valid_fraction=valid_fraction
  )
  assert data.num_clients == len(sizes)
  for i, part in enumerate(parts):
    train, valid, test = (rows_of(data, name, i) for name in ("train", "valid", "test"))
    assert sorted(train + valid + test) == sorted(part.tolist())
    n_test = round(len(part) * test_fraction * 100) // 100
    n_valid = round((len(part) - n_test) * valid_fraction * 100) // 100
    assert (len(test), len(valid)) == (n_test, n_valid)
  assert data.limits == tuple(int(p.size.max()) for p in (data.train, data.valid, data.test))
  assert data.uniform == tuple(len(set(p.size.tolist())) == 1 for p in (data.train, data.valid, data.test))


def test_shares_are_rounded_down_in_decimals():
  """0.29 of 100 is 29, though 100 * 0.29 is 28.999999999999996 in floating point."""
  data = federate(*ragged([100]), KEY, num_classes=1, test_fraction=0.29)
  assert data.test.size.tolist() == [29]


def test_the_key_decides_the_split():
  x, y, parts = ragged([30, 20])
  one, same, other = (
    federate(x, y, parts, jax.random.key(seed), num_classes=2, valid_fraction=0.1) for seed in (0, 0, 1)
  )
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True):
    np.testing.assert_array_equal(a, b)
  assert rows_of(one, "test", 0) != rows_of(other, "test", 0)
  assert sorted(rows_of(one, "test", 0)) != sorted(range(6))


def test_labels_stay_with_their_examples():
  data = federate(*ragged([9, 4, 30]), KEY, num_classes=3)
  for i in range(3):
    view = data.clients(jnp.array(i))
    assert set(np.asarray(view.take(jnp.arange(int(view.size)))[1]).tolist()) == {i}


BYTES = np.array([[0], [51], [255], [102]], np.uint8)
IMAGES = BYTES[:, None]


@pytest.mark.parametrize(
  ("x", "scale", "wanted"),
  [
    (IMAGES, None, IMAGES / 255),
    (IMAGES[..., None], None, IMAGES[..., None] / 255),
    (IMAGES, 1.0, IMAGES),
    (BYTES, None, BYTES),  # a table
    (BYTES, 1 / 255, BYTES / 255),
    (BYTES.astype(np.int32), 0.5, BYTES / 2),
    (BYTES.astype(np.int32), None, BYTES),
    (IMAGES.astype(np.float32), None, IMAGES),
    (IMAGES.astype(np.float32), 2.0, IMAGES * 2.0),
  ],
)
def test_bytes_are_read_as_floats_at_the_data_sets_scale_and_all_else_as_it_is(x, scale, wanted):
  data = federate(x, np.zeros(4, int), [np.arange(4)], KEY, num_classes=1, test_fraction=0.0, scale=scale)
  assert data.x.dtype == x.dtype and data.scale == scale
  got, y = jax.jit(lambda data: data.clients(jnp.array(0)).take(jnp.arange(4)))(data)
  assert got.dtype == (jnp.int32 if x.dtype == np.int32 and scale is None else jnp.float32)
  assert y.dtype == jnp.int32
  np.testing.assert_allclose(np.sort(np.asarray(got), 0), np.sort(wanted, 0), rtol=1e-6)


@pytest.mark.parametrize("sizes", [[5, 40, 11, 6], [10, 10, 10, 10]])
def test_mapped_views_equal_a_loop(sizes):
  """A masked sum over each client's rows, under vmap, jit and cohort selection, against plain indexing."""
  x, y, parts = ragged(sizes)
  data = federate(x, y, parts, KEY, num_classes=4, test_fraction=0.0)
  cohort = jnp.array([2, 0, 3])

  @jax.jit
  def sums(data, cohort):
    views = data.clients(cohort)

    def one(view):
      index = jnp.arange(view.limit)
      values, labels = view.take(index)
      mask = index < view.length
      return (values[:, 0] * mask).sum(), (labels * mask).sum(), jnp.asarray(view.length)

    return jax.vmap(one, in_axes=(view_axes(views),))(views)

  totals, labels, lengths = sums(data, cohort)
  np.testing.assert_allclose(totals, [x[parts[i]].sum() for i in (2, 0, 3)])
  np.testing.assert_array_equal(labels, [y[parts[i]].sum() for i in (2, 0, 3)])
  np.testing.assert_array_equal(lengths, [sizes[i] for i in (2, 0, 3)])
  assert isinstance(data.clients(jnp.array(0)).length, int) == data.uniform[0] == (len(set(sizes)) == 1)


@pytest.mark.parametrize(
  ("setting", "changes"),
  [
    ("test_fraction", {"test_fraction": 1.5}),
    ("test_fraction", {"test_fraction": -0.1}),
    ("test_fraction", {"test_fraction": float("nan")}),
    ("test_fraction", {"test_fraction": 1.0}),
    ("valid_fraction", {"valid_fraction": 2.0}),
    ("num_clients", {"parts": []}),
    ("test_fraction", {"parts": [np.arange(4), np.arange(0)]}),
    ("scale", {"scale": 0.0}),
    ("scale", {"scale": float("inf")}),
    ("stratify", {"stratify": True, "test_fraction": 0.0}),
    ("stratify", {"stratify": True, "test_fraction": None, "split": [0, 1, 0] * 5}),
  ],
)
def test_a_setting_that_cannot_work_is_named(setting, changes):
  x, y, parts = ragged([10, 5])
  call = {"parts": parts, "test_fraction": 0.2, "valid_fraction": 0.0} | changes
  with pytest.raises(SettingError) as error:
    federate(x, y, call.pop("parts"), KEY, num_classes=2, **call)
  assert error.value.setting == setting


@pytest.mark.parametrize(
  ("sizes", "fraction"), [((40, 10), 0.2), ((7, 3, 1), 0.3), ((25, 2), 0.1), ((5,), 0.2)]
)
def test_stratified_parts_have_the_clients_class_shares(sizes, fraction):
  y = np.repeat(np.arange(len(sizes)), sizes)
  x = np.arange(len(y), dtype=np.float32)[:, None]
  data = federate(
    x, y, [np.arange(len(y))], jax.random.key(0), num_classes=max(2, len(sizes)), test_fraction=fraction,
    valid_fraction=0.25, stratify=True,
  )  # fmt: skip
  assert sorted(np.asarray(data.x)[:, 0].tolist()) == sorted(x[:, 0].tolist())
  for part, total in (("test", len(y)), ("valid", int(data.train.size[0] + data.valid.size[0]))):
    slices = getattr(data, part)
    count, own = int(slices.size[0]), slice(int(slices.start[0]), int(slices.start[0] + slices.size[0]))
    assert count == int(total * (fraction if part == "test" else 0.25))
    if part == "test":
      wanted = count * np.asarray(sizes) / len(y)
      assert np.abs(np.bincount(np.asarray(data.y)[own], minlength=len(sizes)) - wanted).max() < 1


@pytest.mark.parametrize(
  "sizes, blocks", [((40, 40), (40, 32)), ((7, 1), (7, 7)), ((40, 3), (16, 16)), ((1601, 3), (101, 32))]
)
def test_blocks_of_unequal_clients_are_small(sizes, blocks):
  x = np.zeros((sum(sizes), 1), np.float32)
  parts = np.split(np.arange(sum(sizes)), [sizes[0]])
  data = federate(x, np.zeros(len(x), np.int32), parts, jax.random.key(0), num_classes=2, test_fraction=0.0)
  view = data.clients(jnp.arange(2))
  assert (view.block(512), view.block(32)) == blocks


def test_missing_values_of_half_precision_are_filled_too():
  x = np.array([[1.0], [3.0], [np.nan], [1.0], [3.0]], jnp.bfloat16)
  data = federate(x, np.zeros(5, int), [np.arange(5)], KEY, num_classes=1, split=np.array([0, 0, 1, 0, 0]))
  assert data.x.dtype == jnp.bfloat16 and np.asarray(data.x)[-1] == 2.0


def test_what_else_a_client_s_rows_and_examples_may_be():
  x, y = np.arange(12.0, dtype=np.float32)[:, None], np.arange(12) % 2
  with pytest.raises(SettingError, match="client 1 with 0 examples keeps none"):
    federate(x, y, [np.arange(5), []], KEY, num_classes=2, stratify=True)
  x[7] = -np.inf
  with pytest.raises(SettingError, match="row 7 is infinite"):
    federate(x, y, [np.arange(6), np.arange(6, 12)], KEY, num_classes=2, standardize=(0,))
  federate(x, y, [np.arange(6)], KEY, num_classes=2, standardize=(0,))  # which is nobody's
  data = from_arrays(KEY, x[:6], y[:6] > 0, 2, partition="dirichlet", alpha=100.0, min_size=1)
  for wrong in ([True, False], [0.7], ["a"], [[0, 1]]):
    with pytest.raises(SettingError, match="is no list of whole numbers"):
      select(data, wrong)
