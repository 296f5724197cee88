"""Compares the memory that `--dry_run` says a run needs with the largest resident set of the run itself.

    python benchmarks/speed/host_memory.py --data_dir=DATA [--only NAME ...]

Five shapes of run, each `--dry_run` and three rounds in a process of its own (four minutes on two cores): few
clients, many rows, many clients' states on the devices and on the host, a large model. Results are written to
docs/results/raw/host_memory.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from benchmarks.provenance import RAW, provenance

OUT = RAW / "host_memory.json"
QUICK, TABLE = "configs/quickstart.py:algorithm=", "configs/table_2_3.py:dataset="
IID = "--config.partition={'name': 'iid'}"
MANY = ("--config.dataset=mnist", "--config.num_clients=5000", IID)
SHAPES = {
  "SuPerFed, 20 clients of digits": (f"{QUICK}superfed_mm",),
  "FedAvg, 100 clients of CIFAR-10, TwoCNN": (f"{TABLE}cifar10,clients=100,algorithm=fedavg",),
  "Ditto, 5,000 clients of MNIST": (f"{QUICK}ditto", *MANY),
  "Ditto, 5,000 clients of MNIST, states on the host": (f"{QUICK}ditto", *MANY, "--device_states=10"),
  "SuPerFed, 100 clients of CIFAR-10, TwoCNN": (f"{TABLE}cifar10,clients=100,algorithm=superfed_mm",),
}


def start(*arguments: str) -> tuple[str, int]:
  """Returns what a run printed, and the largest resident set of its process, in bytes."""
  command = [sys.executable, "-m", "fedjax_het.run", *arguments]
  with tempfile.TemporaryFile("w+") as said:
    run = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    _, status, used = os.wait4(run.pid, 0)
    said.seek(0)
    text = said.read()
  if status:
    raise SystemExit(f"{' '.join(command)}\n{text}")
  return text, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument("--data_dir", required=True)
  parser.add_argument("--only", nargs="*", default=[*SHAPES])
  args = parser.parse_args()
  found = json.loads(OUT.read_text()) if OUT.exists() else {"shapes": {}}
  for name in args.only:
    config, *flags = SHAPES[name]
    flags += [f"--config.data_dir={args.data_dir}", "--config.rounds=3", "--config.eval_every=3"]
    flags += ["--config.late_evaluations=0", "--compile_cache="]  # both compile their programs
    with tempfile.TemporaryDirectory() as folder:
      plan, _ = start(f"--config={config}", *flags, "--dry_run")
      _, used = start(f"--config={config}", *flags, f"--workdir={folder}/run")
    said = {
      row: float(re.search(rf"{what}.*?([\d,.]+) MB", plan)[1].replace(",", ""))
      for row, what in (("device", "memory of each"), ("process", "memory of the process"))
    }
    found["shapes"][name] = {"said": said, "used": used / 1e6, "cores": os.cpu_count()}
    print(f"{name}: {said['process']:,.0f} MB said, {used / 1e6:,.0f} used", flush=True)
    OUT.write_text(json.dumps({**found, **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
  main()
