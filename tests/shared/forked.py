"""Commands of the library in children of one process that has imported it: an import takes seconds."""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from quick_compiler import environment

ROOT = Path(__file__).parents[2]
SERVER = """
import atexit, gc, json, os, runpy, sys
import fedjax_het.compare.launcher, fedjax_het.experiment.sweep, fedjax_het.launcher
import fedjax_het.tables.launcher
gc.freeze()
for line in sys.stdin:
  module, arguments, folder, *files = json.loads(line)
  if not (child := os.fork()):
    os.chdir(folder)
    for stream, file in enumerate((os.devnull, *files)):
      os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), stream)
    sys.path[0], sys.argv = folder, [module, *arguments]
    try:
      status = runpy.run_module(module, run_name="__main__", alter_sys=True) and 0
    except SystemExit as end:
      if isinstance(status := end.code or 0, str):
        status = print(status, file=sys.stderr) or 1
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)  # without taking down what was imported
  print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Done(NamedTuple):
  """How a command ended."""

  returncode: int
  stdout: str
  stderr: str


@contextlib.contextmanager
def forked(**more: str):
  """Gives `run(module, arguments, folder) -> Done`, one command at a time; `more` is of their environment."""
  command = [sys.executable, "-c", SERVER]
  with (
    tempfile.TemporaryDirectory() as own,
    subprocess.Popen(
      command,
      env=environment(PYTHONPATH=str(ROOT), **more),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    ) as server,
  ):
    files = [Path(own) / name for name in ("stdout", "stderr")]

    def run(module: str, arguments: list[str], folder: Path) -> Done:
      for file in files:
        file.write_text("")
      server.stdin.write(json.dumps([module, arguments, str(folder), *map(str, files)]) + "\n")
      server.stdin.flush()
      status = int(server.stdout.readline())
      return Done(status, *(file.read_text() for file in files))

    yield run
    server.stdin.close()
