"""What a privacy ledger reads of the parts: who takes part, how an aggregate is noised, what else is told."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Sampling(NamedTuple):
  """What a participation part guarantees of who takes part in a round, for K clients and cohorts of S.

  Attributes:
    name: the part's name, for errors and reports.
    kind: "poisson", each client by itself with the same probability, and of more than `capacity` so many
      drawn uniformly; "fixed", S of K clients, uniformly without replacement; "any", nothing is known.
    num_clients: K.
    cohort_size: S.
    expected: the mean number of clients that arrive in a round, a float or a traced number.
    all_arrive: whether exactly S clients arrive in every round.
    probability: q of "poisson".
    capacity: the most clients of a round of "poisson".
    separation: the least number of rounds between two in which a client takes part; 1 if it may take part in
      every round.
  """

  name: str
  kind: str
  num_clients: int
  cohort_size: int
  expected: Any
  all_arrive: bool = False
  probability: float = 1.0
  capacity: int = 0
  separation: int = 1


class Strategy(NamedTuple):
  """A lower-triangular Toeplitz matrix C, the noise of whose inverse the rounds receive: (C⁻¹ z)_t.

  Attributes:
    name: how it was found, for reports.
    sensitivity: (T) -> ‖C u‖, the largest for vectors u ∈ {0, 1}^T whose ones are as far apart as the rounds
      in which a client takes part; a float.
  """

  name: str
  sensitivity: Callable[[int], float]


class Mechanism(NamedTuple):
  """The Gaussian mechanism by which the server learns a cohort's uploads: their clipped sum, with noise.

  Attributes:
    multiplier: (`Sampling`) -> z, the noise's standard deviation over the largest norm of one client's
      contribution; a float, once a run's settings are known.
    delta: δ at which ε is told; None for K^-1.1.
    amplified: whether a client's contribution counts the same whoever else is there, so that the chance of
      being left out protects it.
    strategy: (`Sampling`) -> `Strategy` of noise that is correlated over the rounds; None for fresh noise.
  """

  multiplier: Callable[[Sampling], Any]
  delta: Any = None
  amplified: bool = True
  strategy: Callable[[Sampling], Strategy] | None = None


class Release(NamedTuple):
  """What of the clients' data the server learns once, beside uploads, because a part was made of it.

  Attributes:
    what: in words, such as "label counts".
    epsilon: ε of the noise that it has; None if it has none.
    neighbours: between which data sets ε holds, in words.
    sizes_only: whether it is made of the clients' numbers of examples alone, which are public where records
      are protected, and not clients.
  """

  what: str
  epsilon: Any = None
  neighbours: str = ""
  sizes_only: bool = False
