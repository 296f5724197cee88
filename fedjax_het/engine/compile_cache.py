"""The folder in which JAX keeps compiled programs, for a later start, and compiling without interruptions."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from fedjax_het.errors import folder_of
from fedjax_het.output.terminal import say


def keep_programs(folder: str | os.PathLike[str] | None = None) -> None:
  """Keeps compiled programs in a folder and looks for them there; the launcher does so by `--compile_cache`.

  JAX loads machine code from the folder, so nobody else should be able to write there. If it cannot be
  written, a note on standard error says so, and no programs are kept.

  Args:
    folder: the folder, which is created if missing. By default the one that JAX is already configured with
      (`jax_compilation_cache_dir`), or else that of the launcher, ~/.cache/fedjax_het; users without a home
      folder have none, and no programs are kept.

  Raises:
    SettingError: `folder` is no path.
  """
  chosen = folder or jax.config.jax_compilation_cache_dir or default_cache()  # type: ignore[attr-defined]
  if not chosen:
    return
  path = folder_of("compile_cache", chosen)
  try:
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()
  except OSError as error:
    say(
      f"compile_cache = {str(path)!r}: cannot be written ({error.strerror or error}). Compiled programs "
      "are not kept; --compile_cache=FOLDER, or from Python keep_programs(FOLDER), says where they may be.",
      error=True,
    )
    jax.config.update("jax_compilation_cache_dir", None)
    return
  jax.config.update("jax_compilation_cache_dir", str(path))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def default_cache() -> str:
  """Returns the default folder of compiled programs; "" for a user without a home folder."""
  try:
    home = str(Path.home() / ".cache" / "fedjax_het")
  except RuntimeError:  # no HOME and no entry in /etc/passwd, as in containers
    home = ""
  return os.environ.get("JAX_COMPILATION_CACHE_DIR", home)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """Switches Python's cyclic garbage collector off, which runs often while a large model is traced."""
  before = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if before:
      gc.enable()
