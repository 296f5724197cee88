"""Runs every method once, untuned, on the two settings of configs/smoke.py, and writes the table.

    python benchmarks/tables/smoke.py --data_dir=DATA [--only ifca,fedem] [--setting rotated]
      [--again] [--page]

Cells that docs/results/raw/smoke.json has are not run again, unless --again asks for it; --page only writes
the page from the file. A cell is run on one device, in its own temporary folder. A figure is the mean over
the clients' test parts after the last round: of the personalised models, of the global one where there is
one, and for generators that of a classifier trained on what they generate. Seconds are those of training
without compiling, beside FedAvg's of the same setting.
"""

import argparse
import json
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fedjax_het as fh
from benchmarks.provenance import RAW, ROOT, place, provenance
from fedjax_het.errors import SettingError
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.methods import CLIENTS
from fedjax_het.program.where import Where

SETTINGS = "shards", "rotated"
get_config = runpy.run_path(str(ROOT / "configs" / "smoke.py"))["get_config"]
LEAST = 0.3
HEAD = """# Smoke table

Every method once with its default settings, on the two settings of
[configs/smoke.py](../../configs/smoke.py): one seed, untuned, 20 clients that all take part in 15 rounds of
one epoch on 5,000 images of MNIST. The table shows which methods learn with their defaults. It does not
compare methods: their settings are not tuned, and one seed is a single draw.

*shards*: two shards of label-sorted images a client. *rotated*: equal random shares, turned by 0, 90, 180
or 270 degrees, which methods do not see. Figures are top-1 accuracies in %, means over the clients: `own`
of the personalised models, `global` of the server's model. `(generated)` marks a classifier that is trained
on what a method generates. `time` is the seconds of training beside FedAvg's, on a machine that did other
work as well; `up` and `down` are kilobytes a client and round; `pure` is the share of the clients in the
most frequent hidden rotation of their cluster."""
ONE_IMAGE = (
  "Averaged generators of clients with few classes draw nearly one image for all"
  " classes, as at α = 0.01 in [fedevg_digits.md](fedevg_digits.md)."
)
NOTES = {  # method -> a sentence on its figures
  "fedcvae": f"{ONE_IMAGE} 100 rounds on the shards give 12.8 %.",
  "fedcgan": f"{ONE_IMAGE} 100 rounds on the shards give 13.8 %.",
  "scaffold": "behind FedAvg on the shards at the rate 0.05; at 0.01 it has 86.8 % and FedAvg 81.8 %.",
  "feddc": "behind FedAvg on the shards at the rate 0.05; at 0.01 it has 87.3 % and FedAvg 81.8 %.",
  "cfl": "no cluster is split before round 20, so that all clients share one model, as with FedAvg.",
  "mime": "its steps add 1 - β = 0.1 of the gradient to the momentum, so that 15 rounds are few for it.",
  "mimelite": "as for `mime`.",
  "fedbn": "TwoNN has no norm layers, so that it is FedAvg.",
  "apple": "each step mixes the core models of all 20 clients, which all of them are sent.",
  "ifca": "has two models by default; with four it finds the four hidden rotations in the first round.",
}


def cell(setting: str, name: str, data_dir: str) -> dict[str, Any]:
  """Runs a cell and returns its figures."""
  config = get_config(f"setting={setting},algorithm={name}")
  config.data_dir = data_dir
  folder, begin = tempfile.mkdtemp(), time.perf_counter()
  try:
    summary = run_experiment(config, folder, Where(devices=1))
    rounds, clients = summary["rounds"], summary["num_clients"]
    metrics = summary["metrics"]
    found = {
      "top1": {model: own["top1"]["mean"] for model, own in metrics.items() if "top1" in own},
      "worst10": {model: own["top1"]["worst10"] for model, own in metrics.items() if "top1" in own},
      "seconds": {name: round(own, 3) for name, own in summary["seconds"].items()},
      "wall": round(time.perf_counter() - begin, 1), "client_steps": summary["client_steps"],
      "bytes": {way: own / rounds / clients for way, own in summary["bytes"].items()},
      "notes": json.loads((Path(folder) / "starts.jsonl").read_text().splitlines()[0]).get("notes", []),
    }  # fmt: skip
    if "synthetic" in summary:
      found["top1"]["generated"] = summary["synthetic"]["downstream"]["local"]["mean"]
    return found | {name: summary[name] for name in ("clusters", "graph", "prototypes") if name in summary}
  finally:
    shutil.rmtree(folder)


def best(row: dict[str, Any]) -> float:
  """Returns the best of a cell's figures; 0 if all are undefined."""
  return max((own for own in row["top1"].values() if own is not None), default=0.0)


def percent(value: float | None) -> str:
  return "–" if value is None else f"{100 * value:.1f}"


def reason(name: str, setting: str, rows: dict[str, Any]) -> str:
  """Returns why a method is below: for turned images beside the same ones as they are, if these ran."""
  plain = rows.get(f"plain/{name}")
  if setting == "rotated" and plain:
    return f"Without the rotations (`setting=plain`) the same run has {percent(best(plain))} %."
  return NOTES.get(name, "The reason is not known.")


def page(rows: dict[str, Any]) -> list[str]:
  """Returns the lines of the page."""
  lines = [
    *HEAD.splitlines(), "",
    "| method | shards: own | global | time | up | down | rotated: own | global | time | pure |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]  # fmt: skip
  below, missing = [], []
  for name in CLIENTS:
    found = [f"`{name}`"]
    for setting in SETTINGS:
      row, fedavg = rows.get(f"{setting}/{name}"), rows.get(f"{setting}/fedavg")
      if row is None:
        missing.append(f"{name} ({setting})")
        found += ["–"] * (5 if setting == "shards" else 4)
        continue
      top, ratio = row["top1"], "–"
      if fedavg:
        ratio = f"{row['seconds']['train'] / fedavg['seconds']['train']:.1f}"
      own = percent(top.get("personalized"))
      if "generated" in top:
        own = f"{percent(top['generated'])} (generated)"
      found += [own, percent(top.get("global")), ratio]
      if setting == "shards":
        found += [f"{row['bytes'][way] / 1000:.1f}" for way in ("up", "down")]
      else:
        found.append(percent(row.get("clusters", {}).get("purity")))
      if best(row) < LEAST:
        below.append(f"- `{name}`, {setting}: {percent(best(row))} %. {reason(name, setting, rows)}")
    lines.append(f"| {' | '.join(found)} |")
  lines += ["", f"## Below {100 * LEAST:.0f} %", "", *(below or ["No method."])]
  if missing:
    lines += ["", f"Not run yet: {', '.join(missing)}."]
  told = [
    f"- `{name}`: {text}" for name, text in NOTES.items() if not any(f"`{name}`" in own for own in below)
  ]
  lines += ["", "## Remarks", "", *told] if told else []
  ends = sorted({(row["commit"], row["date"], row["machine"]) for row in rows.values()})
  lines += [
    "",
    "## From",
    "",
    "Command: `python benchmarks/tables/smoke.py --data_dir=DATA`, which runs the cells that are missing;",
    "figures in [raw/smoke.json](raw/smoke.json).",
    "",
  ]
  lines += [f"- commit {commit}, {date}, {machine}" for commit, date, machine in ends]
  return lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--only", default="", help="methods, separated by commas; all by default")
  parser.add_argument("--setting", choices=(*SETTINGS, "plain"), default=None)
  parser.add_argument("--again", action="store_true", help="run cells that the file has, too")
  parser.add_argument("--page", action="store_true", help="write the page, and run nothing")
  parser.add_argument("--out", type=Path, default=RAW.parent, help="folder, laid out as docs/results")
  args = parser.parse_args()
  fh.prepare_cpu()
  raw = place(args.out, "smoke.json")
  rows = json.loads(raw.read_text()) if raw.exists() else {}
  wanted = args.only.split(",") if args.only else [*CLIENTS]
  for name in [] if args.page else wanted:
    for setting in [args.setting] if args.setting else SETTINGS:
      key = f"{setting}/{name}"
      if key in rows and not args.again:
        continue
      print(key, flush=True)
      try:
        found = cell(setting, name, args.data_dir)
      except (SettingError, FloatingPointError) as error:
        print(f"{key}: {error}", file=sys.stderr, flush=True)
        continue
      rows = json.loads(raw.read_text()) if raw.exists() else {}
      rows[key] = found | provenance()
      raw.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
      print(f"  top-1 {found['top1']}, {found['seconds']}", flush=True)
  place(args.out, "smoke.md").write_text("\n".join(page(rows)) + "\n")


if __name__ == "__main__":
  main()
