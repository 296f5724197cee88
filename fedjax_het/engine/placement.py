"""Where things live: clients over the devices of a mesh, everything else on all of them.

Work on clients is split over the mesh axis `clients` by `jax.shard_map`; inside a device clients are mapped
one after another or `client_batch` at a time. A CPU is a mesh too: with one device a core
(`jax_num_cpu_devices`) every core trains its own clients, which beats splitting one client's small matrices
over the cores by 2.6x on two cores (TwoNN, batch 10). With several processes (`jax.distributed`) the mesh
spans all their devices, and every process runs the same program on the same host values.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het.data.container import ClientData
from fedjax_het.engine.packing import packing
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.local import unknown
from fedjax_het.modes import without_jit

PyTree = Any
AXIS = "clients"


def client_mesh(devices: int | None = None, axis: str = AXIS) -> Mesh:
  """A mesh of the first `devices` devices of all processes (default: all) along one axis.

  Raises:
    SettingError: see `check_devices`; or fewer than all with several processes, of which each must take part.
  """
  check_devices(devices)
  found = jax.devices()
  count = len(found) if devices is None else int(devices)
  if jax.process_count() > 1 and count < len(found):
    raise SettingError(
      "devices", count, f"{jax.process_count()} processes have {len(found)}, and each takes part",
      f"Use {len(found)} (--mesh={axis}:{len(found)}).",
    )  # fmt: skip
  return Mesh(np.asarray(found[:count]), (axis,), axis_types=(AxisType.Auto,))


def check_devices(devices: int | None) -> None:
  """Raises `SettingError` unless there are so many devices: a whole number from 1; None asks for all."""
  if devices is None:
    return
  check_whole("devices", devices, 1)
  found = len(jax.devices())
  if devices > found:
    raise SettingError(
      "devices", devices, f"{jax.process_count()} process(es) have {found} devices in all",
      f"Use 1 to {found}; on the command line, --mesh says how many.",
    )  # fmt: skip


def place(tree: PyTree, sharding: NamedSharding) -> PyTree:
  """A tree of host arrays, the same in every process, as arrays on the mesh."""
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)

  def one(leaf: Any) -> jax.Array:
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

  return jax.tree.map(one, tree)


def default_client_batch() -> int | None:
  """How many clients a device maps at once: on CPU one (each in its caches), else all (None)."""
  return 1 if jax.default_backend() == "cpu" else None


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding of what every device holds whole."""
  return NamedSharding(mesh, P())


def over_clients(mesh: Mesh, num_clients: int) -> NamedSharding:
  """The sharding of stacked client states [K, ...]: split where K divides evenly, else whole."""
  return NamedSharding(mesh, P(AXIS) if num_clients % mesh.size == 0 else P())


def constrain(tree: PyTree, mesh: Mesh | None, num_clients: int | None = None) -> PyTree:
  """Places a tree inside a compiled program: stacked client states where K is given, else on all devices."""
  if mesh is None:
    return tree
  sharding = replicated(mesh) if num_clients is None else over_clients(mesh, num_clients)
  return lax.with_sharding_constraint(tree, sharding)


def rounded(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Float values as `dtype`: whole numbers to the nearest, not cut."""
  return (jnp.round(values) if jnp.issubdtype(dtype, jnp.integer) else values).astype(dtype)


def weighted_sum(coefficients: jax.Array, stacked: PyTree, mesh: Mesh | None) -> PyTree:
  """Σ_i p_i u_i for p [S] >= 0 of sum 1 and leaves u [S, ...], the same bits on any number of CPU devices.

  Each device sums all clients' share of the parameters: an all-to-all on the way in, an all-gather on the
  way out, which is what an all-reduce of partial sums sends, but on CPUs the order of the sum is always the
  clients'. Elsewhere it is XLA's: a loop would start a program for each client, which takes longer than to
  add.

  Whole numbers become u_1 + Σ_i p_i (u_i - u_1), rounded to the nearest: exact where all clients send the
  same, and else as far as float32 holds the differences, up to 2^24 = 16,777,216.

  Raises:
    SettingError: a leaf is neither of floats nor of whole numbers, such as booleans or keys.
  """

  def total(flat: jax.Array) -> jax.Array:
    if mesh is not None:
      flat = lax.with_sharding_constraint(flat, NamedSharding(mesh, P(None, AXIS)))
    if jax.default_backend() == "cpu":
      first, rest = coefficients[0] * flat[0], (coefficients[1:], flat[1:])
      if len(flat) == 1 and without_jit():  # JAX runs no scan of length 0 eagerly
        return first
      mean = lax.scan(lambda total, one: (total + one[0] * one[1], None), first, rest)[0]
    else:
      mean = (coefficients[:, None] * flat).sum(0)
    return constrain(mean, mesh)  # before it is cut into leaves, or each piece travels by itself

  def one(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      mean = total(leaf.reshape(leaf.shape[0], -1)).astype(leaf.dtype)
    else:
      whole = leaf.reshape(leaf.shape[0], -1).astype(jnp.int64 if leaf.dtype.itemsize == 8 else jnp.int32)
      apart = total((whole - whole[0]).astype(jnp.float32))
      mean = (whole[0] + rounded(apart, whole.dtype)).astype(leaf.dtype)
    return mean.reshape(leaf.shape[1:])

  check_averaged(stacked)
  packed = packing(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked))
  return constrain(packed.unpack([one(leaf) for leaf in packed.pack(stacked)]), mesh)


def check_averaged(stacked: PyTree) -> None:
  """Raises `SettingError` for a leaf of uploads that is neither of floats nor of whole numbers."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(stacked):
    if not jnp.issubdtype(leaf.dtype, jnp.number):
      raise SettingError(
        f"upload{jax.tree_util.keystr(path)}", leaf.dtype, "cannot be averaged",
        "Upload floats or whole numbers; a boolean as 0.0 or 1.0, whose average is a share.",
      )  # fmt: skip


def one_by_one(fn: Callable[[PyTree], PyTree], stacked: PyTree) -> PyTree:
  """fn of each row of a tree, one after another, stacked: `lax.map`, with the same bits for a row alone.

  XLA drops a loop of one trip and fuses its body with what is around it, in other bits than a longer loop
  gives. Here the loop stays, because XLA does not know its length; and the barrier, which reads the loop's
  counter, keeps XLA from moving computations on a row that is alone out of the loop.
  """
  count = jax.tree.leaves(stacked)[0].shape[0]
  fn = jax.jit(fn, inline=True)  # Python goes through it once

  def row(i: int | jax.Array) -> PyTree:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), stacked)

  def step(i: jax.Array, results: PyTree) -> PyTree:
    put = functools.partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
    _, own = lax.optimization_barrier((i, row(i)))
    return jax.tree.map(put, results, packed.pack(fn(own)))

  packed = packing(jax.eval_shape(lambda: fn(row(0))))
  return packed.unpack(lax.fori_loop(0, unknown(count), step, packed.room(count)))


def map_here(
  fn: Callable[..., PyTree], client_batch: int | None, shared: PyTree, view: ClientData, *stacked: PyTree
) -> PyTree:
  """fn(shared, view_i, *stacked_i) for each client i of `view`, stacked, on the device that runs this.

  Clients stand in groups, [n, client_batch], where `client_batch` is above 1; else in a row, [n].
  """

  def one(sliced):
    start, size, args = sliced
    return fn(shared, dataclasses.replace(view, start=start, size=size), *args)

  clients = view.start, view.size, stacked
  if client_batch is None:
    return jax.vmap(one)(clients)
  return one_by_one(one if client_batch == 1 else jax.vmap(one), clients)


def map_clients(
  fn: Callable[..., PyTree],
  mesh: Mesh | None,
  client_batch: int | None,
  shared: PyTree,
  view: ClientData,
  *stacked: PyTree,
) -> PyTree:
  """fn(shared, view_i, *stacked_i) for each client i of `view`, stacked, split over the mesh's devices.

  A number of clients that the devices do not divide is filled up with empty clients, whose results are
  dropped. Without a mesh all stay on the device that runs this.

  Clients that are mapped at once take the time of the longest of them, so they are grouped by size, and each
  device gets whole groups. A client's bits depend on the size of its group and on its place there, and the
  groups are the same on any number of devices. A last group that is not full has its smallest client several
  times.
  """
  count = view.start.shape[0]
  if client_batch is not None and client_batch > 1:
    order = jnp.argsort(view.size, descending=True)
    slots = jnp.pad(order, (0, -count % client_batch), mode="edge").reshape(-1, client_batch)
    rows = jax.tree.map(lambda leaf: leaf[slots], (view.start, view.size, stacked))
    grouped = dataclasses.replace(view, start=rows[0], size=rows[1])
    found = _map_rows(fn, mesh, client_batch, shared, grouped, *rows[2])
    back = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[back], found)
  return _map_rows(fn, mesh, client_batch, shared, view, *stacked)


def _map_rows(
  fn: Callable[..., PyTree],
  mesh: Mesh | None,
  client_batch: int | None,
  shared: PyTree,
  view: ClientData,
  *stacked: PyTree,
) -> PyTree:
  """`map_here` of rows that are clients or groups of them, split over the mesh's devices."""
  count = view.start.shape[0]
  if mesh is None:
    return map_here(fn, client_batch, shared, view, *stacked)
  padding = -count % mesh.size

  def fill(leaf: jax.Array) -> jax.Array:
    return jnp.concatenate([leaf, jnp.repeat(leaf[:1], padding, axis=0)])

  start, size = view.start, view.size
  if padding:
    start, size, stacked = jax.tree.map(fill, (start, size, stacked))
    real = (jnp.arange(count + padding) < count).reshape(-1, *[1] * (size.ndim - 1))
    size = jnp.where(real, size, 0)  # .at[].set here is miscompiled by XLA

  def on_device(shared, x, y, start, size, stacked):
    own = dataclasses.replace(view, x=x, y=y, start=start, size=size)
    return map_here(fn, client_batch, shared, own, *stacked)

  mapped = jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P(), P(), P(), P(AXIS), P(AXIS), P(AXIS)),
    out_specs=P(AXIS),
    check_vma=False,
  )
  results = mapped(shared, view.x, view.y, start, size, stacked)
  return jax.tree.map(lambda leaf: leaf[:count], results) if padding else results
