"""Table 4.2 of the thesis (4.3 to 4.5 likewise): what synthetic data are worth, by a classifier and by FID.

    python -m fedjax_het.run \
      --config=configs/table_4_2.py:dataset=mnist,alpha=0.01,clients=10,algorithm=fedevg --workdir=DIR

K = 10 clients, all in every round, or 100 clients, 10 in every round; images at 32 x 32 (MedMNIST at its own
size; ham10000 has DermaMNIST's photographs, for which no table has a figure at this size), Dirichlet(α), ten
synthetic examples per class, B = 64, E = 1, Adam 1e-3 (0.5, 0.999), weight decay 1e-4. FedEvg: T = 500, β
from 10 to 0.01, ResNet-10. FedCVAE and FedCGAN: T = 100, lr x 0.9 every 5 rounds, and for K = 100 T = 1000
and every 50, as in the authors' commands; `protocol=thesis` behind the file's name trains all methods for the
thesis's T = 500 (section IV-4.1), over which their rate falls as far. Networks and losses are the authors',
with group norm for batch norm. For K = 100 clients are equally large (`balance` of the partition), because at
α = 0.01 every Dirichlet draw leaves some client without an example. `width` scales every network that clients
train (the thesis has 64), `rounds` overrides T, and `steps` limits the local steps per round (0 is no limit),
so that small machines can run a cell. T, over which FedEvg's β falls, may also be set by --config.rounds; a
run has twenty evaluations. The ResNet-10 that evaluates the synthetic images has the thesis's width whatever
the clients' is. It is trained three times from fresh parameters on them, and for comparison on ten real
images per class: `judge_width` makes it narrower, and --config.downstream.seeds=1 trains it once. Two cores
need minutes for that, at any width. `dataset=digits`, which needs no download, has perceptrons, which have no
width, B = 32 and T = 200.

Extensions of the thesis are set by name, such as a server part whose examples of a class repel one another,
--config.server.name=particles, or raw weights that are capped, --config.algorithm.energy=raw
--config.algorithm.cap=3.0 (fedjax-het run --list=particles, --list=fedevg).

The printed accuracy is that of each client on its own holdout (section IV-4.2), `top1`, its mean over the
clients; `official` beside it is that on the official test images, for which the paper has no figure.

The Fréchet distance is computed in the features of a classifier trained on the real training set;
--config.downstream.features=FILE uses InceptionV3 with the weights of FILE. The two are not comparable.
"""

from collections.abc import Callable

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import check_algorithm, optional, parse_cell
from fedjax_het.errors import SettingError, check_choice

SIZES = {
  "digits": None,
  "mnist": 32,
  "fashion_mnist": 32,
  "cifar10": 32,
  "dermamnist": None,
  "organcmnist": None,
  "ham10000": 32,
  "bloodmnist": None,
}
MODELS = {"fedevg": "resnet10", "fedcvae": "cvae_conv", "fedcgan": "cgan_conv"}
PERCEPTRONS = {"fedevg": "energy_mlp", "fedcvae": "cvae_mlp", "fedcgan": "cgan_mlp"}
DEFAULTS = {
  "dataset": "mnist", "alpha": 0.01, "clients": 10, "algorithm": "fedevg", "width": 64, "rounds": 0,
  "steps": 0, "judge_width": 64, "protocol": "commands", "seed": 0,
}  # fmt: skip
IMAGES = ("mnist", "cifar10", "fashion_mnist", "digits")
SEVEN = ("dermamnist", "ham10000")  # seven classes: at α = 0.01 few draws give ten clients enough
MEDICAL = ("dermamnist", "organcmnist", "bloodmnist", "ham10000")
FIGURES = {
  "top1": ("synthetic.downstream.local", 100.0),
  "official": ("synthetic.downstream.official", 100.0),
}


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=cifar10,alpha=1.0,clients=100,algorithm=fedcvae"."""
  chosen = parse_cell(cell, DEFAULTS)
  name, width = chosen["algorithm"], chosen["width"]
  check_choice("dataset", chosen["dataset"], SIZES)
  check_algorithm(name, MODELS, others=False)
  size = SIZES[chosen["dataset"]]
  digits, energies, many = chosen["dataset"] == "digits", name == "fedevg", chosen["clients"] >= 100
  for key in ("width", "judge_width"):
    if digits and chosen[key] != DEFAULTS[key]:
      raise SettingError(key, chosen[key], "digits has perceptrons", "Leave it out; see --config.model.")
  check_choice("protocol", chosen["protocol"], ("commands", "thesis"))
  thesis = chosen["protocol"] == "thesis"
  if thesis and digits:
    raise SettingError("protocol", "thesis", "the thesis has no digits", "Leave it out, or set rounds=500.")
  of_commands = 200 if digits else 500 if energies else 1000 if many else 100
  rounds = FieldReference(chosen["rounds"] or (500 if thesis else of_commands))
  decay = 0.9 ** (1 / 50) if energies or many else 0.9 ** (1 / 5)
  if thesis and not energies:
    decay = 0.9 ** (1 / 25)  # 0.9^20 over T, as in the commands
  tries = {"max_tries": optional(20_000)} if chosen["dataset"] in SEVEN and not many else {}
  model = {"name": MODELS[name], "width": width}
  judge = {"name": "resnet10", "width": chosen["judge_width"], "spectral": False}
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "dataset_options": {"resize": size} if size else {},
      "data_dir": "",
      "task": {},
      "num_clients": optional(chosen["clients"]),
      "partition": {"name": "dirichlet", "alpha": chosen["alpha"], "balance": many} | tries,
      "test_fraction": optional(0.2),
      "valid_fraction": 0.0,
      "model": {"name": PERCEPTRONS[name]} if digits else model,
      "algorithm": {"name": name, "per_class": 10, "steps": chosen["steps"] or None},
      "local": {
        "epochs": 1,
        "batch_size": 32 if digits else 64,
        "lr": 1e-3,
        "lr_decay": decay,
        "weight_decay": 1e-4,
      },
      "mixing": {"name": "static"},
      "server": {"name": "sgld"} if energies else {"name": "sgd", "lr": 1.0},
      "rounds": rounds,
      "cohort_size": min(10, chosen["clients"]),
      "seed": chosen["seed"],
      "eval_every": (rounds + 19) // 20,
      "late_evaluations": 10,
      "downstream": {
        "model": {"name": "two_nn"} if digits else judge,
        "seeds": 3,
        "features": "classifier",
      },
    }
  )


def among(datasets: tuple[str, ...]) -> Callable[[str], ConfigDict]:
  """Returns the `get_config` of another table of the same runs, for some data sets, by default the first."""

  def of_cell(cell: str = "") -> ConfigDict:
    chosen = parse_cell(cell, DEFAULTS | {"dataset": datasets[0]})
    check_choice("dataset", chosen["dataset"], datasets)
    return get_config(",".join(f"{key}={value}" for key, value in chosen.items()))

  return of_cell
