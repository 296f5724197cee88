r"""The ledger of record-level privacy: ε of what each client sends, for one of its records.

A client of n records, R rounds and L mini-batches a round that a record may be in (`parts.Records.releases`)
sends what is made of R L noised sums. The g gradients of one mini-batch are one Gaussian mechanism of
multiplier z/√g: given the batch, each has a deviation of z clips.

==========  ==================  =======================================================================
batches     neighbours          accountant
==========  ==================  =======================================================================
drawn       add or remove one   "PLD" of `TruncatedSubsampledGaussianDpEvent`, with q = min(1, B/n) and
                                the program's capacity; below z = 0.1 as shuffled ones, an upper bound
shuffled    replace one         "Gaussian" of multiplier z / (2 √g), no amplification: a replaced record
                                changes one sum of an epoch by 2C at most, whatever the order
==========  ==================  =======================================================================

The number n counts as public, as in DP-SGD's own analysis: it is in q, in B̄ and in the mixing's weights.
Sources: Abadi et al., CCS 2016; Ganesh, McKenna, Mahajan, arXiv:2508.15089, 2025, for the capacity.
"""

import functools
import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.parts import Records
from fedjax_het.privacy.accounting import least_noise, neighbours_of, of_poisson_samples, required
from fedjax_het.settings import Count, Positive, Range, checked

Delta = Annotated[float, Range(above=0.0, below=1.0, on_host=True)]

LEAST = 0.1  # multiplier below which no amplification is counted, as next to nothing is protected
STEP, POINTS = 1e-3, 3e5  # of the losses' grid, rounded up: the least step, the most points
MOST = 24  # with more different clients, not all are computed, see `spread`

package = functools.partial(required, "dp_accounting", "dp_clip")  # raises `SettingError` if it is missing


class Spread(NamedTuple):
  """ε over the clients that took part.

  Attributes:
    largest: the largest ε.
    median: that of the client in the middle.
  """

  largest: float
  median: float


def accountant(records: Records) -> str:
  """Returns how ε is computed: "PLD" if batches are Poisson samples of the records, else "Gaussian"."""
  return "PLD" if records.capacity is not None else "Gaussian"


def neighbours(records: Records) -> str:
  """Returns between which sets of records ε holds."""
  return neighbours_of(accountant(records))


def default_delta(sizes: ArrayLike) -> float:
  """Returns n^-1.1 of the largest client, the smallest δ that any of them would choose."""
  return float(max(int(np.max(np.asarray(sizes), initial=2)), 2)) ** -1.1


def epsilon(records: Records, examples: int, rounds: int, delta: float) -> float:
  """Computes ε at δ for one record of a client; infinity without noise, 0 for a client that sent nothing.

  Args:
    records: the client part's, `client.studies.records`.
    examples: n, the client's training examples.
    rounds: in how many rounds it took part.
    delta: δ.
  """
  count = rounds * records.releases(examples)
  multiplier = float(records.noise_multiplier) / math.sqrt(records.gradients)
  if count == 0:
    return 0.0
  if not multiplier > 0:
    return math.inf
  if records.capacity is None or multiplier < LEAST:
    return float(package().get_epsilon_gaussian(multiplier / (2.0 * math.sqrt(count)), delta))
  chance = min(1.0, records.batch_size / examples)
  return _drawn(examples, chance, records.capacity, multiplier, count, delta)


def _drawn(examples: int, chance: float, capacity: int, multiplier: float, count: int, delta: float) -> float:
  package()  # or the error of the ledger of records
  # A loss of next to no noise is thousands a batch, whose grid would fill the memory.
  widest = (0.5 + chance * 0.5 * count) / multiplier**2 + 20.0 / multiplier
  step = 10.0 ** math.ceil(math.log10(max(STEP, widest / POINTS)))
  return of_poisson_samples(examples, chance, capacity, multiplier, count, delta, step)


@checked
def noise_multiplier(
  target: Positive, *, records: Records, examples: Count, rounds: Count, delta: Delta
) -> float:
  """Finds the noise multiplier z with which a client's record has at most a given ε, to 1 in 1,000.

  Args:
    target: ε > 0.
    records: the client part's, `client.studies.records`, whose own z is not read.
    examples: n, the client's training examples.
    rounds: in how many rounds it takes part.
    delta: δ.

  Raises:
    SettingError: an argument is out of range, or dp-accounting is not installed.
  """

  def told(z: float) -> float:
    return epsilon(records._replace(noise_multiplier=z), examples, rounds, delta)

  return least_noise(told, target)


def notes(records: Records, sizes: ArrayLike, rounds: int, share: float, delta: float) -> Iterator[str]:
  """Yields the ε of a record that is expected of the client with the largest, before a run.

  Args:
    records: the client part's.
    sizes: n of each client, int [K].
    rounds: T of the run.
    share: the share of the rounds that a client takes part in on average, S/K.
    delta: δ.
  """
  known = {int(n) for n in np.asarray(sizes) if n > 0}
  if not known:
    return
  examples, usual = max(known, key=lambda n: _lost(records, (n, rounds))), math.ceil(share * rounds)
  figures = [in_words(epsilon(records, examples, count, delta)) for count in dict.fromkeys((usual, rounds))]
  whole = f", and {figures[-1]} in all" if len(figures) > 1 else ""
  yield (
    f"privacy of a record: {figures[0]} at δ = {delta:.2g} if its client, of {examples} examples, takes part "
    f"in {usual} of {rounds} rounds{whole} ({accountant(records)}, {neighbours(records)})."
  )


def in_words(epsilon: float | None) -> str:
  """Returns ε as text; None or infinity is no bound."""
  return f"ε = {'∞' if epsilon is None or epsilon == math.inf else f'{epsilon:.3g}'}"


def _lost(records: Records, pair: tuple[int, int]) -> float:
  """Returns rounds · releases · q² of a client of (n, rounds), by which clients are ordered."""
  chance = 1.0 if records.capacity is None else min(1.0, records.batch_size / pair[0])
  return pair[1] * records.releases(pair[0]) * chance**2


def spread(records: Records, sizes: ArrayLike, rounds: ArrayLike, delta: float) -> Spread:
  """Computes the largest and the median ε over the clients that took part; 0 if none did.

  With more than `MOST` different pairs (n, rounds), ε is computed for the `MOST` with the largest rounds ·
  releases · q², to which a drawn mechanism's μ² of the central limit is proportional, and for the client in
  the middle of that order.

  Args:
    records: the client part's.
    sizes: n of each client, int [K].
    rounds: in how many rounds each took part, int [K].
    delta: δ.
  """
  n, t = np.asarray(sizes), np.asarray(rounds)
  known = [(int(a), int(b)) for a, b in zip(n[t > 0], t[t > 0])]
  if not known:
    return Spread(0.0, 0.0)
  if len({*known}) <= MOST:
    found = {pair: epsilon(records, *pair, delta) for pair in {*known}}
    return Spread(max(found.values()), float(np.median([found[pair] for pair in known])))
  lost = functools.partial(_lost, records)
  order = sorted({*known}, key=lost)
  middle = sorted(known, key=lost)[len(known) // 2]
  most = max(epsilon(records, *pair, delta) for pair in order[-MOST:])
  return Spread(most, epsilon(records, *middle, delta))
