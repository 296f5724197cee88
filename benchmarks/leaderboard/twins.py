"""A board of two rows: the best method on digits under a second name, and the same method made worse.

    python -m fedjax_het.leaderboard --board=benchmarks/leaderboard/twins.py --workdir=RUNS --data_dir=DATA \
      --raw=docs/results/raw/leaderboard_checks

NAME_again is tuned with other trials: their values, clients, splits and models are drawn from another seed.
Its reported runs have the board's five seeds. NAME_worse is tuned as NAME, and its learning rate falls to a
tenth in every round. benchmarks/leaderboard/checks.py says where the comparison puts both.
"""

from ml_collections import ConfigDict

from benchmarks.provenance import RAW, ROOT
from fedjax_het.config.cell import parse_cell
from fedjax_het.leaderboard.board import Row, read_board, section_of
from fedjax_het.leaderboard.raw import read_task
from fedjax_het.leaderboard.spaces import SPACES
from fedjax_het.leaderboard.summary import Task, summarized
from fedjax_het.methods import METHODS

TASK, OTHER_SEED, DECAY = "digits", 100, 0.1
_BOARD = read_board(ROOT / "configs" / "leaderboard.py")


def task() -> Task:
  """Returns the rows of digits that are there, compared."""
  return summarized(TASK, read_task(RAW / "leaderboard", TASK, _BOARD.names()))


def best() -> str:
  """Returns the method of the best mean."""
  groups = task().groups
  assert groups is not None, "fewer than two rows of digits are there"
  return groups.best


BEST = best()
AGAIN, WORSE = f"{BEST}_again", f"{BEST}_worse"
TASKS = {TASK: _BOARD.tasks[TASK]}
TRIALS = {TASK: {name: _BOARD.number_of_trials(Row(TASK, BEST)) for name in (AGAIN, WORSE)}}
for _name in (AGAIN, WORSE):
  METHODS[section_of(BEST)][_name] = METHODS[section_of(BEST)][BEST]._replace(name=_name)
  if BEST in SPACES:
    SPACES[_name] = SPACES[BEST]


def names() -> list[str]:
  """Returns both names."""
  return [AGAIN, WORSE]


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "task=digits,method=ditto_worse"."""
  chosen = parse_cell(cell, {"task": TASK, "method": AGAIN})
  config = _BOARD.config(Row(TASK, BEST))
  if chosen["method"] == AGAIN:
    config.seed = OTHER_SEED
  else:
    config.local.lr_decay = DECAY
  return config
