"""Runs what waits for a GPU, in order of worth, as far as the time goes.

    python benchmarks/gpu_queue.py --dry_run                     lists the entries and their expected minutes
    python benchmarks/gpu_queue.py --runs=RUNS --data_dir=DATA --minutes=25 --together=4 [--only WORD ...]
    python benchmarks/gpu_queue.py --runs=RUNS --merge           figures into docs/results/raw, and the page
    JAX_PLATFORMS=cpu python benchmarks/gpu_queue.py --runs=RUNS --toy        all at toy size, in 20 minutes

The entries stand in gpu_entries.py; those whose figures docs/results/raw/gpu_queue.json has are passed over,
unless --again is given. An entry is begun if its expected minutes fit the time that is left, so that a
shorter one may overtake; it is stopped by SIGTERM at the end of the time or of LONGEST minutes, and the next
call continues it from its checkpoint. RUNS/queue/ENTRY.json says how long each call took. --zip writes all
files of RUNS but models, pictures, samples and the checkpoints of entries that have ended; --from unpacks an
earlier call's zip first. A machine may thus be a new one in every call. DATA is the folder that gpu_data.py
packs, in parts below 60 MB. The exit status is 1 if an entry failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_data import unpack_data
from benchmarks.gpu_entries import DATA, ENTRIES, LONGEST, Entry
from benchmarks.papers import coverage
from benchmarks.provenance import PAGES, RAW, ROOT, provenance
from benchmarks.tables.run_figures import figures
from fedjax_het.workdir.folder import Workdir, read_record

PAGE, FIGURES = PAGES / "gpu_queue.md", RAW / "gpu_queue.json"
PATIENCE = 90.0  # seconds that an entry may take to write its checkpoint
LEFT_OUT = ("model.npz", "tensorboard", "figures", "samples", ".claim")  # what a zip has not
Start = Callable[[Entry, float], bool]


class State:
  """What is known of the entries in RUNS/queue: calls (seconds, machine, commit), and which have ended."""

  def __init__(self, runs: Path | None, known: Collection[str] = ()):
    """Makes the folder where it is missing.

    Args:
      runs: RUNS; None knows of no calls.
      known: names of entries that count as ended without a call, as their figures are in the project.
    """
    self.known = known
    if runs:
      self.folder = runs / "queue"
      self.folder.mkdir(parents=True, exist_ok=True)
    self.runs = runs

  def of(self, entry: Entry) -> dict[str, Any]:
    """Returns {"ended", "calls"} of an entry; the calls are those that RUNS has a record of."""
    own = read_record(self.folder / f"{entry.name}.json") if self.runs else None
    return own or {"ended": entry.name in self.known, "calls": []}

  def add(self, entry: Entry, seconds: float, ended: bool, together: int = 1) -> None:
    """Records a call, and how many entries shared the GPU during it."""
    about = {"seconds": round(seconds, 1), "together": together, **provenance()}
    found = {"ended": ended, "calls": [*self.of(entry)["calls"], about]}
    (self.folder / f"{entry.name}.json").write_text(json.dumps(found, indent=1) + "\n")

  def spent(self, entry: Entry) -> float:
    """Returns the minutes that all calls took together."""
    return sum(call["seconds"] for call in self.of(entry)["calls"]) / 60


def merged() -> set[str]:
  """Returns the names of the entries that have ended and whose figures are in docs/results/raw."""
  known = read_record(FIGURES) or {"entries": {}}
  return {name for name, own in known["entries"].items() if own["ended"]}


def expected(entry: Entry, spent: float = 0.0) -> float:
  """Returns the minutes that an entry's next call should take: what is left of it, at most LONGEST."""
  return min(max(entry.minutes - spent, 1.0), LONGEST)


def run(
  entries: Sequence[Entry], state: State, minutes: float, start: Start,
  clock: Callable[[], float] = time.monotonic, tell: Callable[[str], None] = print, together: int = 1,
) -> int:  # fmt: skip
  """Runs what fits, and returns how many entries failed.

  Args:
    entries: in order of worth; those that have ended are passed over.
    state: what earlier calls did.
    minutes: the time that there is.
    start: (entry, most seconds) -> whether it has ended.
    clock: seconds.
    tell: takes a line for the user.
    together: entries at a time, which share the GPU: a cohort of five small networks does not fill one.
  """
  end = clock() + 60 * minutes

  def call(entry: Entry) -> bool:
    if state.of(entry)["ended"]:
      return False
    left, asks = (end - clock()) / 60, expected(entry, state.spent(entry))
    if asks > left:
      tell(f"{entry.name}: {asks:.1f} minutes do not fit the {max(left, 0.0):.1f} that are left")
      return False
    began = clock()
    try:
      ended = start(entry, 60 * min(left, LONGEST))
    except subprocess.CalledProcessError as error:
      tell(f"{entry.name}: failed with code {error.returncode}; see {entry.name}.log")
      return True
    state.add(entry, clock() - began, ended, together)
    took = (clock() - began) / 60
    tell(f"{entry.name}: {'ended' if ended else 'goes on'} after {took:.1f} minutes ({asks:.1f} expected)")
    return False

  with ThreadPoolExecutor(together) as workers:
    return sum(workers.map(call, entries))


def filled(word: str, places: Mapping[str, str]) -> str:
  """Returns a word of a command with the places of {RUNS}, {DATA} and {OUT}."""
  for name, place in places.items():
    word = word.replace(f"{{{name}}}", place)
  return word


def starter(runs: Path, data: Path, toy: bool, together: int = 1) -> Start:
  """Returns the function that starts an entry's command as a process, with its output in RUNS/queue.

  `together` processes divide nine tenths of the GPU's memory.
  """
  path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
  env = {**os.environ, "PYTHONPATH": path, "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / together:.2f}"}

  def start(entry: Entry, seconds: float) -> bool:
    places = {"RUNS": str(runs), "DATA": str(data), "OUT": str(runs / "queue" / f"{entry.name}.jsonl")}
    words = [filled(word, places) for word in (*entry.command.split(), *(entry.toy if toy else ()))]
    with (runs / "queue" / f"{entry.name}.log").open("a") as log:
      own = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, cwd=ROOT, env=env)
      try:
        code = own.wait(timeout=seconds)
      except subprocess.TimeoutExpired:
        own.send_signal(signal.SIGTERM)
        try:
          own.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
          own.kill()
        return False
      finally:
        if own.poll() is None:
          own.kill()
    if code:
      raise subprocess.CalledProcessError(code, words)
    return True

  return start


def pack(runs: Path, state: State, file: Path) -> None:
  """Writes RUNS as a zip, without what is large and not needed, see the head of this file."""
  going = {own.folder for own in ENTRIES if not state.of(own)["ended"]}
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
    for path in sorted(path for path in runs.rglob("*") if path.is_file()):
      parts = path.relative_to(runs).parts
      checkpoint = "checkpoints" in parts
      ended = checkpoint and (parts[0] not in going or _summary(path).exists())
      if not ended and not {*parts} & {*LEFT_OUT}:
        target.write(path, path.relative_to(runs))


def _summary(path: Path) -> Path:
  """The summary.json, or sweep.json, beside the checkpoints that a file belongs to."""
  root = next(own for own in path.parents if own.name == "checkpoints").parent
  return root / "sweep.json" if (root / "members").is_dir() else root / "summary.json"


def merge(runs: Path, state: State) -> None:
  """Brings the figures of all runs, and the lines of measurements, into the raw file; rewrites the pages."""
  if (state.folder / "toy").exists():
    sys.exit(f"{runs} holds toy runs, whose figures say nothing.")
  empty = {"about": "python benchmarks/gpu_queue.py --merge", "runs": {}, "entries": {}}
  kept = read_record(FIGURES) or empty
  for path in sorted(runs.rglob("summary.json")):
    summary = read_record(path)
    if summary and "metrics" in summary:
      kept["runs"][str(path.parent.relative_to(runs))] = figures(Workdir(path.parent), summary)
  for entry in ENTRIES:
    lines = state.folder / f"{entry.name}.jsonl"
    if (own := state.of(entry))["calls"]:
      measured = read_lines(lines) if lines.exists() else []
      kept["entries"][entry.name] = own | {"measured": measured}
  rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in sorted(kept["runs"].items()))
  head = {name: own for name, own in kept.items() if name != "runs"}
  FIGURES.write_text(json.dumps(head, indent=1)[:-2] + f',\n "runs": {{\n{rows}\n }}\n}}\n')
  PAGE.write_text(page(), encoding="utf-8")
  coverage.PAGE.write_text(coverage.page(), encoding="utf-8")


def read_lines(path: Path) -> list[Any]:
  """Returns what a measurement wrote: one JSON document, or one a line."""
  text = path.read_text()
  try:
    return [json.loads(text)]
  except ValueError:
    return [json.loads(line) for line in text.splitlines()]


HEAD = """# What waits for a GPU

With the package installed for it (`pip install -e '.[cuda12,test]'`), so many minutes of a GPU are spent by

```sh
python benchmarks/gpu_data.py --data_dir=DATA --out=PACKED  # the data sets, in parts below 60 MB
python benchmarks/gpu_queue.py --runs=RUNS --data_dir=PACKED --minutes=20 --together=4
python benchmarks/gpu_queue.py --runs=RUNS --merge
```

The second command runs the entries below in their order, which is the order of their worth, as far as its
`--minutes` go. An entry is begun if its expected minutes fit; one call gives it nine minutes at most, and the
next call continues it. What this page shows as run is passed over. `--together=4` runs four entries at a
time, which share the GPU, as one of these runs does not fill it; `--only WORD` takes the entries whose names
have the word, `--dry_run` lists what is left, `--zip=FILE` and `--from=FILE` take RUNS to another machine,
and `--toy` runs all of it at toy size on a CPU. `--merge` brings the figures into [coverage.md](coverage.md)
and this page{raw}.

Expected minutes are estimates for one H100 or H200 that runs the entry alone, computed from the client steps
that [gpu.md](gpu.md) has timed; a question mark stands where no step of the entry's model was timed there.
The minutes that it took are of calls in which so many entries as "at a time" says shared the GPU: they are
longer than those expected, and tell nothing about the estimate.

| entry | what | expected, minutes | took, minutes | at a time | data |
|---|---|---|---|---|---|
"""


def page() -> str:
  """The page docs/results/gpu_queue.md."""
  known = read_record(FIGURES) or {"entries": {}, "runs": {}}
  text = HEAD.format(raw=" ([gpu_queue.json](raw/gpu_queue.json))" if FIGURES.exists() else "")
  for entry in ENTRIES:
    own = known["entries"].get(entry.name)
    took = sum(call["seconds"] for call in own["calls"]) / 60 if own else None
    state = "not run" if took is None else f"{took:.1f}" + ("" if own["ended"] else ", goes on")
    shared = ", ".join(dict.fromkeys(str(call["together"]) for call in own["calls"])) if own else ""
    mark, data = "" if entry.timed else "?", ", ".join(entry.data)
    cells = entry.name, entry.about, f"{entry.minutes:.1f}{mark}", state, shared, data
    text += f"| {' | '.join(cells)} |\n"
  if known["runs"]:
    text += (
      "\n| run | headline, mean (std over clients) | rounds | seconds of training |\n|---|---|---|---|\n"
    )
    text += "".join(_row(name, own) for name, own in known["runs"].items())
  return text


def _row(name: str, own: dict[str, Any]) -> str:
  metric = next(iter(own["metrics"]["personalized"]))
  value = own["metrics"]["personalized"][metric]
  figure = f"{metric} {value['mean']:.4f} ({value['std']:.4f})"
  return f"| {name} | {figure} | {own['rounds']} | {own['seconds']['train']:.0f} |\n"


def listing(entries: Sequence[Entry], state: State) -> Iterator[str]:
  """Lines of --dry_run: expected minutes, name, what it is, its data, and whether it has ended."""
  total = 0.0
  for entry in entries:
    spent, ended = state.spent(entry), state.of(entry)["ended"]
    left = 0.0 if ended else max(entry.minutes - spent, 0.0)
    total += left
    told = "ended" if ended else f"{left:5.1f}{' ' if entry.timed else '?'}"
    yield f"{told} {entry.name}: {entry.about} ({', '.join(entry.data) or 'no data'})"
  sizes = ", ".join(f"{own} {size}" for own, size in DATA.items())
  yield f"{total:.0f} minutes are left; data in MB: {sizes}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, help="folder of the runs and of the queue's records")
  parser.add_argument("--data_dir", type=Path, default=Path("data"), help="folder of the data sets")
  parser.add_argument("--minutes", type=float, default=9.0, help="the time that there is")
  parser.add_argument("--together", type=int, default=1, help="entries at a time, which share the GPU")
  parser.add_argument("--only", nargs="*", default=[], help="entries whose names have one of these words")
  parser.add_argument("--from", dest="source", type=Path, help="the zip of an earlier call, unpacked first")
  parser.add_argument("--zip", type=Path, help="write the runs here in the end")
  parser.add_argument("--dry_run", action="store_true", help="list the entries")
  parser.add_argument("--toy", action="store_true", help="all entries at toy size, on digits")
  parser.add_argument("--again", action="store_true", help="also entries whose figures are merged")
  parser.add_argument("--merge", action="store_true", help="write docs/results from the runs")
  args = parser.parse_args()
  entries = [own for own in ENTRIES if not args.only or any(word in own.name for word in args.only)]
  if not entries:
    parser.error(f"no entry has {' or '.join(args.only)} in its name; --dry_run lists them")
  known = set() if args.again or args.toy or args.merge else merged()
  if args.dry_run:
    print("\n".join(listing(entries, State(args.runs, known))))
    return
  if args.runs is None:
    parser.error("--runs is missing")
  runs = args.runs.resolve()
  if args.source:
    shutil.unpack_archive(args.source, runs, "zip")
  state = State(runs, known)
  if args.merge:
    merge(runs, state)
    return
  data, minutes = args.data_dir.resolve(), args.minutes
  if args.toy:
    (state.folder / "toy").touch()
    minutes = max(minutes, 10_000.0)
  else:
    unpack_data(data)
    asked, entries = entries, [own for own in entries if all((data / name).is_dir() for name in own.data)]
    if missing := sorted({name for own in asked for name in own.data if not (data / name).is_dir()}):
      told = f"--data_dir={args.data_dir} has no {', '.join(missing)}, which gpu_data.py packs"
      if not entries:
        parser.error(told)
      print(f"{told}: {len(asked) - len(entries)} of {len(asked)} entries are left out")
  start = starter(runs, data, args.toy, args.together)
  failed = run(entries, state, minutes, start, tell=partial(print, flush=True), together=args.together)
  if args.zip:
    pack(runs, state, args.zip)
  sys.exit(int(failed > 0))


if __name__ == "__main__":
  main()
