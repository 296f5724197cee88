"""Table 2.3 of the thesis: top-1 accuracy with two classes a client (pathological non-IID).

    python -m fedjax_het.run \
      --config=configs/table_2_3.py:dataset=mnist,clients=100,algorithm=superfed_mm --workdir=DIR

T = 500, 5 clients a round, E = 10, B = 10, SGD with momentum 0.9, weight decay 1e-4 and lr 0.01 decayed by 1
% a round; TwoNN on MNIST, TwoCNN on CIFAR-10; L and ν as in the authors' commands; ten evaluations. L is set
as a fraction of T, `algorithm.start`, so that --config.rounds=N keeps it: L = ⌊start·N⌋. To set it in rounds:
--config.algorithm.start=None --config.algorithm.start_round=L. The baselines' coefficients are the methods'
defaults, which are the authors': APFL's α = 0.25, pFedMe's λ = 15, Ditto's λ = 1. Ditto's own model and
FedRep's body are trained for five epochs, as in the authors' code, whatever `local.epochs` is.

The head of a model is its last layer, as in the thesis; `head=2` behind the file's name makes it the last two
dense layers. The authors' code parts off the last two of TwoNN and the last three of TwoCNN, which there have
other layers: `network=code` takes these networks, without biases (TwoNN with three hidden layers; TwoCNN with
two and CIFAR-10 at 28 x 28), and network=code,head=3 is all of the code's on CIFAR-10.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import check_algorithm, optional, parse_cell
from fedjax_het.errors import SettingError, check_choice, check_whole

MODELS = {"mnist": "two_nn", "fashion_mnist": "two_nn", "cifar10": "two_cnn"}
NETWORKS = {  # the networks of the authors' code: options of the model and of the data set
  "two_nn": ({"layers": 3, "bias": False}, {}),
  "two_cnn": ({"dense": 200, "layers": 2, "bias": False}, {"resize": 28}),
}
DENSE = {"two_nn": 3, "two_cnn": 2}  # number of dense layers with the library's options
HEADED = ("lg_fedavg", "fedper", "fedrep")
BASELINES = (
  "fedavg", "fedprox", "scaffold", "lg_fedavg", "fedper", "fedrep", "apfl", "pfedme", "ditto",
)  # fmt: skip
OWN_EPOCHS = {"ditto": {"local_epochs": 5}, "fedrep": {"body_epochs": 5}}
START = {  # number of clients -> L / T
  "superfed_mm": {50: 0.6, 100: 0.4, 500: 0.2},
  "superfed_lm": {50: 0.8, 100: 0.6, 500: 0.4},
}
FIGURES = {"top1": ("metrics.personalized.top1", 100.0)}
DEFAULTS = {
  "dataset": "mnist", "clients": 100, "algorithm": "superfed_mm", "network": "library", "head": 1, "seed": 0,
}  # fmt: skip


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "dataset=mnist,clients=100,algorithm=superfed_mm"."""
  chosen = parse_cell(cell, DEFAULTS)
  check_choice("dataset", chosen["dataset"], MODELS)
  check_algorithm(chosen["algorithm"], (*BASELINES, *START))
  algorithm = {"name": chosen["algorithm"], **OWN_EPOCHS.get(chosen["algorithm"], {})}
  if chosen["algorithm"] == "fedprox":
    algorithm["mu"] = 0.01
  if chosen["algorithm"] in START:
    start = START[chosen["algorithm"]].get(chosen["clients"], 0.4)
    algorithm |= {
      "mu": 0.01,
      "nu": 1.0 if chosen["algorithm"] == "superfed_mm" else 2.0,
      "start": optional(start),
    }
  check_choice("network", chosen["network"], ("library", "code"))
  name = MODELS[chosen["dataset"]]
  code = chosen["network"] == "code"
  network, images = NETWORKS[name] if code else ({}, {})
  if chosen["head"] != 1:
    dense = DENSE[name] + code
    check_whole("head", chosen["head"], 1, dense)
    if chosen["algorithm"] not in HEADED:
      problem = f"{chosen['algorithm']} does not split a model"
      raise SettingError("head", chosen["head"], problem, f"Leave it out, or use {HEADED[0]}.")
    algorithm["head"] = ",".join(f"fc{i}" for i in range(1, dense + 1)[-chosen["head"] :])
  rounds = FieldReference(500)
  return ConfigDict(
    {
      "dataset": chosen["dataset"],
      "data_dir": "",
      "dataset_options": images,
      "task": {},
      "num_clients": optional(chosen["clients"]),
      "partition": {"name": "pathological", "shards_per_client": 2, "deal": "random"},
      "test_fraction": optional(0.2),
      "valid_fraction": 0.0,
      "model": {"name": name, **network},
      "algorithm": algorithm,
      "local": {
        "epochs": 10,
        "batch_size": 10,
        "lr": 0.01,
        "lr_decay": 0.99,
        "momentum": 0.9,
        "weight_decay": 1e-4,
      },
      "mixing": {"name": "static"},
      "server": {"name": "sgd", "lr": 1.0},
      "rounds": rounds,
      "cohort_size": 5,
      "seed": chosen["seed"],
      "eval_every": (rounds + 9) // 10,
      "late_evaluations": 10,
    }
  )
