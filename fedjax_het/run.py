"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

Starting it again with the same workdir continues the run, or shows its result where it is complete.
`--sweep.FIELD=value,value,...` runs every combination of the fields' values as one program. `--list` prints
what a configuration can name.
"""

# Only for `python -m`: imported, this module would take the place of the function `fedjax_het.run`.
if __name__ == "__main__":
  from fedjax_het.launcher import launch

  launch()
