"""How many trials a budget of computing time holds, so that every method is tuned alike."""

from fedjax_het.tune.rungs import BATCH, budget

CORE_MINUTES = 20.0  # of a row: tuning and the runs of the seeds
SEEDS = (1, 2, 3, 4, 5)  # of the reported runs; trials have seed 0
LEAST, MOST = 4, 32


def trials_within(core_seconds: float, rounds: int, minutes: float = CORE_MINUTES) -> int:
  """Returns the largest number of trials whose cost fits a budget, at least 4 and at most 32.

  N trials cost B(N)/T runs (see `rungs.budget`), and the reported seeds five more; compiling does not count,
  as it does not grow with N.

  Args:
    core_seconds: what a run of all T rounds with its evaluations takes on one core.
    rounds: T.
    minutes: the budget in core-minutes.
  """
  runs = 60.0 * minutes / core_seconds - len(SEEDS)
  fits = [n for n in range(LEAST, MOST + 1) if budget(n, BATCH, rounds) <= runs * rounds]
  return max(fits, default=LEAST)
