"""The upload part of an algorithm: what becomes of an upload on its way, and how many bits it is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_het.parts.message import PyTree


class Wire(NamedTuple):
  """What is sent of one tensor of a difference, in whole numbers.

  Attributes:
    size: n, how many numbers the tensor has.
    values: how many of them are sent.
    bits: bits of each of these.
    more: bits that are sent beside them, such as indices and scales.
  """

  size: int
  values: int
  bits: int = 32
  more: int = 0

  @property
  def total(self) -> int:
    """All bits."""
    return self.values * self.bits + self.more


class Way(NamedTuple):
  """What a transform may look at beside the difference.

  Attributes:
    shared: the present values of `Upload.shared`.
    sent: which numbers an earlier transform has left to be sent, bool, in the form of the difference; None
      for all. The others are 0, and stay so.
  """

  shared: PyTree = ()
  sent: Any = None


class Upload(NamedTuple):
  """A transform of what a client sends, which is the difference between its upload and its broadcast.

  A difference is a list of float32 arrays, one for each tensor that the method allows to be transformed, see
  `Needs.transformed`.

  Attributes:
    encode: (key, difference, state, way) -> (the difference as the server decodes it, state). The typed key
      is folded in from (seed, round, client, place of the transform in its chain).
    name: the transform's name, for reports.
    cost: what is sent of a tensor before the transform -> what is sent of it after; Python integers.
    init: (a difference of zeros) -> a client's first state; None for a transform without a state.
    error_feedback: whether what this transform and the compressors directly after it lose of a difference is
      added to the client's next one.
    compresses: whether the transform's purpose is to send fewer bits, so that error feedback may cover it.
    sparse: whether only the numbers that are not 0 are sent.
    shared: numbers of the server's that all clients receive, a tree of floats; () for none.
    report: (difference before the transform, shared) -> a client's proposal for the next `shared`, whose mean
      with equal weights it becomes.
    is_identity: whether the settings make the transform do nothing; `federated` then leaves it out.
  """

  encode: Callable[[jax.Array, list[jax.Array], PyTree, Way], tuple[list[jax.Array], PyTree]]
  name: str = "custom"
  cost: Callable[[Wire], Wire] = lambda wire: wire
  init: Callable[[list[jax.Array]], PyTree] | None = None
  error_feedback: bool = False
  compresses: bool = False
  sparse: bool = False
  shared: PyTree = ()
  report: Callable[[list[jax.Array], PyTree], PyTree] = lambda difference, shared: shared
  is_identity: bool = False
