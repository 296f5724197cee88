"""Ignores SIGUSR1 while a launcher imports JAX, because the signal's default would end the program.

The package imports this module first. `program.stopping` installs the handler that writes a checkpoint.
"""

import signal
import sys
from pathlib import Path

LAUNCHERS = ("fedjax_het.run", "fedjax_het.reproduce")


def is_launcher() -> bool:
  """Returns whether this process is `python -m fedjax_het.run`, its like, or the command `fedjax-het`."""
  first = sys.argv[0] if sys.argv else ""  # "-m" while Python imports the package of the module
  return any(own in sys.orig_argv for own in LAUNCHERS) if first == "-m" else Path(first).stem == "fedjax-het"


if hasattr(signal, "SIGUSR1") and is_launcher() and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)
