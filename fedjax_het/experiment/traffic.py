"""Bytes between server and clients, counted on the host in whole numbers."""

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.message_bytes import message_bytes
from fedjax_het.engine.round import RoundInfo
from fedjax_het.parts import Algorithm


def traffic(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> dict[str, int]:
  """Computes the bytes that the algorithm sends to (down) and receives from (up) the clients of a round.

  An upload counts as its transforms send it, values, indices and scales, rounded up to a whole byte. An
  upload whose size depends on the training, see `Info.sent`, counts as if nothing of it were left out.

  Args:
    algorithm: the parts, made of concrete numbers.
    data: the clients' data.
    cohort_size: S, how many clients a round has.
  """
  each = message_bytes(algorithm, data, cohort_size)
  return {way: cohort_size * int(own) for way, own in each._asdict().items()}


def visits(infos: RoundInfo) -> int:
  """Returns how many clients some rounds sent the broadcast to, also those whose upload was lost."""
  return infos.cohort.size if isinstance(infos.contacted, tuple) else int(infos.contacted.sum())
