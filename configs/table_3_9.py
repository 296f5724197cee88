"""Table 3.9 of the thesis: the gap between the best and the worst client, cross-device.

    python -m fedjax_het.run --config=configs/table_3_9.py:dataset=celeba,mixing=aaggff_d --workdir=DIR

CelebA (9,343 celebrities, smiling): LEAF's network, T = 3000, lr 0.1 x 0.96 every 300 rounds, weight decay
1e-4. Reddit (817 users): StackedLSTM, T = 300, lr 10^(7/8) x 0.95 every 20, weight decay 1e-6, LEAF's split.
Speech Commands (2,005 speakers with at least three clips): M5, T = 500, lr 0.1 x 0.999 every 10; a fifth of a
speaker's clips, rounded down, is for testing, so speakers with fewer than five clips have no test part. 5
clients a round, as many clients as the files have; all other settings are those of table 3.10. Gaps are
differences of top-1 accuracy, for Speech Commands of top-5, in percentage points.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.errors import check_choice

TABLE_3_10 = runpy.run_path(str(Path(__file__).with_name("table_3_10.py")))
DATASETS = ("celeba", "reddit", "speech_commands")
FIGURES = {
  "top1_gap": ("metrics.personalized.top1.gap", 100.0),
  "top5_gap": ("metrics.personalized.top5.gap", 100.0),
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=reddit,mixing=term"."""
  chosen = parse_cell(cell, {"dataset": "celeba", "mixing": "aaggff_d", "seed": 0})
  check_choice("dataset", chosen["dataset"], DATASETS)
  return TABLE_3_10["get_config"](",".join(f"{key}={value}" for key, value in chosen.items()))
