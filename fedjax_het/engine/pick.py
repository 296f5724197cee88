"""Which of a client part's models is the personalised one: one λ for all clients, and what says so."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.metrics.fairness import summarize


class Evaluations(NamedTuple):
  """What the clients' models are worth, and what λ is picked on.

  Attributes:
    test: on the clients' test parts.
    valid: on their validation parts, where there are any and there are several λ; else None.
  """

  test: Evaluation
  valid: Evaluation | None = None


class Pick(NamedTuple):
  """The λ of the headline; where a method has only one, that.

  Attributes:
    column: its place in the client part's `lambdas`.
    on: "validation", the clients' validation parts, or "test", where there are none: then the headline is
      the best of several tries on the very data that it is reported on, and optimistic.
    by: the metric whose mean over the clients is best there: "auroc" for binary tasks, else "top1".
  """

  column: int
  on: str
  by: str


def headline(metrics: Iterable[str]) -> str:
  """The metric that λ is picked by and that progress shows: AUROC for binary tasks, else top-1."""
  return "auroc" if "auroc" in metrics else "top1"


def mean_over_clients(values: np.ndarray) -> np.ndarray:
  """[K, M] -> [M], clients without a value left out; NaN where nobody has one."""
  return np.array([summarize(column)["mean"] for column in values.T])


def pick(evaluations: Evaluations) -> Pick:
  """The λ whose models have the best mean over the clients, of equally good ones the first.

  On the validation parts where there are any. Where no client's examples are of both classes, so that none
  has an AUROC, top-1 stands in.
  """
  test, valid = evaluations
  seen, on = (test, "test") if valid is None else (valid, "validation")
  by = headline(seen.personalized)
  if np.isnan(seen.personalized[by]).all():
    by = "top1"
  means = mean_over_clients(seen.personalized[by])
  return Pick(int(np.argmax(np.where(np.isnan(means), -np.inf, means))), on, by)
