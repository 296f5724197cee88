"""Table 4.5 of the thesis: Fréchet distance of synthetic medical images to real ones.

    python -m fedjax_het.run \
      --config=configs/table_4_5.py:dataset=dermamnist,alpha=0.01,clients=10,algorithm=fedevg --workdir=DIR

The runs and the keys of a cell are those of table 4.2: one run gives the figures of both kinds of table. The
paper's features are InceptionV3's: set --config.downstream.features=FILE with its weights. Without FILE they
are those of a classifier trained on the real training set, whose distances are not comparable with the
paper's.
"""

import runpy
from pathlib import Path

TABLE_4_2 = runpy.run_path(str(Path(__file__).with_name("table_4_2.py")))
FIGURES = {"fid": ("synthetic.frechet", 1.0)}
get_config = TABLE_4_2["among"](TABLE_4_2["MEDICAL"])
