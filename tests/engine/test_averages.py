"""Averages of what clients send, and small arrays as one."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.engine.averages import pooled, scaled
from fedjax_het.engine.packing import SMALL, packing
from fedjax_het.engine.placement import client_mesh, weighted_sum
from fedjax_het.errors import SettingError
from fedjax_het.parts import Message, Pooled


@pytest.mark.parametrize("count", [1, 5, 8])
def test_a_weighted_sum_has_the_same_bits_on_any_number_of_devices(count):
  rng = np.random.default_rng(count)
  p = rng.dirichlet(np.ones(count)).astype(np.float32)
  sizes = {"a": (37, 5), "b": (), "large": (SMALL + 1,), "none": (0, 3), "largest small": (SMALL,)}
  stacked = {name: rng.normal(size=(count, *size)).astype(np.float32) for name, size in sizes.items()}
  total = jax.jit(weighted_sum, static_argnums=2)
  sums = [total(p, stacked, client_mesh(devices)) for devices in (1, 2, 3, 8)]
  for found in sums:
    chex.assert_trees_all_equal(found, sums[0])
  expected = jax.tree.map(lambda leaf: np.tensordot(p.astype(float), leaf.astype(float), 1), stacked)
  chex.assert_trees_all_close(sums[0], expected, rtol=1e-6, atol=1e-7)


def test_small_leaves_are_averaged_as_one():
  """In one loop, in their own order and dtypes, with the bits of a leaf alone."""
  rng = np.random.default_rng(0)
  p = jnp.asarray([0.5, 0.2, 0.3])
  small = [rng.normal(size=(3, 5 + i)).astype(np.float32) for i in range(9)]
  stacked = {"half": small[0].astype(jnp.bfloat16), "small": small, "whole": np.full((3, 2), 7, np.int32)}
  total = jax.jit(weighted_sum, static_argnums=2)
  found = total(p, stacked, None)
  for own, leaf in zip(found["small"], small):
    chex.assert_trees_all_equal(own, total(p, leaf, None))
  assert found["half"].dtype == jnp.bfloat16 and found["whole"].tolist() == [7, 7]
  assert total.lower(p, small, None).compile().as_text().count(" while(") == 1


def test_small_leaves_travel_as_one():
  stacked = {"large": jnp.ones((4, SMALL + 2)), "small": [jnp.ones((4, 5 + i)) for i in range(9)]}
  total = jax.jit(weighted_sum, static_argnums=2)
  program = total.lower(jnp.full(4, 0.25), stacked, client_mesh(2)).compile().as_text()
  sent = [name for name in ("all-gather", "collective-permute", "all-reduce") if f" {name}(" in program]
  assert sent == ["all-gather"] and program.count(" all-gather(") == 2  # the large leaf's and theirs


@pytest.mark.slow
def test_packed_trees_are_whole_again():
  tree = {
    "a": jnp.arange(6.0).reshape(2, 3), "none": jnp.zeros((0, 4)), "large": jnp.ones(SMALL + 1),
    "whole": jnp.arange(3), "one": jnp.float32(7), "half": jnp.ones(2, jnp.bfloat16),
  }  # fmt: skip
  packed = packing(jax.eval_shape(lambda: tree))
  arrays = packed.pack(tree)
  assert [leaf.shape for leaf in arrays] == [(2,), (SMALL + 1,), (3,), (7,)]
  chex.assert_trees_all_equal_shapes_and_dtypes(packed.unpack(arrays), tree)
  chex.assert_trees_all_equal(packed.unpack(arrays), tree)
  stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), tree)
  chex.assert_trees_all_equal(packed.unpack(packed.pack(stacked)), stacked)
  assert [leaf.shape for leaf in packed.room(5)] == [(5, *leaf.shape) for leaf in arrays]
  assert packing(()).pack(()) == [] and packing(()).unpack([]) == ()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_whole_numbers_are_averaged_to_the_nearest(dtype):
  """A counter that all share survives, whatever its size; uneven ones are not truncated, nor do they wrap."""
  p = np.asarray([0.3, 0.1, 0.25, 0.15, 0.2], np.float32)
  uneven = np.asarray([5, 12, 7, 1, 100])
  largest = np.iinfo(dtype).max
  stacked = {"same": np.full((5, 2), 7), "top": np.full(5, largest), "uneven": uneven}
  stacked = {name: leaf.astype(dtype) for name, leaf in stacked.items()}
  total = jax.jit(weighted_sum, static_argnums=2)
  for devices in (1, 3):
    found = total(p, stacked, client_mesh(devices))
    assert all(leaf.dtype == dtype for leaf in found.values())
    assert found["same"].tolist() == [7, 7] and int(found["top"]) == largest
    assert found["uneven"] == np.rint(p.astype(float) @ uneven)


def test_whole_numbers_of_the_absent_are_no_reference():
  """Their rows are zeros, from which float32 could not hold the difference of the others."""
  top = np.int32(2**24 + 1)
  found = weighted_sum(jnp.array([0.0, 0.5, 0.5]), {"n": jnp.array([0, top, top])}, None)
  assert int(found["n"]) == top


def test_a_scaled_whole_number_is_not_cut():
  start, sent = Message(jnp.int32(0)), Message(jnp.asarray([7, -7]))
  assert scaled(sent, start, jnp.asarray([0.55, 0.4])).params.tolist() == [4, -3]


@pytest.mark.parametrize("kind", [bool, "key"])
def test_what_cannot_be_averaged_is_named(kind):
  leaf = jax.random.split(jax.random.key(0)) if kind == "key" else jnp.ones((2, 3), kind)
  with pytest.raises(SettingError, match=r"upload\['seen'\].*cannot be averaged"):
    weighted_sum(jnp.full(2, 0.5), {"seen": leaf}, None)


def test_own_sums_on_any_number_of_devices():
  """Values without weight are not read, and where no client has any weight the broadcast's value stays."""
  rng = np.random.default_rng(0)
  v, w = rng.normal(size=(5, 3, 4)).astype(np.float32), rng.integers(0, 3, (5, 3)).astype(np.float32)
  w[:, 1] = 0.0
  v[w == 0] = np.nan
  scalar, own = rng.normal(size=5).astype(np.float32), {"rows": jnp.full((3, 4), 7.0), "one": jnp.float32(0)}
  sent = Pooled({"rows": v, "one": scalar}, {"rows": w, "one": np.full(5, 2.0, np.float32)})
  rows = np.nansum(w[..., None].astype(float) * v, axis=0) / np.maximum(w.sum(0), 1)[:, None]
  rows[1] = 7.0
  found = [jax.jit(pooled, static_argnums=2)(sent, own, client_mesh(devices)) for devices in (1, 2, 3)]
  np.testing.assert_allclose(found[0]["rows"], rows, rtol=1e-6)
  np.testing.assert_allclose(found[0]["one"], scalar.mean(), rtol=1e-6)
  chex.assert_trees_all_equal(*found)
  assert pooled((), own, None) is own
