"""What studies see of each of an engine's runs after a chunk of rounds."""

import functools
import math
from collections.abc import Mapping, Sequence

from fedjax_het.engine.base import Runs, Seconds
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.state import State
from fedjax_het.metrics.catalogue import shown
from fedjax_het.studies import Moment


def moments(
  engine: Runs, runs: int, state: State, evaluations: Evaluations | None, late: Evaluations | None = None
) -> list[Moment]:
  """Returns the `Moment` of each of an engine's runs after a chunk of rounds."""
  done, broadcasts = engine.rounds_done(state), functools.cache(lambda: engine.split(state.broadcast))
  states = functools.cache(lambda: engine.split(state))
  values, late_values = (own and engine.split(own) for own in (evaluations, late))
  others = functools.cache(lambda of, part: engine.split(engine.evaluate(state, part, of)))

  def one(run: int) -> Moment:
    return Moment(
      done, values[run] if values else None, False, lambda: broadcasts()[run], lambda: states()[run],
      lambda of, part="test": others(of, part)[run], late=late_values[run] if late_values else None,
    )  # fmt: skip

  return [one(run) for run in range(runs)]


def share(seconds: Seconds, runs: int) -> Seconds:
  """Divides the time spent equally among an engine's runs."""
  return Seconds(*(kind / runs for kind in seconds))


def together(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Returns the figures of several runs for one line of progress: means, or the largest, see the catalogue.

  An ε is the largest, because a mean of several would be no run's guarantee. A mean leaves out NaN, as of the
  losses of a run whose latest rounds had no upload.

  Args:
    figures: each run's figures, name -> value, with the same names; [] for none.
  """

  def one(name: str) -> float:
    values = [own[name] for own in figures]
    if shown(name).worst_of_runs:
      return max(values)
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan

  return {name: one(name) for name in (figures[0] if figures else ())}
