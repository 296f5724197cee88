"""The privacy ledger of a run: ε after every round, a function of the number of rounds alone."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.data.container import FederatedData
from fedjax_het.parts import Algorithm, Context, Release
from fedjax_het.privacy.accounting import Rounds, default_delta, required

NOT_COVERED = (
  "privacy: not covered are the choice of settings over several runs, validation and stopping by the same "
  "people, what metrics.jsonl has of single clients, and personal models, which stay at their clients. Noise "
  "from JAX's generator is for simulation."
)
LARGE_DELTA = 0.01  # above which a note says that ε alone tells little


class Ledger(NamedTuple):
  """What the rounds of a run reveal of its clients, in (ε, δ).

  Attributes:
    rounds: the mechanism of a round; None for a run whose uploads have no noise.
    delta: δ.
    releases: what the server learned of the clients' data before the first round.
    exposed: why a client's chance of being left out does not protect it, though the participation gives it
      one; "" if it does, or if there is none.
  """

  rounds: Rounds | None
  delta: float
  releases: tuple[Release, ...] = ()
  exposed: str = ""

  @classmethod
  def of(cls, algorithm: Algorithm, data: FederatedData, cohort_size: int) -> "Ledger | None":
    """Returns the ledger of an algorithm on clients' data; None if no part promises privacy.

    Args:
      algorithm: the parts, with plain numbers as settings.
      data: the clients' data, of which the number of clients is read.
      cohort_size: S.

    Raises:
      SettingError: dp-accounting is not installed.
    """
    mechanism = algorithm.aggregation.mechanism or algorithm.server.mechanism
    told = tuple(one for part in algorithm for one in part.needs.releases if one.epsilon is not None)
    if mechanism is None:
      return cls(None, 0.0, told) if told else None
    required("dp_accounting")
    count = data.num_clients
    keeps = keeps_state(algorithm, data, cohort_size)
    sampling = algorithm.sampled(count, cohort_size, keeps)
    strategy = None if mechanism.strategy is None else mechanism.strategy(sampling)
    rounds = Rounds(sampling, float(mechanism.multiplier(sampling)), mechanism.amplified, strategy)
    alone = algorithm.participation.sampled(count, algorithm.clients_in_a_round(cohort_size))
    lost = rounds._replace(sampling=alone).accountant != rounds.accountant
    why = exposed(algorithm, keeps) if lost else ""
    return cls(rounds, float(mechanism.delta or default_delta(count)), told, why)

  def epsilon(self, rounds: int) -> float:
    """Returns ε after so many rounds; infinity where there is no bound."""
    return self.releases[0].epsilon if self.rounds is None else self.rounds.epsilon(rounds, self.delta)

  def told(self, rounds: int) -> dict[str, Any]:
    """Returns the section `privacy` of summary.json after so many rounds."""
    if self.rounds is None:
      release = self.releases[0]
      by, between = "Laplace", release.neighbours
      return {"of": release.what, **self._figures(rounds), "accountant": by, "neighbours": between}
    return {
      "of": "uploads", **self._figures(rounds), "accountant": self.rounds.accountant,
      "neighbours": self.rounds.neighbours, "noise_multiplier": self.rounds.multiplier,
    }  # fmt: skip

  def _figures(self, rounds: int) -> dict[str, float]:
    return {"epsilon": self.epsilon(rounds), "delta": self.delta}

  def notes(self, rounds: int) -> Iterator[str]:
    """Yields what is said before a run: ε after all rounds, what weakens it, and what it does not cover."""
    yield in_words(self.told(rounds), rounds)
    if self.exposed:
      yield (
        f"privacy: no amplification is counted for clients that are left out by chance, as {self.exposed}."
      )
    if self.delta > LARGE_DELTA:
      yield (
        f"privacy: with a probability of δ = {self.delta:.3g} the bound may not hold at all, so that a small "
        f"ε says little. Set delta to {LARGE_DELTA} or less, or have more clients."
      )
    if self.rounds is not None:
      yield NOT_COVERED
    else:
      yield "privacy: uploads have no noise, and nothing is guaranteed of them."


def in_words(told: Mapping[str, Any], rounds: int | None = None) -> str:
  """Returns a section `privacy` as a sentence.

  Args:
    told: the section; an ε that is None or infinite is no bound.
    rounds: T, if it is of rounds to come.
  """
  epsilon, after = told["epsilon"], f" after {rounds} rounds" if rounds is not None else ""
  bound = epsilon is not None and epsilon < float("inf")
  figure = f"ε = {epsilon:.4g}" if bound else "no bound of ε"
  return (
    f"privacy of {told['of']}: {figure} at δ = {told['delta']:.3g}{after} "
    f"({told['accountant']}, {told['neighbours']})."
  )


def exposed(algorithm: Algorithm, keeps_state: bool) -> str:
  """Returns why sampling clients at random does not amplify the privacy of this run, in words; "" if it does.

  Amplification counts only where chance alone decides who takes part, and nobody sees who did.
  """
  if algorithm.asynchronous.overlaps:
    return f"asynchronous = {algorithm.asynchronous.name} takes uploads in the order of their time"
  if algorithm.system.over_selects:
    return f"the over-selection of system = {algorithm.system.name} takes the clients that are fastest"
  if keeps_state:
    return f"clients of {algorithm.client.name} keep a state, which shows when they took part"
  return ""


def keeps_state(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> bool:
  """Returns whether clients keep a state between rounds."""

  def first(key: jax.Array, data: FederatedData) -> Any:
    client, context = algorithm.client, Context(jnp.int32(0), jnp.int32(0), cohort_size, data.num_clients)
    shown = client.shown("init", data.clients(0))  # type: ignore[arg-type]
    return client.init(key, client.init_broadcast(key), shown, context)

  return bool(jax.tree.leaves(jax.eval_shape(first, jax.random.key(0), data)))
