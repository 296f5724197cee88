"""Which of a client part's models is the personalised one: one λ for all clients, and what says so."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.metrics.catalogue import known
from fedjax_het.metrics.fairness import summarize


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Evaluations:
  """What the clients' models are worth, and what λ is picked on.

  Attributes:
    test: on the clients' test parts.
    valid: on their validation parts, where there are any and there are several λ; else None.
    headlines: static; the task's `headline`, names in order of preference.
  """

  test: Evaluation
  valid: Evaluation | None = None
  headlines: tuple[str, ...] = dataclasses.field(default=("auroc", "top1"), metadata={"static": True})

  @property
  def headline(self) -> str:
    """The metric that λ is picked by and that progress shows: the first preferred one that there is."""
    return next(name for name in self.headlines if name in self.test.personalized)

  @property
  def decides(self) -> Evaluation:
    """What λ is picked on: the validation parts where there are any, else the test parts."""
    return self.test if self.valid is None else self.valid


class Pick(NamedTuple):
  """The λ of the headline.

  Attributes:
    column: its place in the client part's `lambdas`.
    on: "validation", the clients' validation parts, or "test", where there are none: then the headline is
      the best of several tries on the very data that it is reported on, and optimistic. "own" where a
      method has one personalised model a client, so that nothing is picked.
    by: the metric whose mean over the clients is best there: a headline of the task, such as "auroc" for
      binary ones.
  """

  column: int
  on: str
  by: str


def headline(metrics: Iterable[str]) -> str:
  """The headline of a model's metrics as `per_client` and summaries give them: it stands first."""
  return next(iter(metrics))


def mean_over_clients(values: np.ndarray) -> np.ndarray:
  """[K, M] -> [M], clients without a value left out; NaN where nobody has one."""
  return np.array([summarize(column)["mean"] for column in values.T])


def picking(evaluations: Evaluations, picked: Pick) -> np.ndarray:
  """Which clients have a say in a pick, those with a value of its metric there: bool [K]."""
  return ~np.isnan(evaluations.decides.personalized[picked.by]).any(axis=1)


def pick(evaluations: Evaluations) -> Pick:
  """The λ whose models have the best mean over the clients, of equally good ones the first.

  On the validation parts where there are any. By the first of the task's headlines that some client has:
  where nobody's examples are of both classes, so that there is no AUROC, top-1 stands in.
  """
  seen, on = evaluations.decides, "test" if evaluations.valid is None else "validation"
  names = [name for name in evaluations.headlines if name in seen.personalized]
  by = next((name for name in names if not np.isnan(seen.personalized[name]).all()), names[-1])
  means = mean_over_clients(seen.personalized[by])
  worth = means if known(by).higher_is_better else -means
  if len(means) == 1:
    on = "own"
  return Pick(int(np.argmax(np.where(np.isnan(worth), -np.inf, worth))), on, by)
