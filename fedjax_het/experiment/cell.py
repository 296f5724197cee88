"""The names that configuration files import from here; they live in `fedjax_het.config.cell`."""

from fedjax_het.config.cell import check_algorithm as check_algorithm
from fedjax_het.config.cell import optional as optional
from fedjax_het.config.cell import parse_cell as parse_cell
