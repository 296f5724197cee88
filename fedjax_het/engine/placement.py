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


def map_clients(
  fn: Callable[..., PyTree],
  mesh: Mesh,
  client_batch: int | None,
  shared: PyTree,
  view: ClientData,
  *stacked: PyTree,
) -> PyTree:
  """fn(shared, view_i, *stacked_i) for each client i of `view`, stacked.

  A number of clients that the devices do not divide is filled up with empty clients, whose results are
  dropped.
  """
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
    if client_batch is None:
      axes = (view_axes(own), *(0 for _ in stacked))
      return jax.vmap(lambda v, *args: fn(shared, v, *args), in_axes=axes)(own, *stacked)

    def one(sliced):
      start, size, args = sliced
      return fn(shared, ClientData(x, y, start, size, view.limit, view.uniform), *args)

    return lax.map(one, (start, size, stacked), batch_size=client_batch if client_batch > 1 else None)

  mapped = jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P(), P(), P(), P(AXIS), P(AXIS), P(AXIS)),
    out_specs=P(AXIS),
    check_vma=False,
  )
  results = mapped(shared, view.x, view.y, start, size, stacked)
  return jax.tree.map(lambda leaf: leaf[:count], results) if padding else results
