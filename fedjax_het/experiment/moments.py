"""What studies see of each of an engine's runs after a chunk of rounds."""

import functools

from fedjax_het.engine.base import Runs, Seconds
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.state import State
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
