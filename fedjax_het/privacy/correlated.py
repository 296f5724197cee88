r"""Noise that is correlated over the rounds: matrix factorisation, by the package jax-privacy.

The server receives in round t the sum of the clipped updates and σ (C⁻¹ z)_t for z ~ N(0, I), where C is
lower triangular and Toeplitz, so that what one round has too much the later ones take back: the sum of the
rounds, which the model is, has less noise. Nothing is revealed but C G + σ z, G the rounds' sums, a single
Gaussian mechanism whose sensitivity is ‖C u‖ for the worst rounds u in which a client takes part.

banded   C has b bands, chosen for the least mean squared error of all sums of T rounds. Choquette-Choo et
         al., (Amplified) Banded Matrix Factorization, NeurIPS 2023 (arXiv:2306.08153).
blt      C's coefficients are sums of b falling powers, so that b buffers suffice for it and for C⁻¹, chosen
         for the least maximal error. Dvijotham et al., FOCS 2024 (arXiv:2404.16706); McMahan, Xu, Zhang,
         2024 (arXiv:2408.08868).

The coefficients fall, so that rounds as near to one another as they may be are the worst (Theorem 2 of
arXiv:2405.13763): ‖C u‖ for u = 1 in the rounds 0, s, 2s, ... with the least separation s.
"""

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.parts.privacy import Sampling, Strategy
from fedjax_het.privacy.accounting import required

Made = TypeVar("Made")
KINDS = ("none", "banded", "blt")


class Factor(NamedTuple):
  """C for T rounds.

  Attributes:
    coefficients: its first column, float64 [T].
    inverse: () -> jax-privacy's `StreamingMatrix` of C⁻¹, which makes the noise round by round.
  """

  coefficients: np.ndarray
  inverse: Callable[[], Any]


def apart(make: Callable[[], Made]) -> Made:
  """Returns make(), called in a thread of its own, which no tracing of the caller's reaches."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(make).result()


@functools.lru_cache(maxsize=64)
def factor(kind: str, rounds: int, bands: int, separation: int) -> Factor:
  """Computes C for T rounds; it takes a second or two.

  Args:
    kind: "banded" or "blt".
    rounds: T.
    bands: b, of "banded"; of "blt" the number of its buffers.
    separation: the least number of rounds between two in which a client takes part, for "blt".

  Raises:
    SettingError: jax-privacy is not installed.
  """
  package = "jax_privacy.matrix_factorization"
  if kind == "banded":
    toeplitz = required(f"{package}.toeplitz")
    few = min(bands, rounds)
    found = apart(lambda: np.asarray(toeplitz.optimize_banded_toeplitz(rounds, few), np.float32))
    coefficients = np.pad(found.astype(np.float64), (0, rounds - few))
    return Factor(coefficients, lambda: toeplitz.inverse_as_streaming_matrix(found))
  buffered, jax = required(f"{package}.buffered_toeplitz"), required("jax")

  def optimised() -> tuple[np.ndarray, np.ndarray]:
    with jax.enable_x64(True):
      made = buffered.optimize(
        n=rounds, min_sep=separation, max_participations=None, min_buffers=bands, max_buffers=bands
      )
      return np.asarray(made.buf_decay, np.float32), np.asarray(made.output_scale, np.float32)

  decay, scale = apart(optimised)
  powers = decay.astype(np.float64)[None, :] ** np.arange(max(rounds - 1, 0))[:, None]
  coefficients = np.append(1.0, powers @ scale.astype(np.float64))
  builder = buffered.StreamingMatrixBuilder(buf_decay=decay, output_scale=scale)
  return Factor(coefficients, builder.build_inverse)


def sensitivity(coefficients: np.ndarray, separation: int, rounds: int) -> float:
  """Computes ‖C u‖ for u = 1 in the rounds 0, s, 2s, ... of T.

  Args:
    coefficients: C's first column, which falls and is not negative.
    separation: s.
    rounds: T, at most the length of the column.
  """
  total = np.zeros(rounds)
  for first in range(0, rounds, separation):
    total[first:] += coefficients[: rounds - first]
  return float(np.linalg.norm(total))


def strategy(kind: str, rounds: int, bands: int, sampling: Sampling) -> Strategy:
  """Returns C of `factor` as the ledger needs it.

  Raises:
    SettingError: the coefficients that were found do not fall, or jax-privacy is not installed.
  """
  own = factor(kind, rounds, bands, sampling.separation).coefficients
  if not ((own >= 0).all() and (np.diff(own) <= 1e-6).all()):
    remedy = "Use fewer, of which the least error is found more surely."
    raise SettingError("aggregation's bands", bands, "the matrix that was found has no known bound", remedy)
  return Strategy(kind, lambda done: sensitivity(own, sampling.separation, min(done, rounds)))
