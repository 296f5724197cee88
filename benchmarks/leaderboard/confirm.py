"""Confirms rows of the leaderboard of which the code of the method has changed, where their figures have not.

    taskset -c 0 python benchmarks/leaderboard/confirm.py --data_dir=DATA --runs=RUNS [--tasks heart,berka]

A row is stale as soon as the module of its method changes, also by a change that leaves every number as it
was. Of each row that is stale for no other reason the five reported seeds run again with what its trials
chose. If every figure but the seconds has the same bits, the row gets the digest of the present code, and
`confirmed`, which says by what machine and commit; its trials are not repeated. All other rows stay stale,
and are named: delete their raw figures, and `python -m fedjax_het.leaderboard` makes them again.
"""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedjax_het as fh
from benchmarks.provenance import RAW, ROOT, provenance
from fedjax_het.config.plan import written
from fedjax_het.config.values import with_values
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.leaderboard.board import Board, Row, read_board, rows_of
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.leaderboard.raw import OF_CODE, fingerprint, lasting, made_by, write_raw
from fedjax_het.leaderboard.row import by_seed
from fedjax_het.leaderboard.work import states_of
from fedjax_het.program.where import Where


def again(board: Board, row: Row, found: Mapping[str, Any], folder: Path, data_dir: str) -> dict[str, Any]:
  """Runs a row's seeds with its chosen values; returns seed -> figures."""
  config = with_values(written(board.config(row)), {"data_dir": data_dir, **found["chosen"]})
  return by_seed(run_sweep(config, {"seed": [*SEEDS]}, str(folder), Where(1)), found["metric"])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard_confirmed"))
  parser.add_argument("--tasks", default="")
  args = parser.parse_args()
  fh.prepare_cpu(1)
  board, raw = read_board(ROOT / "configs" / "leaderboard.py"), RAW / "leaderboard"
  rows = rows_of(board, args.tasks.split(",") if args.tasks else [], [])
  states, told = states_of(board, rows, raw, on_gpu=False), []
  for row in [row for row, changed in states.stale.items() if changed == [OF_CODE]]:
    found, folder = states.there[row], args.runs / f"{row.task}-{row.method}"
    if "seeds" not in found:
      told.append(f"{row.task}, {row.method}: had no figures")
      continue
    shutil.rmtree(folder, ignore_errors=True)
    try:
      own = lasting(again(board, row, found, folder, args.data_dir))
    except (SettingError, NonFiniteLoss) as error:
      told.append(f"{row.task}, {row.method}: {error}")
      continue
    before = lasting(found["seeds"])
    if own == before:
      made = made_by(board, row)
      by = {"made_by": made, "fingerprint": fingerprint(made), "confirmed": provenance()}
      write_raw(raw, row, {**found, **by})
    else:
      differ = sorted(
        {name for seed in own for name in own[seed] if own[seed][name] != before[seed].get(name)}
      )
      told.append(f"{row.task}, {row.method}: other {', '.join(differ)}")
    shutil.rmtree(folder, ignore_errors=True)
  print("\n".join(["Still stale:", *told]) if told else "No other row is stale for its code.")


if __name__ == "__main__":
  main()
