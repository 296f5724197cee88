"""Table 3.10 of the thesis, and what its chapter's tables share: fair mixing over clients as they come.

    python -m fedjax_het.run \
      --config=configs/table_3_10.py:dataset=heart,algorithm=fedavg,mixing=aaggff_s --workdir=DIR

Heart: logistic regression, T = 200, lr 0.01, all four hospitals in every round. TinyImageNet: MobileViT, K =
1000 by Dirichlet(0.01), T = 2000, lr 0.01, 5 clients a round; of these the thesis only states K and α, and
the others are from the authors' commands, except the servers' β₂ and τ (docs/differences.md). One epoch, B =
20, SGD without momentum, a fifth of each client's rows for testing. The authors' commands decay lr every few
rounds (by 0.999 every 2 rounds for heart); here it decays by the equivalent factor in every round, whatever T
is.

The baselines' coefficients (AFL's lr, q, λ, ε, M) are those of each data set in the authors' repository, or
the mixing parts' defaults if it has none. The authors' FedMGDA+ keeps λ_i within ε of 1/K, ours of n_i/n.

One seed cannot separate methods on heart: docs/results/fair_silo.md has 100. All data sets of tables 3.8 and
3.9 can be used here too; `dataset=mqp` has a small text model in place of the paper's DistilBERT.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import optional, parse_cell
from fedjax_het.errors import check_choice

NATURAL = {"name": "natural"}
CELLS = {
  "heart": dict(
    rounds=200, model="logistic_regression", lr=0.01, decay=0.999 ** (1 / 2), cdf="frechet", clients=4,
  ),
  "berka": dict(
    rounds=100, model="logistic_regression", lr=1.0, decay=0.99 ** (1 / 10), weight_decay=1e-3, cdf="normal",
    clients=7, options={"leaky": False},
  ),
  "mqp": dict(rounds=100, model="text_pair", lr=0.1, decay=0.99 ** (1 / 15), cdf="logistic", clients=11),
  "isic2019": dict(
    rounds=50, model={"name": "efficientnet_b0", "grid": 7, "dropout": 0.1}, lr=1e-4, decay=0.95 ** (1 / 5),
    weight_decay=1e-2, cdf="weibull", clients=6, options={"complete": True},
    task={"name": "classification", "class_weights": "balanced"},
  ),
  "celeba": dict(
    rounds=3000, model="leaf_cnn", lr=0.1, decay=0.96 ** (1 / 300), weight_decay=1e-4, cdf="gumbel", cohort=5,
  ),
  "reddit": dict(
    rounds=300, model={"name": "stacked_lstm", "embedding": 200, "positions": "every"}, lr=10 ** (7 / 8),
    decay=0.95 ** (1 / 20), weight_decay=1e-6, cdf="frechet", cohort=5, test_fraction=None, stratify=False,
  ),
  "speech_commands": dict(
    rounds=500, model="m5", lr=0.1, decay=0.999 ** (1 / 10), cdf="weibull", cohort=5, stratify=False,
    options={"subset": "training"}, partition={"name": "natural", "min_size": 3},
  ),
  "tiny_imagenet": dict(
    rounds=2000, model="mobilevit", lr=0.01, decay=0.95 ** (1 / 100), cdf="exponential", clients=1000,
    cohort=5, partition={"name": "dirichlet", "alpha": 0.01, "balance": True},
  ),
}  # fmt: skip
STRENGTHS = {  # from the authors' commands; all others are the parts' defaults
  dataset: {
    "afl": {"lr": afl}, "qffl": {"q": q}, "term": {"lam": lam}, "fedmgda": {"epsilon": epsilon},
    "propfair": {"baseline": baseline},
  }
  for dataset, (afl, q, lam, epsilon, baseline) in {
    "heart": (0.01, 1.0, 0.1, 0.1, 3.0), "berka": (0.01, 1.0, 0.1, 1.0, 3.0),
    "mqp": (0.01, 0.1, 0.1, 0.1, 2.0), "isic2019": (0.01, 0.1, 0.1, 0.5, 3.0),
    "celeba": (0.1, 0.1, 0.1, 0.5, 2.0), "reddit": (0.01, 1.0, 1.0, 0.5, 2.0),
    "speech_commands": (0.1, 0.1, 0.1, 0.5, 3.0),
  }.items()
}  # fmt: skip
FIGURES = {
  "avg": ("weighted.personalized.auroc", 100.0),  # by test examples, as in the authors' code
  "worst": ("metrics.personalized.auroc.worst10", 100.0),  # the worst tenth of four clients is one client
  "top5": ("metrics.personalized.top5.mean", 100.0),
  "top5_worst10": ("metrics.personalized.top5.worst10", 100.0),
}


def strengths(dataset: str, mixing: str) -> dict[str, float]:
  """Returns the settings of a mixing part on a data set; {} if it has none."""
  return STRENGTHS.get(dataset, {}).get(mixing, {})


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell: "dataset=heart,algorithm=fedavg,mixing=aaggff_s,server=adam"."""
  chosen = parse_cell(
    cell, {"dataset": "heart", "algorithm": "fedavg", "mixing": "static", "server": "sgd", "seed": 0}
  )
  check_choice("dataset", chosen["dataset"], CELLS)
  setting = CELLS[chosen["dataset"]]
  mixing = {"name": chosen["mixing"], **strengths(chosen["dataset"], chosen["mixing"])}
  if chosen["mixing"].startswith("aaggff"):
    mixing["cdf"] = setting["cdf"]
  algorithm = {"name": chosen["algorithm"]}
  if chosen["algorithm"] == "fedprox":
    algorithm["mu"] = 0.001
  model, rounds = setting["model"], FieldReference(setting["rounds"])
  evaluations = setting["rounds"] // 10 if setting["rounds"] <= 200 else 10
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "dataset_options": setting.get("options", {}),
      "data_dir": "",
      "task": setting.get("task", {}),
      "num_clients": optional(setting.get("clients")),
      "partition": setting.get("partition", NATURAL),
      "test_fraction": optional(setting.get("test_fraction", 0.2)),
      "stratify": setting.get("stratify", True),
      "valid_fraction": 0.0,
      "model": {"name": model} if isinstance(model, str) else model,
      "algorithm": algorithm,
      "local": {
        "epochs": 1,
        "batch_size": 20,
        "lr": setting["lr"],
        "lr_decay": setting["decay"],
        "momentum": 0.0,
        "weight_decay": setting.get("weight_decay", 0.0),
      },
      "mixing": mixing,
      "server": {"name": chosen["server"], "lr": 1.0 if chosen["server"] == "sgd" else 0.01},
      "rounds": rounds,
      "cohort_size": setting.get("cohort", setting.get("clients")),
      "seed": chosen["seed"],
      "eval_every": (rounds + evaluations - 1) // evaluations,
      "late_evaluations": 10,
    }
  )
