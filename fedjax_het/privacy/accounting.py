r"""ε of the Gaussian mechanisms of a run, by the package dp-accounting.

A round's mechanism adds N(0, (z C)² I) to the sum of the contributions, each of norm C at most. What T of
them reveal is counted by who takes part, see `parts.Sampling`:

==========  =================  ============================================================================
kind        neighbours         accountant
==========  =================  ============================================================================
"poisson"   add-or-remove-one  "PLD", privacy loss distributions, of the event
                               `TruncatedSubsampledGaussianDpEvent` with the program's capacity
"fixed"     replace-one        "RDP", Rényi orders, of sampling S of K without replacement and a Gaussian of
                               multiplier z/2: replaced contributions are up to 2C apart; or ε of the next
                               row where that is less, as orders of finitely many stay above some ε
others      replace-one        "Gaussian", exact, of multiplier z / (2√T): no amplification, all rounds
correlated  replace-one        "Gaussian", exact, of multiplier z / (2 ‖C‖), see `parts.Strategy`
==========  =================  ============================================================================

"fixed" with S = K, where nobody is left out, is one of the others. Sources: Abadi et al., CCS 2016; Koskela,
Jälkö, Honkela, AISTATS 2020; Wang, Balle, Kasiviswanathan, AISTATS 2019; Balle and Wang, ICML 2018, whose
exact conversion the last two rows use; Ganesh, McKenna, Mahajan, 2025 (arXiv:2508.15089), for the capacity.
"""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.parts.privacy import Sampling, Strategy

INTERVAL, MOST_LOSSES = 1e-4, 4e5  # between two privacy losses, of which there are at most so many in a round
FINER, MOST_FINER = 1.0002, 500  # steps from a noise multiplier near the wanted one to one that is enough


def required(package: str, setting: str = "privacy") -> Any:
  """Imports a package of the extra `privacy`, which a setting needs.

  Raises:
    SettingError: it is not installed.
  """
  try:
    return importlib.import_module(package)
  except ImportError as error:
    raise SettingError(
      setting, package.partition(".")[0], f"cannot be imported ({error})",
      "Install it by: pip install 'fedjax_het[privacy]'.",
    ) from error  # fmt: skip


class Rounds(NamedTuple):
  """The mechanism of each round of a run, in plain numbers.

  Attributes:
    sampling: who takes part.
    multiplier: z.
    amplified: whether a client's chance of being left out may protect it.
    strategy: C of noise that is correlated over the rounds; None for fresh noise.
  """

  sampling: Sampling
  multiplier: float
  amplified: bool = True
  strategy: Strategy | None = None

  @property
  def accountant(self) -> str:
    """Returns "PLD", "RDP" or "Gaussian", see the module."""
    of = self.sampling
    if self.strategy is not None or not self.amplified:
      return "Gaussian"
    if of.kind == "poisson":
      return "PLD"
    return "RDP" if of.kind == "fixed" and of.cohort_size < of.num_clients else "Gaussian"

  @property
  def neighbours(self) -> str:
    """Returns between which sets of clients ε holds."""
    return neighbours_of(self.accountant)

  def epsilon(self, rounds: int, delta: float) -> float:
    """Returns ε of so many rounds at δ; infinity where there is no bound."""
    if rounds == 0:
      return 0.0
    if not self.multiplier > 0:
      return math.inf
    of = self.sampling
    if self.accountant == "PLD":
      probability = float(of.probability)
      return _poisson(of.num_clients, probability, of.capacity, float(self.multiplier), rounds, delta)
    if self.accountant == "RDP":
      return _fixed(of.num_clients, of.cohort_size, float(self.multiplier), rounds, delta)
    length = math.sqrt(rounds) if self.strategy is None else self.strategy.sensitivity(rounds)
    return _gaussian(float(self.multiplier) / (2.0 * length), delta)


def neighbours_of(accountant: str) -> str:
  """Returns the neighbouring relation of an accountant's ε: "add-or-remove-one" or "replace-one".

  Args:
    accountant: its name, such as "PLD", which counts a client (or example) that is absent in the other data
      set; the others count one that is replaced.
  """
  return "add-or-remove-one" if accountant == "PLD" else "replace-one"


@functools.lru_cache(maxsize=64)
def _one_sample(size: int, probability: float, capacity: int, multiplier: float, interval: float) -> Any:
  """Returns the privacy loss distribution of one noised Poisson sample, which takes two seconds."""
  required("dp_accounting")
  losses = required("dp_accounting.pld.privacy_loss_distribution")
  return losses.from_truncated_subsampled_gaussian_mechanism(
    dataset_size=size, sampling_probability=probability, truncated_batch_size=capacity,
    noise_multiplier=multiplier, value_discretization_interval=interval,
  )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def of_poisson_samples(
  size: int, probability: float, capacity: int, multiplier: float, count: int, delta: float, interval: float
) -> float:
  """Computes ε of several noised sums, each over a Poisson sample, between one member more and one less.

  Args:
    size: the number of members, clients or records.
    probability: the probability with which each is in a sample, independently of the others.
    capacity: the most members of a sample; of more, so many are kept at random.
    multiplier: the noise's standard deviation over a member's largest contribution, > 0.
    count: the number of sums.
    delta: δ.
    interval: what privacy losses are rounded up to multiples of, so that ε is never too small.
  """
  with np.errstate(over="ignore", under="ignore"):  # of losses that have next to no mass
    one = _one_sample(size, probability, min(capacity, size), multiplier, interval)
    return float(one.self_compose(count).get_epsilon_for_delta(delta))


def _poisson(
  num_clients: int, probability: float, capacity: int, multiplier: float, rounds: int, delta: float,
  interval: float = INTERVAL,
) -> float:  # fmt: skip
  widest = 0.5 / multiplier**2 + 10.0 / multiplier  # of little noise there would be no end
  interval = max(interval, widest / MOST_LOSSES)
  return of_poisson_samples(num_clients, probability, capacity, multiplier, rounds, delta, interval)


@functools.lru_cache(maxsize=4096)
def _fixed(num_clients: int, cohort_size: int, multiplier: float, rounds: int, delta: float) -> float:
  dp, rdp = required("dp_accounting"), required("dp_accounting.rdp")
  accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
  event = dp.SampledWithoutReplacementDpEvent(num_clients, cohort_size, dp.GaussianDpEvent(multiplier / 2.0))
  unamplified = _gaussian(multiplier / (2.0 * math.sqrt(rounds)), delta)  # whoever takes part in all rounds
  return min(float(accountant.compose(event, rounds).get_epsilon(delta)), unamplified)


@functools.lru_cache(maxsize=4096)
def _gaussian(multiplier: float, delta: float) -> float:
  return float(required("dp_accounting").get_epsilon_gaussian(multiplier, delta))


def default_delta(num_clients: int) -> float:
  """Computes δ = K^-1.1, which is below the 1/K at which one client in K may be published; at most 2^-1.1."""
  return float(max(num_clients, 2)) ** -1.1


def calibrated(of: Rounds, epsilon: float, rounds: int, delta: float) -> float:
  """Finds a noise multiplier z for which T rounds have at most a given ε at δ, the least to 1 in 1,000.

  Args:
    of: the mechanism, whose own multiplier is not read.
    epsilon: the target, > 0.
    rounds: T.
    delta: δ.

  Raises:
    SettingError: dp-accounting is not installed.
  """
  if of.accountant == "Gaussian":  # in closed form
    length = math.sqrt(rounds) if of.strategy is None else of.strategy.sensitivity(rounds)
    return float(2.0 * length * required("dp_accounting").get_sigma_gaussian(epsilon, delta))

  def exact(z: float) -> float:
    return of._replace(multiplier=z).epsilon(rounds, delta)

  near = None
  if of.accountant == "PLD":  # whose search is by coarser losses
    by, coarse = of.sampling, max(INTERVAL, 1e-3 * epsilon)
    where = by.num_clients, float(by.probability), by.capacity
    near = lambda z: _poisson(*where, z, rounds, delta, coarse)  # noqa: E731
  return least_noise(exact, epsilon, near)


def least_noise(
  epsilon_of: Callable[[float], float], target: float, near: Callable[[float], float] | None = None
) -> float:
  """Finds a noise multiplier z with epsilon_of(z) <= target, the least to 1 in 1,000.

  Args:
    epsilon_of: z -> ε.
    target: the target, > 0.
    near: a cheaper approximation of `epsilon_of`, by which z is searched; None for itself.

  Raises:
    SettingError: ε stays above the target near the z that is found, as where its bound has a least value.
  """
  found = by_secants(near or epsilon_of, target)
  for _ in range(MOST_FINER):
    if epsilon_of(found) <= target:
      return found
    found *= FINER
  remedy = "Use a larger one, or a larger delta."
  raise SettingError("epsilon", target, "no noise is found for so small a target", remedy)


def by_secants(epsilon_of: Callable[[float], float], target: float) -> float:
  """Finds z with epsilon_of(z) = target to 1 in 10^4 by secants, as log ε is nearly linear in log z."""
  points = [(math.log(z), math.log(max(epsilon_of(z), 1e-12) / target)) for z in (1.0, 0.9)]
  for _ in range(20):
    (x0, y0), (x1, y1) = points[-2:]
    if abs(y1) < 1e-4 or y1 == y0:
      break
    x = x1 - max(min(y1 * (x1 - x0) / (y1 - y0), 0.7), -0.7)
    points.append((x, math.log(max(epsilon_of(math.exp(x)), 1e-12) / target)))
  return math.exp(points[-1][0])
