r"""Chains of upload transforms, with error feedback, around a client part.

Error feedback (Karimireddy et al., ICML 2019; Basu et al., Qsparse-local-SGD, NeurIPS 2019) covers the
compressor that asks for it and the compressors directly after it, together C. With the client's error e,

    x = Δ + e,     C(x) is sent,     e <- x - C(x),     so that  Σ_t C(x_t) + e_T = Σ_t Δ_t.

After a sparse transform that is not covered, C is given x with zeros for the numbers that are not sent now,
whose part of e waits until they are.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.parts import (
  ClientUpdate,
  LocalTraining,
  Message,
  Pooled,
  PyTree,
  Upload,
  Way,
  Wire,
  in_one_go,
)
from fedjax_het.vectors import same_form

TRANSFORMS = 0x75706C64  # folded into a client's key; no step or epoch has this number


class Kept(NamedTuple):
  """A client's state: the method's own, and that of the transforms."""

  own: PyTree
  transforms: PyTree


def chained(transforms: Sequence[Upload]) -> Upload:
  """Returns the transforms, one after another, as one."""

  def encode(key, difference, state, way):
    after, sent = [], way.sent
    for place, (one, own, shared) in enumerate(zip(transforms, state, way.shared)):
      difference, new = one.encode(jax.random.fold_in(key, place), difference, own, Way(shared, sent))
      if sent is not None:
        difference = [jnp.where(mask, leaf, 0.0) for mask, leaf in zip(sent, difference)]
      if one.sparse:
        sent = [leaf != 0.0 for leaf in difference]
      after.append(new)
    return difference, tuple(after)

  def cost(wire: Wire) -> Wire:
    for one in transforms:
      wire = one.cost(wire)
    return wire

  def report(difference, shared):
    return tuple(one.report(difference, own) for one, own in zip(transforms, shared))

  return Upload(
    encode, " > ".join(one.name for one in transforms), cost,
    init=lambda zeros: tuple(() if one.init is None else one.init(zeros) for one in transforms),
    sparse=any(one.sparse for one in transforms), shared=tuple(one.shared for one in transforms),
    report=report,
  )  # fmt: skip


def with_feedback(compressor: Upload) -> Upload:
  """Returns a compressor whose client adds what was lost of a difference to its next one."""

  def encode(key, difference, state, way):
    own, error = state
    wanted = [leaf + lost for leaf, lost in zip(difference, error)]
    given = wanted
    if way.sent is not None:  # e also has numbers that are left out now, and were sent in an earlier round
      given = [jnp.where(mask, leaf, 0.0) for mask, leaf in zip(way.sent, wanted)]
    decoded, own = compressor.encode(key, given, own, way)
    return decoded, (own, [leaf - sent for leaf, sent in zip(wanted, decoded)])

  def init(zeros):
    return () if compressor.init is None else compressor.init(zeros), zeros

  return compressor._replace(encode=encode, init=init)


def grouped(transforms: Iterable[Upload]) -> list[Upload]:
  """Returns the transforms with each run of compressors that error feedback covers as one."""
  found: list[list[Upload]] = []
  for one in transforms:
    if found and found[-1][0].error_feedback and one.compresses:
      found[-1].append(one)
    else:
      found.append([one])
  return [with_feedback(chained(own)) if own[0].error_feedback else own[0] for own in found]


class Tensors:
  """Those tensors of a client's upload that transforms may change, as differences from its broadcast.

  Tensors of whole numbers, and fields that are not in `Needs.transformed`, are sent as they are. A field that
  is no update of what was received, such as a signal, is its own difference. Values of `pooled` with the
  weight 0, which are not read, have the difference 0.
  """

  def __init__(self, client: ClientUpdate, broadcast: Message, upload: Message):
    """Sorts the leaves of an upload."""
    self._bases = {}
    for field in client.needs.transformed:
      own, base = values_of(upload, field), getattr(broadcast, field)
      alike = client.needs.uploads_model and same_form(own, base)
      self._bases[field] = jax.tree.leaves(base) if alike else [jnp.zeros(())] * len(jax.tree.leaves(own))
    self._upload = upload

  def differences(self) -> list[jax.Array]:
    """Returns the difference of each tensor, float32."""
    found = []
    for field, base in self._bases.items():
      for leaf, weight, own in zip(*self._leaves(field), base):
        if floating(leaf):
          away = leaf.astype(jnp.float32) - own.astype(jnp.float32)
          found.append(away if weight is None else jnp.where(weight > 0, away, 0.0))
    return found

  def sent(self, decoded: list[jax.Array], wire: PyTree) -> Message:
    """Returns the upload as the server has it."""
    parts, left = {}, iter(decoded)
    for field, base in self._bases.items():
      own = values_of(self._upload, field)
      leaves = [
        (start + next(left)).astype(leaf.dtype) if floating(leaf) else leaf
        for leaf, start in zip(jax.tree.leaves(own), base)
      ]
      parts[field] = jax.tree.unflatten(jax.tree.structure(own), leaves)
    if isinstance(self._upload.pooled, Pooled) and "pooled" in parts:
      parts["pooled"] = self._upload.pooled._replace(values=parts["pooled"])
    return self._upload._replace(**parts, wire=wire)

  def _leaves(self, field: str) -> tuple[list[jax.Array], list[Any]]:
    values = values_of(self._upload, field)
    leaves = jax.tree.leaves(values)
    if field != "pooled" or not leaves:
      return leaves, [None] * len(leaves)
    weights = jax.tree.leaves(jax.tree.broadcast(self._upload.pooled.weights, values))
    return leaves, [w.reshape(*w.shape, *[1] * (v.ndim - w.ndim)) for v, w in zip(leaves, weights)]


def values_of(message: Message, field: str) -> PyTree:
  """Returns a field's values, without the weights of `pooled`."""
  own = getattr(message, field)
  return own.values if isinstance(own, Pooled) else own


def floating(leaf: Any) -> bool:
  """Returns whether a leaf is of floats."""
  return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def bits_of(client: ClientUpdate, cost: Upload, upload: Message) -> int:
  """Returns the bits of an upload whose leaves have these shapes."""
  total = 0
  for field in Message._fields:
    coded = len(jax.tree.leaves(values_of(upload, field))) if field in client.needs.transformed else 0
    for place, leaf in enumerate(jax.tree.leaves(getattr(upload, field))):  # values come before weights
      if place < coded and floating(leaf):
        total += cost.cost(Wire(leaf.size, leaf.size)).total
      else:
        total += 8 * leaf.size * leaf.dtype.itemsize
  return total


def transformed(client: ClientUpdate, transforms: Sequence[Upload]) -> ClientUpdate:
  """Returns the client part whose uploads pass through a chain of transforms.

  A client's state becomes `Kept` if a transform has a state, of the form of the broadcast's fields that may
  be transformed. Local training stays in pieces, see `LocalTraining`.

  Raises:
    SettingError: the client part has all its uploads sent as they are; or, while an update is traced, with
      error feedback, where a client sends a field in another form than it received it.
  """
  if not client.needs.transformed:
    problem = f"changes nothing, as {client.name} says itself how all that it uploads is sent"
    raise SettingError("uploads", transforms[0].name, problem, "Leave it out.")
  groups = grouped(transforms)
  chain, keeps = chained(groups), any(one.init is not None for one in groups)
  start_of = chain.init or list
  shares = bool(jax.tree.leaves(chain.shared))

  def own(state: PyTree) -> PyTree:
    return state.own if keeps else state

  def init(key, broadcast, data, context):
    first = client.init(key, broadcast, data, context)
    if not keeps:
      return first
    fields = (getattr(broadcast, field) for field in client.needs.transformed)
    leaves = [leaf for field in fields for leaf in jax.tree.leaves(field) if floating(leaf)]
    return Kept(first, start_of([jnp.zeros(leaf.shape, jnp.float32) for leaf in leaves]))

  def send(key, broadcast, state, upload):
    tensors, shared = Tensors(client, broadcast, upload), broadcast.wire if shares else chain.shared
    difference = tensors.differences()
    kept = state.transforms if keeps else start_of(difference)
    if keeps:
      _check_alike(client, broadcast, upload)
    key = jax.random.fold_in(key, TRANSFORMS)
    decoded, kept = chain.encode(key, difference, kept, Way(shared))
    return tensors.sent(decoded, chain.report(difference, shared) if shares else ()), kept

  def update(key, broadcast, state, data, context):
    upload, new, info = client.update(key, broadcast, own(state), data, context)
    upload, kept = send(key, broadcast, state, upload)
    return upload, Kept(new, kept) if keeps else new, info

  def in_pieces(training: LocalTraining) -> LocalTraining:
    def start(broadcast, state, context):  # the first steps bring the key, which a last piece needs
      key = jax.random.key_data(jax.random.key(0))
      return jnp.zeros_like(key), training.start(broadcast, own(state), context)

    def run_steps(key, broadcast, state, data, context, work, first, last):
      work = training.run_steps(key, broadcast, own(state), data, context, work[1], first, last)
      return jax.random.key_data(key), work

    def finish(broadcast, state, data, context, work):
      upload, new, info = training.finish(broadcast, own(state), data, context, work[1])
      upload, kept = send(jax.random.wrap_key_data(work[0]), broadcast, state, upload)
      return upload, Kept(new, kept) if keeps else new, info

    return training._replace(start=start, run_steps=run_steps, finish=finish)

  def seeing_own(function, place):
    """Returns a function that receives the method's own state, or those of all clients, at this argument."""
    if function is None:
      return None
    return lambda *args: function(*args[:place], own(args[place]), *args[place + 1 :])

  def init_broadcast(key):
    return client.init_broadcast(key)._replace(wire=chain.shared if shares else ())

  return client._replace(
    init_broadcast=init_broadcast,
    init=init,
    update=update if client.training is None else in_one_go(in_pieces(client.training)),
    loss=seeing_own(client.loss, 1),
    personalize=seeing_own(client.personalize, 1),
    first_pass=seeing_own(client.first_pass, 2),
    studies=client.studies._replace(
      line=seeing_own(client.studies.line, 1),
      membership=seeing_own(client.studies.membership, 1),
      groups=seeing_own(client.studies.groups, 2),
      graph=seeing_own(client.studies.graph, 2),
    ),
    needs=client.needs._replace(  # rounding and errors lengthen an upload
      upload_norm=None, upload_bits=lambda upload: bits_of(client, chain, upload)
    ),
  )


def _check_alike(client: ClientUpdate, broadcast: Message, upload: Message) -> None:
  for field in client.needs.transformed:
    if not same_form(values_of(upload, field), values_of(broadcast, field)):
      raise SettingError(
        "uploads", "error_feedback", f"{client.name} does not send {field} in the form in which it receives "
        "it, and its clients' errors would have another form than their uploads",
        "Set error_feedback=False.",
      )  # fmt: skip
