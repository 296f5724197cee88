"""Table 4.3 of the thesis: accuracy of a classifier that learnt from synthetic medical images.

    python -m fedjax_het.run \
      --config=configs/table_4_3.py:dataset=dermamnist,alpha=0.01,clients=10,algorithm=fedevg --workdir=DIR

The runs and the keys of a cell are those of table 4.2: one run gives the figures of both kinds of table.
"""

import runpy
from pathlib import Path

TABLE_4_2 = runpy.run_path(str(Path(__file__).with_name("table_4_2.py")))
FIGURES = TABLE_4_2["FIGURES"]
get_config = TABLE_4_2["among"](TABLE_4_2["MEDICAL"])
