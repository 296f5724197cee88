"""Virtual environments of the peers, each with its own pinned packages.

    python benchmarks/peers/envs.py [pfl_research fluke ...] [--remake]

An environment is `benchmarks/.envs/NAME`, made from `benchmarks/peers/NAME.txt` unless it is there already.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

PEERS = pathlib.Path(__file__).resolve().parent
ENVS = PEERS.parent / ".envs"
NAMES = ("pfl_research", "fedjax_google", "fluke", "flower", "torch_models", "byzfl")
PYTHONS = ((3, 11), (3, 12))  # the peers' pinned wheels exist for these


class EnvironmentFailed(RuntimeError):
  """A peer's environment could not be made; says which step, why, and what to do."""


def suitable_python() -> str:
  """This interpreter if its version is in PYTHONS, else the first such on the PATH."""
  if sys.version_info[:2] in PYTHONS:
    return sys.executable
  for major, minor in PYTHONS:
    if found := shutil.which(f"python{major}.{minor}"):
      return found
  wanted = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
  raise EnvironmentFailed(
    f"The peers need Python {wanted}; this is {sys.version.split()[0]} and none is on the PATH."
  )


def run(step: str, name: str, command: list[str]) -> None:
  """Runs one step of making environment `name`.

  Raises:
    EnvironmentFailed: the step did not succeed.
  """
  result = subprocess.run(command, capture_output=True, text=True, check=False)
  if result.returncode == 0:
    return
  tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-8:])
  raise EnvironmentFailed(
    f"{step} of the environment of {name} failed ({' '.join(command)}):\n{tail}\n"
    "pip has to reach a package index. Offline, give a folder of wheels (PIP_NO_INDEX=1 "
    f"PIP_FIND_LINKS=FOLDER) or leave this peer out: python benchmarks/speed/speed.py --without {name}."
  )


def ensure(name: str, remake: bool = False) -> pathlib.Path:
  """Makes environment `name` unless it is there with the same pins; returns its Python.

  Raises:
    EnvironmentFailed: no suitable Python, or a step of making it failed.
  """
  folder = ENVS / name
  wanted = (PEERS / f"{name}.txt").read_text()
  stamp = folder / "installed.txt"
  python = folder / "bin" / "python"
  if not remake and stamp.is_file() and stamp.read_text() == wanted:
    return python
  print(f"making {folder} from {name}.txt", file=sys.stderr, flush=True)
  shutil.rmtree(folder, ignore_errors=True)
  run("Creation", name, [suitable_python(), "-m", "venv", str(folder)])
  run(
    "Installation", name, [str(python), "-m", "pip", "install", "--quiet", "-r", str(PEERS / f"{name}.txt")]
  )
  stamp.write_text(wanted)
  return python


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument(
    "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all where none is given"
  )
  parser.add_argument("--remake", action="store_true", help="make anew what is there already")
  args = parser.parse_args()
  if unknown := set(args.names) - set(NAMES):
    parser.error(f"unknown: {', '.join(sorted(unknown))}")
  for name in args.names or NAMES:
    try:
      print(ensure(name, args.remake))
    except EnvironmentFailed as error:
      raise SystemExit(str(error)) from None


if __name__ == "__main__":
  main()
