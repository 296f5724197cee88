"""Packages of others, whose methods, models, data sets, tasks and studies a program knows from its start."""

from importlib import metadata

from fedjax_het.output.terminal import say

GROUP = "fedjax_het"


def load_packages() -> list[str]:
  """Loads what installed packages name in the entry points `fedjax_het`, and returns their names.

  An entry point names a module, whose import adds entries to tables such as `methods.METHODS`, or a function
  without arguments that does so, which is called. One that fails is told on the terminal and left out, so
  that a run which does not need it goes on.
  """
  found = []
  for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
    try:
      loaded = entry.load()
      if callable(loaded):
        loaded()
      found.append(entry.name)
    except Exception as error:  # foreign code may raise anything
      reason = f"{type(error).__name__}: {error}"
      say(
        f"The package {entry.name} ({entry.value}) cannot be loaded, and what it adds is unknown: {reason}",
        error=True,
      )
  return found
