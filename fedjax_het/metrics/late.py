"""Whether a mean over the clients has settled: its range over the judged rounds of a run's last fifth.

A last round's figure is a draw from that range. The mean of an accuracy counts as unsettled if its standard
deviation over those rounds exceeds half a point, 0.005, and a standard error over the clients that a late
round's mean is of. Losses and calibration errors have a range, but no mark, because half a point means
nothing for them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedjax_het.metrics.catalogue import shown

HALF_A_POINT = 0.005
MARK = "*"
Figures = Mapping[
  str, Mapping[str, Mapping[str, float]]
]  # model -> metric -> figure over the clients -> value


def before_last_fifth(rounds: int) -> int:
  """Returns ⌊0.8 T⌋: the last fifth of T rounds, counted from 1, are those after it."""
  return 4 * rounds // 5


def late_rounds(rounds: int, eval_every: int | None, count: int) -> list[int]:
  """Returns the rounds that are judged so that the last fifth of a run has at least `count` judged rounds.

  The rounds of `eval_every` and the last round divide the last fifth; the parts are divided further into
  equal lengths, the longest first. If the last fifth has fewer than `count` rounds, all of them are judged.

  Args:
    rounds: T.
    eval_every: rounds between two evaluations; None for one after the last round.
    count: the number of judged rounds; 0 adds none.

  Returns:
    The rounds to judge in addition to those of `eval_every` and the last one, in increasing order.
  """
  start = before_last_fifth(rounds)
  ends = [t for t in range(start + 1, rounds + 1) if is_due(t, rounds, eval_every)]
  lengths, parts = np.diff([start, *ends]), np.ones(len(ends), int)
  while parts.sum() < min(count, rounds - start):
    parts[np.argmax(lengths / parts)] += 1
  return [
    int(end - length + length * place // number)
    for end, length, number in zip(ends, lengths, parts)
    for place in range(1, number)
  ]


def is_due(done: int, rounds: int, eval_every: int | None) -> bool:
  """Returns whether `eval_every` alone has an evaluation after round `done` of T."""
  return done == rounds or (eval_every is not None and done % eval_every == 0)


def late(judged: Iterable[tuple[int, Figures]], rounds: int) -> dict[str, dict[str, dict[str, Any]]]:
  """Summarises each mean over the clients over the judged rounds t > 0.8 T.

  Args:
    judged: (round, model -> metric -> figures over the clients) of judged rounds.
    rounds: T.

  Returns:
    model -> metric -> {count, min, max, std}: the number of judged rounds with a finite mean, the extremes of
    these means, and their population standard deviation; NaN if there are none.
  """
  means: dict[str, dict[str, list[float]]] = {}
  for done, figures in judged:
    for model, metrics in figures.items() if done > before_last_fifth(rounds) else ():
      for metric, own in metrics.items():
        means.setdefault(model, {}).setdefault(metric, []).append(own["mean"])
  return {
    model: {metric: over_rounds(values) for metric, values in metrics.items()}
    for model, metrics in means.items()
  }


def over_rounds(values: Iterable[float | None]) -> dict[str, Any]:
  """Returns {count, min, max, std} of the finite values; std divides by their count. See `late`."""
  given = np.array([np.nan if value is None else value for value in values], np.float64)
  own = given[np.isfinite(given)]
  if not len(own):
    return {"count": 0, "min": np.nan, "max": np.nan, "std": np.nan}
  return {"count": len(own), "min": float(own.min()), "max": float(own.max()), "std": float(own.std())}


def unsettled(summary: Mapping[str, Any], model: str, metric: str) -> Mapping[str, Any] | None:
  """Returns the range of a run's mean over the clients if it has not settled, else None.

  None also stands for a summary without that range: of an earlier version, or of a diverged run.

  Args:
    summary: the content of summary.json.
    model: "personalized" or "global".
    metric: the metric's name; metrics that are not in points are never marked.
  """
  own = ((summary.get("late") or {}).get(model) or {}).get(metric) or {}
  std = (((summary.get("metrics") or {}).get(model) or {}).get(metric) or {}).get("std")
  if not shown(metric).in_points or own.get("std") is None or std is None:
    return None
  missing = ((summary.get("left_out") or {}).get(model) or {}).get(metric, 0)
  error = std / max(_clients_of_a_late_round(summary) - missing, 1) ** 0.5
  return own if own["std"] > max(HALF_A_POINT, error) else None


def _clients_of_a_late_round(summary: Mapping[str, Any]) -> int:
  """Returns how many clients a mean is of: the honest ones, or a sample, or a round's participants."""
  count = summary.get("honest") or summary.get("num_clients", 1)
  before = (summary.get("evaluated") or {}).get("before", count)
  return min(count, before if isinstance(before, int) else summary.get("cohort_size", count))
