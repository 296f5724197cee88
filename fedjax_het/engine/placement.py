"""Where things live: clients over the devices of a mesh, everything else on all of them.

Work on clients is split over the mesh axis `clients` by `jax.shard_map`; inside a device clients are mapped
one after another or `client_batch` at a time. A CPU is a mesh too: with one device a core
(`jax_num_cpu_devices`) every core trains its own clients, which beats splitting one client's small matrices
over the cores by 2.6x on two cores (TwoNN, batch 10).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het.data.container import ClientData, view_axes

PyTree = Any
AXIS = "clients"


def client_mesh(devices: int | None = None) -> Mesh:
  """A mesh of the first `devices` local devices (default: all) along the axis `clients`."""
  found = jax.local_devices()[:devices]
  return Mesh(np.asarray(found), (AXIS,), axis_types=(AxisType.Auto,))


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


def map_here(
  fn: Callable[..., PyTree], client_batch: int | None, shared: PyTree, view: ClientData, *stacked: PyTree
) -> PyTree:
  """fn(shared, view_i, *stacked_i) for each client i of `view`, stacked, on the device that runs this."""
  if client_batch is None:
    axes = (view_axes(view), *(0 for _ in stacked))
    return jax.vmap(lambda own, *args: fn(shared, own, *args), in_axes=axes)(view, *stacked)

  def one(sliced):
    start, size, args = sliced
    return fn(shared, ClientData(view.x, view.y, start, size, view.limit, view.uniform), *args)

  at_once = client_batch if client_batch > 1 else None
  return lax.map(one, (view.start, view.size, stacked), batch_size=at_once)


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
  """
  if mesh is None:
    return map_here(fn, client_batch, shared, view, *stacked)
  count = view.start.shape[0]
  padding = -count % mesh.size

  def fill(leaf: jax.Array) -> jax.Array:
    return jnp.concatenate([leaf, jnp.repeat(leaf[:1], padding, axis=0)])

  start, size = view.start, view.size
  if padding:
    start, size, stacked = jax.tree.map(fill, (start, size, stacked))
    size = jnp.where(jnp.arange(count + padding) < count, size, 0)  # .at[].set here is miscompiled by XLA

  def on_device(shared, x, y, start, size, stacked):
    own = ClientData(x, y, start, size, view.limit, view.uniform)
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
