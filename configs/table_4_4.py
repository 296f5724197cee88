"""Table 4.4 of the thesis: Fréchet distance of synthetic images to real ones.

    python -m fedjax_het.run \
      --config=configs/table_4_4.py:dataset=mnist,alpha=0.01,clients=10,algorithm=fedevg --workdir=DIR

Runs and keys of a cell are table 4.2's; one run gives the figures of both kinds of table. The paper's
features are InceptionV3's: name its weights by --config.downstream.features=FILE. Without them they are a
classifier's that learnt from the real training set, whose distances are not comparable with the paper's.
"""

import runpy
from pathlib import Path

TABLE_4_2 = runpy.run_path(str(Path(__file__).with_name("table_4_2.py")))
FIGURES = {"fid": ("synthetic.frechet", 1.0)}
get_config = TABLE_4_2["among"](TABLE_4_2["IMAGES"])
