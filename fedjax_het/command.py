"""The console command: `fedjax-het run ...` is `python -m fedjax_het.run ...`, and so on."""

import importlib
import sys

from fedjax_het.output.terminal import protect_streams

COMMANDS = {
  "run": ("fedjax_het.launcher", "launch", "one run, or a sweep as one program"),
  "reproduce": ("fedjax_het.tables.launcher", "launch", "a paper's table, ours beside it"),
  "compare": ("fedjax_het.compare.launcher", "main", "runs beside one another, as a page or a table"),
  "convert": ("fedjax_het.models.convert", "main", "PyTorch's weights of a model into a file of ours"),
}


def main() -> None:
  """Runs the command of the command line."""
  protect_streams()
  chosen = sys.argv[1] if len(sys.argv) > 1 else ""
  if chosen not in COMMANDS:
    asked = chosen in ("", "-h", "--help")
    lines = [] if asked else [f"{chosen!r} is no command."]
    lines += ["usage: fedjax-het COMMAND ...", ""]
    lines += [f"  {name:10} {about}; fedjax-het {name} --help" for name, (*_, about) in COMMANDS.items()]
    print("\n".join(lines), file=sys.stdout if asked else sys.stderr)
    sys.exit(0 if asked else 2)
  module, function, _ = COMMANDS[chosen]
  sys.argv = [f"{sys.argv[0]} {chosen}", *sys.argv[2:]]
  getattr(importlib.import_module(module), function)()
