"""The launcher: `python -m fedjax_het.run --config=configs/NAME.py --workdir=DIR [--config.key=value ...]`.

The same command continues a stopped run, or shows the result of a complete one.
`--sweep.FIELD=value,value,...` runs every combination of the fields' values as one program. `--list` prints
what a configuration can name.
"""

# For `python -m` only: importing this module would replace the function `fedjax_het.run`.
if __name__ == "__main__":
  from fedjax_het.launcher import launch

  launch()
