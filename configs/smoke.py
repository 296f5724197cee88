"""A smoke test of every method: one seed, untuned, small; it shows that methods learn, not which is better.

    python -m fedjax_het.run --config=configs/smoke.py:setting=rotated,algorithm=ifca --workdir=DIR
    python benchmarks/tables/smoke.py --data_dir=DATA

`setting=shards`: 5,000 images of MNIST, 20 clients with two shards each. `setting=rotated`: the same images
in equal random shares, those of client i turned by 90 (i mod 4) degrees; methods do not see i mod 4.
`setting=plain`: these shares as they are, to see what the turning does. All
clients take part in each of 15 rounds of one epoch, B = 10, SGD at 0.05; TwoNN with hidden layers of 64. A
method's own settings are their defaults. Generators have their smallest network, Adam's usual rate, the
server that their uploads need, and a TwoNN that is trained on what they generate. `dataset=digits` needs no
download.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import optional, parse_cell
from fedjax_het.errors import check_choice
from fedjax_het.methods import CLIENTS

DEFAULTS = {"setting": "shards", "algorithm": "fedavg", "dataset": "mnist", "seed": 0}
SETTINGS = {  # partition, feature shift
  "shards": ({"name": "pathological", "shards_per_client": 2, "deal": "random"}, {}),
  "rotated": ({"name": "iid"}, {"name": "rotation", "clusters": 4}),
  "plain": ({"name": "iid"}, {}),
}
DATASETS = {"mnist": {"examples": 5000}, "digits": {}}
GENERATORS = {  # those that do not train a classifier: model, rate, server
  "fedevg": ("energy_mlp", 1e-3, "sgld"),
  "fedcvae": ("cvae_mlp", 1e-3, "sgd"),
  "fedcgan": ("cgan_mlp", 1e-3, "sgd"),
}
JUDGE = {"model": {"name": "two_nn"}, "seeds": 1, "features": "classifier"}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "setting=rotated,algorithm=ifca"."""
  chosen = parse_cell(cell, DEFAULTS)
  check_choice("setting", chosen["setting"], SETTINGS)
  check_choice("algorithm", chosen["algorithm"], CLIENTS)
  check_choice("dataset", chosen["dataset"], DATASETS)
  partition, shift = SETTINGS[chosen["setting"]]
  model, rate, server = GENERATORS.get(chosen["algorithm"], ("two_nn", 0.05, "sgd"))
  rounds = FieldReference(15)
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "data_dir": "",
      "dataset_options": DATASETS[chosen["dataset"]],
      "task": {},
      "feature_shift": shift,
      "num_clients": optional(20),
      "partition": partition,
      "test_fraction": optional(0.2),
      "valid_fraction": 0.0,
      "model": {"name": model} | ({"hidden": 64} if model == "two_nn" else {}),
      "algorithm": {"name": chosen["algorithm"]},
      "local": {"epochs": 1, "batch_size": 10, "lr": rate},
      "mixing": {"name": "static"},
      "server": {"name": server},
      "rounds": rounds,
      "cohort_size": 20,
      "seed": chosen["seed"],
      "eval_every": (rounds + 4) // 5,
    }
    | ({"downstream": JUDGE} if model != "two_nn" else {})
  )
