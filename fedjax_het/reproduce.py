"""A paper's table: `python -m fedjax_het.reproduce --table=configs/NAME.py [--where=K=V] [--workdir=DIR]`.

It runs the cells that have not run, and prints and writes our figures next to the paper's. The same command
continues a stopped table, or shows a complete one.
"""

if __name__ == "__main__":
  from fedjax_het.tables.launcher import launch

  launch()
