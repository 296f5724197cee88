"""The console command: `fedjax-het run ...` is `python -m fedjax_het.run ...`, likewise for the others."""

import importlib
import sys

from fedjax_het.output.terminal import protect_streams

COMMANDS = {
  "run": ("fedjax_het.launcher", "launch", "one run, or a sweep as one program"),
  "reproduce": ("fedjax_het.tables.launcher", "launch", "a paper's table, compared with our figures"),
  "tune": ("fedjax_het.tune.launcher", "launch", "numbers of a configuration, by validation"),
  "leaderboard": ("fedjax_het.leaderboard.launcher", "launch", "every method on several tasks, tuned alike"),
  "compare": ("fedjax_het.compare.launcher", "main", "a comparison of runs, as a page or a table"),
  "convert": ("fedjax_het.models.convert", "main", "conversion of a model's PyTorch weights"),
}


def main() -> None:
  """Runs the subcommand that the command line names."""
  protect_streams()
  chosen = sys.argv[1] if len(sys.argv) > 1 else ""
  if chosen not in COMMANDS:
    asked = chosen in ("", "-h", "--help")
    lines = [] if asked else [f"{chosen!r} is no command."]
    lines += ["usage: fedjax-het COMMAND ...", ""]
    lines += [f"  {name:12} {about}; fedjax-het {name} --help" for name, (*_, about) in COMMANDS.items()]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)
  module, function, _ = COMMANDS[chosen]
  sys.argv = [f"{sys.argv[0]} {chosen}", *sys.argv[2:]]
  getattr(importlib.import_module(module), function)()
