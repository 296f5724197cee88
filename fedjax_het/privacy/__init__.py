"""Differential privacy: ε of a run's rounds, the noise for a target, and what voids the guarantee."""

from typing import Annotated

from fedjax_het.errors import SettingError
from fedjax_het.parts import Participation
from fedjax_het.privacy import records
from fedjax_het.privacy.accounting import Rounds, calibrated, default_delta
from fedjax_het.privacy.ledger import Ledger
from fedjax_het.settings import Count, NonNegative, Positive, Range, checked

__all__ = ["Ledger", "default_delta", "epsilon", "noise_multiplier", "records"]
Delta = Annotated[float, Range(above=0.0, below=1.0, on_host=True)]


def _rounds(multiplier: float, num_clients: int, cohort_size: int, of: Participation | None) -> Rounds:
  if cohort_size > num_clients:
    problem = f"there are {num_clients} clients"
    raise SettingError("cohort_size", cohort_size, problem, f"Use 1 to {num_clients}.")
  return Rounds((of or Participation()).sampled(num_clients, cohort_size), float(multiplier))


@checked
def epsilon(
  noise_multiplier: NonNegative,
  *,
  rounds: Count,
  num_clients: Count,
  cohort_size: Count,
  participation: Participation | None = None,
  delta: Delta | None = None,
) -> float:
  """Computes ε of a run under `aggregation.gaussian` with fresh noise and clients that keep no state.

  Args:
    noise_multiplier: z.
    rounds: T.
    num_clients: K.
    cohort_size: S.
    participation: who takes part; None for S of K clients, uniformly.
    delta: δ; None for K^-1.1.

  Raises:
    SettingError: an argument is out of range, or dp-accounting is not installed.
  """
  own = _rounds(noise_multiplier, num_clients, cohort_size, participation)
  return own.epsilon(rounds, delta or default_delta(num_clients))


@checked
def noise_multiplier(
  epsilon: Positive,
  *,
  rounds: Count,
  num_clients: Count,
  cohort_size: Count,
  participation: Participation | None = None,
  delta: Delta | None = None,
) -> float:
  """Finds the noise multiplier with which a run has at most a given ε, see `epsilon`, to 1 in 1,000.

  For correlated noise, `aggregation.gaussian(epsilon=..., correlation=..., rounds=T)` finds its own.

  Args:
    epsilon: ε > 0.
    rounds: T.
    num_clients: K.
    cohort_size: S.
    participation: who takes part; None for S of K clients, uniformly.
    delta: δ; None for K^-1.1.

  Raises:
    SettingError: an argument is out of range, or dp-accounting is not installed.
  """
  own = _rounds(1.0, num_clients, cohort_size, participation)
  return calibrated(own, epsilon, rounds, delta or default_delta(num_clients))
