"""Random runs on one device and on several, in parts and as a whole: do all bits agree?

    python benchmarks/checks/fuzz_devices.py [--seeds N] [--first SEED] [--out FILE] [--resume]

Each seed draws a method with a mixing and a server, clients' sizes, a cohort, client_batch, a sweep or a run
(tests/shared/random_runs.py), and where it is computed: devices, device_rows, device_states, chunks of
rounds. What one device with everything in its memory leaves is compared with what that place leaves, bit
for bit: first state, cohorts, coefficients, losses, infos, the clients' metrics, broadcast, server's,
mixing's and clients' states. A sweep whose members go one by one is compared with a run of its
own. Two seeds in a row share a run.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import fedjax_het as fh
from benchmarks.provenance import RAW, ROOT, provenance

fh.prepare_cpu(devices=8)

sys.path.insert(0, str(ROOT / "tests" / "shared"))


def row_of(seed: int) -> dict:
  """What a seed stands for, as JSON has it."""
  from random_runs import drawn

  run, place = drawn(seed)
  return json.loads(json.dumps({"seed": seed, "run": run._asdict(), "place": place._asdict()}))


def compared(seed: int) -> dict:
  """The row of a seed: what differs, nothing where all bits agree; or the error that ended it."""
  from random_runs import differing, drawn

  started = time.perf_counter()
  try:
    found: dict = {"differs": differing(*drawn(seed))}
  except Exception as error:
    found = {"differs": ["it ends in an error"], "error": f"{type(error).__name__}: {error}"}
  return {**row_of(seed), **found, "seconds": round(time.perf_counter() - started, 1)}


KINDS = {
  "all": lambda run, place: True,
  "several devices": lambda run, place: place["devices"] > 1,
  "several clients side by side": lambda run, place: (run["client_batch"] or 1) > 1,
  "a device has fewer clients than that":
    lambda run, place: min(run["client_batch"] or 1, run["cohort"]) > -(-run["cohort"] // place["devices"]),
  "examples on the host": lambda run, place: place["device_rows"] is not None,
  "states on the host": lambda run, place: place["device_states"] is not None,
  "a sweep": lambda run, place: run["members"] > 0,
  "one client": lambda run, place: len(run["examples"]) == 1,
}  # fmt: skip


def report_of(rows: list[dict], now: dict) -> dict:
  """The counts, each run that differs in full, and of the others the seeds."""
  rows, kinds = sorted(rows, key=lambda row: row["seed"]), {}
  for name, has in KINDS.items():
    own = [row for row in rows if has(row["run"], row["place"])]
    kinds[name] = {"compared": len(own), "bit_equal": sum(not row["differs"] for row in own)}
  return {
    **now, "command": "python benchmarks/checks/fuzz_devices.py", "kinds": kinds,
    "seconds": round(sum(row["seconds"] for row in rows)),
    "differ": [row for row in rows if row["differs"]],
    "equal": {row["seed"]: row["seconds"] for row in rows if not row["differs"]},
  }  # fmt: skip


def rows_before(file: Path, commit: str | None) -> list[dict]:
  """The rows of a report of this very commit, which another code would not have."""
  report = json.loads(file.read_text()) if file.exists() else {"commit": None}
  if commit is None or report["commit"] != commit:
    return []
  equal = ({**row_of(int(seed)), "differs": [], "seconds": own} for seed, own in report["equal"].items())
  return [*report["differ"], *equal]


def table(report: dict) -> str:
  """How many of each kind there are, and how many have the same bits."""
  lines = ["| runs | compared | the same bits |", "|---|---|---|"]
  lines += [f"| {name} | {own['compared']} | {own['bit_equal']} |" for name, own in report["kinds"].items()]
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=200, help="how many")
  parser.add_argument("--first", type=int, default=0, help="the first of them")
  parser.add_argument("--out", type=Path, default=RAW / "fuzz_devices.json")
  parser.add_argument("--resume", action="store_true", help="keep the rows of --out of this very commit")
  args = parser.parse_args()
  now = provenance()
  rows = rows_before(args.out, now["commit"]) if args.resume else []
  done = {row["seed"] for row in rows}
  for seed in range(args.first, args.first + args.seeds):
    if seed in done:
      continue
    rows.append(compared(seed))
    said = ", ".join(rows[-1]["differs"]) or "the same bits"
    print(f"{seed}: {'/'.join(rows[-1]['run']['names'])}, {rows[-1]['seconds']} s: {said}", flush=True)
    args.out.write_text(json.dumps(report_of(rows, now)) + "\n")
  print(table(report_of(rows, now)))


if __name__ == "__main__":
  main()
