"""Selects the λ of the personalised models, one for all clients, on validation data if there are any."""

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
  """Evaluations of all clients on the parts of their data that no model is trained on.

  Attributes:
    test: evaluation on the clients' test parts.
    valid: evaluation on their validation parts; None without such parts.
    headlines: static; the task's `headline`, metric names in order of preference.
    attackers: dishonest clients' evaluation on their test parts, NaN for honest ones; None without an attack.
      The others are then NaN for the dishonest ones, which no mean over the clients counts.
    dishonest: which clients are dishonest, bool [K]; None without an attack.
    clients: which clients were evaluated, bool [K]; the others' metrics are NaN. None for all.
  """

  test: Evaluation
  valid: Evaluation | None = None
  headlines: tuple[str, ...] = dataclasses.field(default=("auroc", "top1"), metadata={"static": True})
  attackers: Evaluation | None = None
  clients: np.ndarray | None = None
  dishonest: np.ndarray | None = None

  @property
  def headline(self) -> str:
    """The metric that progress shows: the first of `headlines` that was evaluated."""
    return next(name for name in self.headlines if name in self.test.personalized)

  @property
  def decides(self) -> Evaluation:
    """The evaluation that λ is selected on: the validation parts' if there are any, else the test parts'.

    With a single λ there is nothing to select, and it is the test parts'.
    """
    several = next(iter(self.test.personalized.values())).shape[-1] > 1
    return self.valid if several and self.valid is not None else self.test

  def of_honest(self, seen: Evaluation) -> Evaluation:
    """Returns another evaluation of the run's clients, NaN for the dishonest ones."""
    return seen if self.dishonest is None else only(seen, ~self.dishonest)


def only(seen: Evaluation, which: np.ndarray) -> Evaluation:
  """Returns an evaluation that is NaN for all but some clients, bool [..., K]."""
  own = {name: np.where(which[..., None], values, np.nan) for name, values in seen.personalized.items()}
  return Evaluation(own, {name: np.where(which, values, np.nan) for name, values in seen.global_.items()})


def without_attackers(evaluations: Evaluations, who: np.ndarray) -> Evaluations:
  """Returns the evaluations of the honest clients, and those of the dishonest ones as `attackers`.

  Args:
    evaluations: of all clients, of one run or of several, with leading axes.
    who: which clients are dishonest, bool [..., K].
  """
  return dataclasses.replace(
    evaluations, test=only(evaluations.test, ~who), attackers=only(evaluations.test, who),
    valid=evaluations.valid and only(evaluations.valid, ~who), dishonest=who,
  )  # fmt: skip


class Pick(NamedTuple):
  """The selected λ of the personalised models.

  Attributes:
    column: index of λ in `Studies.lambdas`.
    on: "validation" if λ was selected on the clients' validation parts; "test" if there are none, in which
      case the reported metric is optimistic, as it is the best of several on the same data; "own" if a method
      has one personalised model per client, so that there is nothing to select.
    by: the metric whose mean over the clients is best at λ: one of the task's headlines, such as "auroc".
  """

  column: int
  on: str
  by: str


def headline(metrics: Iterable[str]) -> str:
  """Returns the headline of a model's metrics, which is the first in `per_client` and in summaries."""
  return next(iter(metrics))


def mean_over_clients(values: np.ndarray) -> np.ndarray:
  """Returns the means over clients of values [K, M], [M]; NaN values are left out, all NaN gives NaN."""
  return np.array([summarize(column)["mean"] for column in values.T])


def picking(evaluations: Evaluations, picked: Pick) -> np.ndarray:
  """Returns which clients have a value of the metric that a λ was selected by, bool [K]."""
  return ~np.isnan(evaluations.decides.personalized[picked.by]).any(axis=1)


def pick(evaluations: Evaluations) -> Pick:
  """Selects the λ whose models have the best mean metric over the clients, the first of equally good ones.

  The means are on the validation parts if there are any. The metric is the first of the task's headlines that
  some client has a value of: top-1 if no client has examples of both classes, so that AUROC is undefined.
  """
  seen, on = evaluations.decides, "test" if evaluations.valid is None else "validation"
  names = [name for name in evaluations.headlines if name in seen.personalized]
  by = next((name for name in names if not np.isnan(seen.personalized[name]).all()), names[-1])
  means = mean_over_clients(seen.personalized[by])
  worth = means if known(by).higher_is_better else -means
  if len(means) == 1:
    on = "own"
  return Pick(int(np.argmax(np.where(np.isnan(worth), -np.inf, worth))), on, by)
