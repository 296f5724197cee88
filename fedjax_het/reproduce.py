"""A paper's table: `python -m fedjax_het.reproduce --table=configs/NAME.py [--where=K=V] [--workdir=DIR]`.

Runs all its cells but those that have run, and prints and writes ours beside the paper's. Starting it again
continues a stopped table, or shows one that is complete.
"""

if __name__ == "__main__":
  from fedjax_het.tables.launcher import launch

  launch()
