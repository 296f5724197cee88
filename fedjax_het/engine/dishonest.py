"""Dishonest clients: who they are, the rows that they train on, and what they send."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.data.container import ClientData
from fedjax_het.engine.cohort import DISHONEST, drawn
from fedjax_het.engine.placement import rounded
from fedjax_het.engine.shown import with_rows
from fedjax_het.errors import SettingError
from fedjax_het.parts import Attack, ClientUpdate, Message, PyTree
from fedjax_het.vectors import form_of_one, over, same_form


def dishonest(key: jax.Array, share: float | jax.Array, num_clients: int) -> jax.Array:
  """Draws the dishonest clients, bool [K]: round(share·K) of the K, by the run's key alone."""
  return drawn(key, DISHONEST, num_clients, jnp.round(jnp.float32(share) * num_clients))


def corrupted(client: ClientUpdate, attack: Attack, who: jax.Array, num_classes: int) -> ClientUpdate:
  """Returns the client part whose dishonest clients train on the rows that the attack makes of theirs.

  Args:
    client: the client part.
    attack: an attack with `data`.
    who: which clients are dishonest, bool [K].
    num_classes: C.
  """
  assert attack.data is not None
  of_attack = attack.data

  def seen(data: ClientData, context: Any) -> ClientData:
    liar = who[context.client]

    def change(index: jax.Array, x: PyTree, y: jax.Array) -> tuple[PyTree, jax.Array]:
      found = of_attack(index, x, y, num_classes)
      return jax.tree.map(lambda own, real: jnp.where(liar, own, real).astype(real.dtype), found, (x, y))

    return dataclasses.replace(data, change=change)

  return with_rows(client, seen)


def forged(
  attack: Attack, key: jax.Array, uploads: Message, liars: jax.Array, broadcast: Message, present: jax.Array,
  of_model: bool,
) -> Message:  # fmt: skip
  """Returns the cohort's uploads, of which those of dishonest clients are forged; the others keep their bits.

  Args:
    attack: an attack with `forge`.
    key: the round's key of the attack.
    uploads: the honest uploads, each leaf [S, ...].
    liars: which of the cohort's clients are dishonest, bool [S].
    broadcast: what the cohort received.
    present: whose uploads arrive, bool [S].
    of_model: whether uploads are updates of the broadcast, see `Needs.uploads_model`.

  Raises:
    SettingError: `forge` returns another form than the updates'.
  """
  assert attack.forge is not None

  def base(field: str) -> PyTree:
    own, start = getattr(uploads, field), getattr(broadcast, field)
    alike = of_model and same_form(form_of_one(own), start)
    return start if alike else jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), own)

  bases = Message(*map(base, Message._fields))
  updates = jax.tree.map(lambda u, z: u.astype(jnp.float32) - z.astype(jnp.float32), uploads, bases)
  found = attack.forge(key, updates, liars, present)
  if not same_form(found, updates):
    raise SettingError("attack's forge", attack.name, "returns another form", "Return updates as given.")

  def put(upload: jax.Array, start: jax.Array, own: jax.Array) -> jax.Array:
    sent = rounded(start.astype(jnp.float32) + own, upload.dtype)
    return jnp.where(over(liars, upload), sent, upload)

  return jax.tree.map(put, uploads, bases, found)
