"""Table 3.8 of the thesis: the gap between the best and the worst client, cross-silo.

    python -m fedjax_het.run --config=configs/table_3_8.py:dataset=berka,mixing=aaggff_s --workdir=DIR

Berka (7 regions): logistic regression, T = 100, lr 1, weight decay 0.001, lr x 0.99 every 10 rounds;
transactions after a loan's date are left out, unlike in the paper: --config.dataset_options.leaky=True. MQP
(11 doctors): DistilBERT on WordPiece tokens, T = 100, lr 10^(-5/2), weight decay 0.01, x 0.99 every 15;
pretrained in the paper, so set --config.model.weights=FILE. `model=text_pair` is a small model of hashed
words with lr 0.1. ISIC 2019 (6 hospitals): EfficientNet-B0, pretrained in the paper (with a FILE also set the
mean and std that its weights expect, "--config.model.mean=(0.485,0.456,0.406)"
"--config.model.std=(0.229,0.224,0.225)"), T = 50, lr 1e-4, weight decay 0.01, x 0.95 every 5, with balanced
class weights. All other settings are those of table 3.10. Gaps are differences of AUROC, for ISIC of top-5
accuracy, in percentage points.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.cell import parse_cell
from fedjax_het.errors import SettingError, check_choice

TABLE_3_10 = runpy.run_path(str(Path(__file__).with_name("table_3_10.py")))
DATASETS = ("berka", "mqp", "isic2019")
READERS = {"distilbert", "bert", "minilm"}
FIGURES = {
  "auroc_gap": ("metrics.personalized.auroc.gap", 100.0),
  "top5_gap": ("metrics.personalized.top5.gap", 100.0),
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=mqp,mixing=term,model=minilm"."""
  chosen = parse_cell(cell, {"dataset": "berka", "mixing": "aaggff_s", "model": "", "seed": 0})
  check_choice("dataset", chosen["dataset"], DATASETS)
  same = ",".join(f"{key}={chosen[key]}" for key in ("dataset", "mixing", "seed"))
  config = TABLE_3_10["get_config"](same)
  model = chosen["model"] or ("distilbert" if chosen["dataset"] == "mqp" else config.model.name)
  if chosen["dataset"] == "mqp" and model in READERS:
    config.dataset_options = ConfigDict({"tokenizer": "wordpiece"})
    config.local.update(lr=10**-2.5, weight_decay=1e-2)
  elif model in READERS:
    raise SettingError("model", model, f"reads texts, and {chosen['dataset']} has none", "Leave it out.")
  if model != config.model.name:
    config.model = ConfigDict({"name": model})
  return config
