"""What `compare` prints on a terminal, as text."""

import io

from rich.console import Console

from fedjax_het.compare.plain import tables


def shown(groups, width=80, **options):
  console = Console(width=width, file=io.StringIO())
  console.print(tables(groups, **options))
  return console.file.getvalue()
