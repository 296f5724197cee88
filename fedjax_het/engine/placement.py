"""Placement on devices: clients are spread over a mesh, everything else is replicated.

Work on clients is split over the mesh axis `clients` by `jax.shard_map`; inside a device clients are mapped
one after another or `client_batch` at a time. A CPU is a mesh too: with one device per core
(`jax_num_cpu_devices`) every core trains its own clients, which is 2.6 times as fast on two cores as
splitting one client's small matrices over the cores (TwoNN, batch 10). With several processes
(`jax.distributed`) the mesh spans all their devices, and every process runs the same program on the same host
values.
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
from fedjax_het.vectors import form_of_one

PyTree = Any
AXIS = "clients"


def client_mesh(devices: int | None = None, axis: str = AXIS) -> Mesh:
  """Returns a mesh of the first `devices` devices of all processes, by default of all, along one axis.

  Raises:
    SettingError: see `check_devices`; or several processes are to use fewer than all devices, while every
      process must take part.
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
  """Raises `SettingError` unless `devices` is an integer from 1 to the number of devices, or None for all."""
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
  """Copies a tree of host arrays, the same in every process, to the mesh."""
  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)

  def one(leaf: Any) -> jax.Array:
    values = np.asarray(leaf)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

  return jax.tree.map(one, tree)


def default_client_batch() -> int | None:
  """Returns how many clients a device maps at once: one on CPUs, whose caches it fits; else None for all."""
  return 1 if jax.default_backend() == "cpu" else None


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of arrays that every device holds completely."""
  return NamedSharding(mesh, P())


def over_clients(mesh: Mesh, num_clients: int) -> NamedSharding:
  """Returns the sharding of client states [K, ...]: split if the devices divide K, else replicated."""
  return NamedSharding(mesh, P(AXIS) if num_clients % mesh.size == 0 else P())


def constrain(tree: PyTree, mesh: Mesh | None, num_clients: int | None = None) -> PyTree:
  """Constrains a tree's sharding in a compiled program: client states if K is given, else replicated."""
  if mesh is None:
    return tree
  sharding = replicated(mesh) if num_clients is None else over_clients(mesh, num_clients)
  return lax.with_sharding_constraint(tree, sharding)


def rounded(values: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Converts floats to `dtype`; to the nearest integer for integer dtypes."""
  return (jnp.round(values) if jnp.issubdtype(dtype, jnp.integer) else values).astype(dtype)


def weighted_sum(coefficients: jax.Array, stacked: PyTree, mesh: Mesh | None) -> PyTree:
  """Computes Σ_i p_i u_i for p [S] >= 0 with sum 1 and leaves u [S, ...].

  The bits are the same on any number of CPU devices. Each device sums a slice of the parameters over all
  clients: an all-to-all before and an all-gather after the sum, which send as much as an all-reduce of
  partial sums. On CPUs the sum runs in the clients' order. On accelerators XLA chooses the order, as a loop
  would start a kernel for each client, which takes longer than the addition.

  Integers become u_1 + Σ_i p_i (u_i - u_1), u_1 the first with a weight, rounded to the nearest: exact if all
  with a weight send the same, else as exact as float32 holds the differences, up to 2^24 = 16,777,216.

  Raises:
    SettingError: a leaf is neither of floats nor of integers, such as booleans or keys.
  """

  def total(flat: jax.Array) -> jax.Array:
    if mesh is not None:
      flat = lax.with_sharding_constraint(flat, NamedSharding(mesh, P(None, AXIS)))
    if jax.default_backend() == "cpu":
      first, rest = coefficients[0] * flat[0], (coefficients[1:], flat[1:])
      if len(flat) == 1 and without_jit():  # without jit, JAX cannot run a scan of length 0
        return first
      mean = lax.scan(lambda total, one: (total + one[0] * one[1], None), first, rest)[0]
    else:
      mean = (coefficients[:, None] * flat).sum(0)
    return constrain(mean, mesh)  # before it is split into leaves, else each is gathered by itself

  def one(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
      mean = total(leaf.reshape(leaf.shape[0], -1)).astype(leaf.dtype)
    else:
      whole = leaf.reshape(leaf.shape[0], -1).astype(jnp.int64 if leaf.dtype.itemsize == 8 else jnp.int32)
      first = whole[jnp.argmax(coefficients > 0)]
      apart = total((whole - first).astype(jnp.float32))
      mean = (first + rounded(apart, whole.dtype)).astype(leaf.dtype)
    return mean.reshape(leaf.shape[1:])

  check_averaged(stacked)
  packed = packing(form_of_one(stacked))
  return constrain(packed.unpack([one(leaf) for leaf in packed.pack(stacked)]), mesh)


def check_averaged(stacked: PyTree) -> None:
  """Raises `SettingError` for a leaf of uploads that is neither of floats nor of integers."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(stacked):
    if not jnp.issubdtype(leaf.dtype, jnp.number):
      raise SettingError(
        f"upload{jax.tree_util.keystr(path)}", leaf.dtype, "cannot be averaged",
        "Upload floats or whole numbers; a boolean as 0.0 or 1.0, whose average is a share.",
      )  # fmt: skip


def one_by_one(fn: Callable[[PyTree], PyTree], stacked: PyTree) -> PyTree:
  """Applies fn to each row of a tree, one after another, and stacks the results, like `lax.map`.

  A single row has the same bits as in a longer loop: XLA would drop a loop with one iteration and fuse its
  body with the surrounding program, with other rounding. Here XLA does not know the length, so that the loop
  stays; and the barrier, which reads the loop counter, keeps XLA from moving the computations on a single
  row out of the loop.
  """
  return replace_one_by_one(lambda row, _: ((), fn(row)), stacked, ())[1]


def replace_one_by_one(
  fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], stacked: PyTree, replaced: PyTree
) -> tuple[PyTree, PyTree]:
  """Applies fn to each row of `stacked` and `replaced`, in turn: (row, own) -> (new own, result).

  A new row takes the place of the row of `replaced`, in its own buffer if the caller donates it; the results
  are stacked. On the bits of a single row see `one_by_one`.

  Returns:
    (the second tree with its new rows, the stacked results).
  """
  count = jax.tree.leaves((stacked, replaced))[0].shape[0]
  fn = jax.jit(fn, inline=True)  # traced once

  def row(i: int | jax.Array, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, i, keepdims=False), tree)

  def step(i: jax.Array, all_: PyTree) -> PyTree:
    put = functools.partial(lax.dynamic_update_index_in_dim, index=i, axis=0)
    _, args, own = lax.optimization_barrier((i, row(i, stacked), owns.unpack(row(i, all_[0]))))
    new, found = fn(args, own)
    return jax.tree.map(put, all_, (owns.pack(new), results.pack(found)))

  owns = packing(form_of_one(replaced))
  results = packing(jax.eval_shape(lambda: fn(row(0, stacked), row(0, replaced)))[1])
  start = owns.pack(replaced), results.room(count)
  new, found = lax.fori_loop(0, unknown(count), step, start)
  return owns.unpack(new), results.unpack(found)


def map_here(
  fn: Callable[..., PyTree], client_batch: int | None, shared: PyTree, view: ClientData, *stacked: PyTree
) -> PyTree:
  """Computes fn(shared, view_i, *stacked_i) for each client i of `view` on the device that runs this.

  Clients are stacked in groups, [n, client_batch], if `client_batch` is above 1; else in a row, [n].
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
  """Computes fn(shared, view_i, *stacked_i) for each client i of `view`, split over the mesh's devices.

  If the devices do not divide the number of clients, empty clients are added, whose results are dropped.
  Without a mesh all clients stay on the device that runs this.

  Clients that are mapped at once take the time of the longest of them, so they are grouped by size, and each
  device gets whole groups. A client's bits depend on the size of its group and on its position there, and the
  groups are the same on any number of devices. In an incomplete last group the smallest client is repeated.

  Returns:
    The results, stacked in the clients' order.
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
  """Applies `map_here` to rows, which are clients or groups of clients, split over the mesh's devices."""
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
