"""Composes a federated algorithm of its parts."""

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import jax

from fedjax_het import mixing as mixings
from fedjax_het import server as servers
from fedjax_het import system as systems
from fedjax_het.errors import SettingError, is_zero, listed
from fedjax_het.participation.among import Arrival
from fedjax_het.participation.available import drawn_uniformly
from fedjax_het.parts import (
  Aggregation,
  Algorithm,
  Asynchronous,
  Attack,
  ClientUpdate,
  InitBroadcastFn,
  Message,
  Mixing,
  Needs,
  Participation,
  ServerUpdate,
  Studies,
  System,
  Upload,
)
from fedjax_het.privacy.void import check_private
from fedjax_het.settings import with_defaults
from fedjax_het.uploads import transformed

KINDS: tuple[type, ...] = (
  ClientUpdate, Mixing, ServerUpdate, Aggregation, Participation, Attack, System, Asynchronous,
)  # fmt: skip


def federated(
  client: ClientUpdate,
  mixing: Mixing | None = None,
  server: ServerUpdate | None = None,
  *,
  uploads: Iterable[Upload] = (),
  aggregation: Aggregation | None = None,
  participation: Participation | None = None,
  attack: Attack | None = None,
  system: System | None = None,
  asynchronous: Asynchronous | None = None,
) -> Algorithm:
  """Composes an algorithm; by default clients count by n_i and the server moves to their average.

  An aggregation whose settings make it the weighted mean is left out, see `Aggregation.is_mean`, and so are
  an upload transform that does nothing, see `Upload.is_identity`, and an attack of nobody.

  Args:
    client: what a client does.
    mixing: how much each client counts; None for the part that the client part brings, else `static`.
    server: how the server moves; None for the part that the client part brings, else `sgd`.
    uploads: what becomes of an upload on its way, in this order; the client part returned has them inside.
    aggregation: how uploads become one.
    participation: who takes part, who arrives, and how much of the work each does.
    attack: what dishonest clients do.
    system: how long clients and server take, for a run that simulates time.
    asynchronous: how many clients train at once, and for how many of them the server waits; its system is by
      default that of equally fast clients.

  Raises:
    SettingError: an argument is not a part, for example a factory that was not called; a part's `needs` or
      `studies` are of another type, or its `needs` have a field that only other parts have; the mixing part
      scales updates and the client part uploads none, or the server part sends each client a message of its
      own; the server part takes models and the client part uploads signals, or the reverse; the mixing or
      aggregation part protects from dishonest uploads and the client part sends fields that it does not act
      on, see `Needs.covers`; the aggregation part combines updates and the client part uploads none, or the
      server part reads no aggregate; the participation part leaves clients out, and another part does not
      know of absent ones (`Mixing.takes_absent`); the system part decides who arrives and another part needs
      what nobody knows then, see `checked_system`; an attack changes classes that the task does not have, or
      forges updates that have no one broadcast; a part reads the examples that record-level privacy protects;
      the client part brings another mixing or server part, see
      `Needs.brings`; the mixing or the server part refuses the others, see `ServerUpdate.adapt_to`;
      with an asynchronous part, another one needs a whole cohort; or a part voids the privacy that another
      promises, see `privacy.void`.
  """
  brought = getattr(getattr(client, "needs", None), "brings", {})
  for asked, own in (("mixing", mixing), ("server", server)):
    if own is not None and asked in brought and getattr(own, "name", None) != brought[asked].name:
      problem = f"{client.name} brings a {asked} part of its own, {brought[asked].name}"
      raise SettingError(asked, getattr(own, "name", own), problem, f"Leave the {asked} out.")
  mixing = brought.get("mixing", mixings.static()) if mixing is None else mixing
  server = brought.get("server", servers.sgd()) if server is None else server
  combined = Aggregation() if aggregation is None else aggregation
  present = Participation() if participation is None else participation
  parts = Algorithm(
    client, mixing, server, combined, present, Attack() if attack is None else attack,
    System() if system is None else system,
    Asynchronous() if asynchronous is None else asynchronous,
  )  # fmt: skip
  for role, part, kind in zip(Algorithm._fields, parts, KINDS):
    if not isinstance(part, kind):
      what = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
      remedy = "Give client, mixing, server in this order."
      if callable(part) or isinstance(part, str):
        remedy = f"Call the factory: {what}(...)."
      raise SettingError(
        role, what, f"is not {'an' if kind.__name__[0] == 'A' else 'a'} {kind.__name__}", remedy
      )
    check_fields(role, part)
  if parts.mixing.adapt_to is not None:
    parts = parts._replace(mixing=parts.mixing.adapt_to(parts.client))
  if wanted := [one for one in checked_transforms(uploads) if not one.is_identity]:
    parts = parts._replace(client=transformed(client, wanted))
  if parts.mixing.scale is not None and not parts.client.needs.uploads_model:
    raise SettingError(
      "mixing", parts.mixing.name, f"scales the clients' updates, and {parts.client.name} uploads no model",
      "Use a mixing that only weighs what is uploaded, such as uniform.",
    )  # fmt: skip
  if parts.mixing.scale is not None and parts.server.send is not None:
    raise SettingError(
      "mixing", parts.mixing.name, "scales the clients' updates from one broadcast, and "
      f"{parts.server.name} sends each client its own", "Use a mixing that only weighs, such as uniform.",
    )  # fmt: skip
  if parts.server.takes_models != parts.client.needs.uploads_model:
    given, fitting = ("models", "sgd") if parts.client.needs.uploads_model else ("signals", "sgld")
    raise SettingError(
      "server", parts.server.name, f"does not take the {given} that {parts.client.name} uploads",
      f"Use a server part that does, such as {fitting}.",
    )  # fmt: skip
  parts = checked_attack(checked_system(parts))
  whole = parts.participation.draw is None or not parts.aggregation.by_expected
  if whole and parts.aggregation.is_mean(parts.mixing):
    parts = parts._replace(aggregation=Aggregation())
  if parts.aggregation.of_updates and not parts.client.needs.uploads_model:
    raise SettingError(
      "aggregation", parts.aggregation.name, f"combines clients' updates, and {parts.client.name} uploads no "
      "model", "Use one that combines what is uploaded, such as median.",
    )  # fmt: skip
  if parts.aggregation.combine is not None and not parts.server.uses_aggregate:
    problem = f"makes one upload of all, and server {parts.server.name} looks at each"
    raise SettingError("aggregation", parts.aggregation.name, problem, "Leave the aggregation out.")
  check_private(parts, wanted)
  if parts.participation.draw is not None:
    _check_absent(parts, "system" if parts.system.selects and present.draw is None else "participation")
  if parts.asynchronous.overlaps:
    parts = _overlapping(parts)
  if parts.covering:
    # Uploads are known, and checked again, only with data. Here the client part may still be around a model
    # that it refuses, such as the placeholder of a configuration that is checked.
    first = Message(())
    with contextlib.suppress(SettingError):
      first = first_shapes(parts.client.init_broadcast)  # type: ignore[arg-type]
    parts.check_covered(first)
  if parts.client.studies.records is not None:
    _check_records(parts)
  if parts.server.adapt_to is None:
    return parts
  parts = parts._replace(server=parts.server.adapt_to(parts.client, parts.mixing))
  check_private(parts, wanted)
  return parts


@functools.lru_cache(maxsize=1)  # `methods.compositions` tries a client part with all other parts in turn
def first_shapes(init_broadcast: InitBroadcastFn) -> Message:
  """Returns the shapes of a client part's first broadcast."""
  return jax.eval_shape(init_broadcast, jax.random.key(0))


def checked_attack(parts: Algorithm) -> Algorithm:
  """Returns the parts without an attack of nobody; raises `SettingError` for one that cannot be."""
  client, server, attack = parts.client, parts.server, parts.attack
  if is_zero(attack.share):
    return parts._replace(attack=Attack())
  if attack.data is not None and not client.task.classes:
    problem = f"changes classes, and the task is {client.task.name}"
    raise SettingError("attack", attack.name, problem, "Use one that forges uploads, such as sign_flip.")
  if attack.forge is not None and server.send is not None:
    problem = f"forges updates of one broadcast, and {server.name} sends each client its own"
    raise SettingError("attack", attack.name, problem, "Use one of rows, such as label_flip.")
  return parts


def checked_transforms(uploads: Any) -> list[Upload]:
  """Returns the upload transforms as a list; raises `SettingError` for anything else."""
  if isinstance(uploads, Upload):
    problem, remedy = "is one, and not a sequence of transforms", "Write uploads=[...]."
    raise SettingError("uploads", uploads.name, problem, remedy)
  found = listed("uploads", uploads, "transforms")
  for place, one in enumerate(found):
    if not isinstance(one, Upload):
      what = getattr(one, "__name__", type(one).__name__)
      remedy = f"Call the factory: {what}(...)." if callable(one) else "Give fh.uploads.clip(...), say."
      raise SettingError(f"uploads.{place}", what, "is not an Upload", remedy)
  return found


def checked_system(parts: Algorithm) -> Algorithm:
  """Returns the parts with a participation that draws where the system part decides who arrives.

  Raises:
    SettingError: the system part has a deadline, say, and no speeds; nobody knows before a client has trained
      how many steps it takes; or a part needs the probability with which a client arrives, or unbiased
      aggregates, which there are none of among those that are fast enough.
  """
  system, participation = parts.system, parts.participation
  if not system.there and system != System(name=system.name, needs=system.needs):
    problem = "has a deadline, an over-selection or server seconds, and no speeds"
    raise SettingError("system", system.name, problem, "Give it speeds, as fh.system.lognormal() has.")
  if not system.selects:
    return parts
  parts.training_in_steps()
  needed = ""
  if participation.unbiased:
    needed = f"participation {participation.name} corrects by the probabilities with which clients arrive"
  elif system.over_selects and parts.mixing.needs.probability:
    needed = f"mixing {parts.mixing.name} reads the probabilities with which clients arrive"
  if needed:
    problem = f"lets those arrive that are fast enough, and {needed}, which are not known"
    remedy = "Leave out deadline and over_selection, or use another."
    raise SettingError("system", system.name, problem, remedy)
  if participation.draw is None:
    participation = drawn_uniformly(with_defaults(Arrival, Arrival()))
  return parts._replace(participation=participation)


def _check_absent(parts: Algorithm, role: str) -> None:
  """Raises `SettingError` unless the other parts can do without clients that do not arrive.

  Args:
    parts: the parts.
    role: the one that leaves them out, "participation" or "system".
  """
  name, refused, instead = getattr(parts, role).name, "", "a method such as fedavg, with the server sgd"
  if not parts.mixing.takes_absent:
    refused, instead = f"mixing {parts.mixing.name} counts on a whole cohort", "static mixing"
  elif parts.server.takes_feedback:
    refused, instead = f"server {parts.server.name} looks at a whole cohort", "a server such as sgd"
  elif parts.participation.cuts_work and parts.client.training is None:
    refused = f"{parts.client.name} cannot stop before its last step"
  elif parts.participation.unbiased and parts.mixing.population is None:
    refused = (
      f"mixing {parts.mixing.name} has no coefficients of all clients, by which they could be corrected"
    )
    instead = "static mixing"
  elif parts.participation.unbiased and not (parts.client.needs.uploads_model and parts.server.send is None):
    refused = f"{parts.client.name} or {parts.server.name} has no updates of one broadcast"
  elif parts.participation.unbiased and parts.server.takes_share:
    refused = f"server {parts.server.name} adds up what those that arrive have sent, uncorrected"
  elif parts.participation.unbiased and parts.aggregation.combine is not None:
    refused = f"aggregation {parts.aggregation.name} is no mean, of which there is an unbiased estimate"
    instead = "the mean"
  if refused:
    remedy = f"Use {instead}, or leave {role} out."
    raise SettingError(role, name, f"leaves clients or steps out, and {refused}", remedy)


def _check_records(parts: Algorithm) -> None:
  """Raises `SettingError` for parts that read records beside the noised gradients of record-level privacy."""
  client, reads = parts.client, ""
  if client.first_pass is not None:
    reads = "has a first pass over its clients' examples"
  elif "init" in client.needs.sees_data:
    reads = "makes its clients' first states of their examples"
  elif "update" in client.needs.sees_data:
    reads = "goes by its clients' validation examples"
  part: Any
  for role, part in zip(Algorithm._fields, parts):
    told = ", ".join(own.what for own in part.needs.releases if not own.sizes_only)
    problem = f"is made of the clients' {told}" if told else reads if part is client else ""
    if problem:
      setting = "algorithm" if part is client else role
      raise SettingError(
        setting, part.name, f"{problem}, which dp_clip does not bound", "Leave dp_clip out, or use another."
      )


def _overlapping(parts: Algorithm) -> Algorithm:
  """Returns the parts with a system; raises `SettingError` if one of them needs whole cohorts."""
  client, mixing, server, _, participation, _, system, own = parts
  refused, remedy = "", "Use another one, or leave asynchronous out."
  if client.training is None:
    refused = f"{client.name} does not say how long it trains before it has"
  elif client.first_pass is not None:
    refused = f"{client.name} has a pass of the whole cohort before it trains"
  elif not client.needs.uploads_model:
    refused = f"{client.name} uploads no update of what it received"
  elif server.send is not None:
    refused = f"server {server.name} sends each client its own message, of which an update may not be stale"
  elif mixing.needs.probability:
    refused = f"mixing {mixing.name} reads the probabilities with which clients arrive, which are not known"
  elif system.selects:
    refused = f"system {system.name} has a deadline or over-selection, which are of whole cohorts"
  elif participation.draw is not None:
    refused = f"participation {participation.name} draws whole cohorts"
  if refused:
    raise SettingError(
      "asynchronous", own.name, f"lets clients train while the server moves, and {refused}", remedy
    )
  return parts if system.there else parts._replace(system=systems.constant())


def check_fields(role: str, part: Any) -> None:
  """Raises `SettingError` unless a part's `needs` and `studies` are what they have to be."""
  for field, kind in (("needs", Needs), ("studies", Studies)):
    value = getattr(part, field, None)
    if field in part._fields and not isinstance(value, kind):
      raise SettingError(
        f"{role}'s {field}", value, f"is not a {kind.__name__}", f"Write {field}=fh.{kind.__name__}(...)."
      )
  if names := ", ".join(part.needs.not_of(role)):
    raise SettingError(f"{role}'s needs", names, f"has no effect in a part of {role}", "Leave it out.")
