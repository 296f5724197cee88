"""Compares runs: `python -m fedjax_het.compare RUN RUN ... [--out=compare.html] [--plain]`."""

from fedjax_het.compare.launcher import main

if __name__ == "__main__":
  main()
