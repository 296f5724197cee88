"""Tunes a configuration: `python -m fedjax_het.tune --config=... --trials=N --workdir=DIR`."""

from fedjax_het.tune.launcher import launch

if __name__ == "__main__":
  launch()
