"""The leaderboard's tasks and methods, and how many trials each method is tuned with on each task.

    python -m fedjax_het.run --config=configs/leaderboard.py:task=digits,method=fedavg --workdir=DIR
    python -m fedjax_het.leaderboard --tasks=digits --data_dir=DATA

All methods of a task have its data, network, rounds T, cohort, local epochs, batch size and range of learning
rates, and plain SGD. A method is a client part with static mixing and the server sgd, or FedAvg's client part
with another mixing or server. A tenth or a fifth of each client's training rows judges the trials, and is not
trained on afterwards either. Those of a method's settings that are not tuned are its defaults, but for
`FIXED`.

TRIALS are plain numbers, so that everybody's budget is the same whatever the machine: as many as 20
core-minutes a row hold (successive halving, then five seeds), at least 4 and at most 32. A row whose run
takes less than 50 seconds holds 32. On digits, heart and berka all do: the longest run there, of APPLE on
digits, takes 9 seconds (docs/results/raw/leaderboard_steps.json). On mnist_shards and mnist_rotated all do
but APPLE, whose run takes 297 and 90 seconds; of eleven others FedCAC takes longest, 20 seconds. The numbers
of the other tasks are PROVISIONAL: derived from the times beside FedAvg's of docs/results/smoke.md (3 for
client parts and 1.5 for mixings and servers that it does not have) and from estimates of FedAvg's step on
each task. benchmarks/leaderboard/step_times.py measures the steps and prints the table.
"""

from ml_collections import ConfigDict, FieldReference

from fedjax_het.config.cell import optional, parse_cell
from fedjax_het.errors import check_choice
from fedjax_het.methods import METHODS

NATURAL = {"name": "natural"}
SHARDS = {"name": "pathological", "shards_per_client": 2, "deal": "random"}
BY_CLASS = {"name": "classification"}  # a logit a class, which many methods ask for, also of two classes
MLP = {"name": "two_nn", "hidden": 64}
CNN = {"name": "lenet", "hidden": 8, "second": 16, "dense": 64, "last": None}
TASKS = {  # `what`: the kind of difference between clients, and what it asks of θ, w or D
  "digits": dict(
    what="label and quantity skew: Dirichlet(0.1) over 30 clients; asks for θ of each client",
    dataset="digits", clients=30, partition={"name": "dirichlet", "alpha": 0.1}, model=MLP, rounds=40,
    cohort=30, epochs=5, batch=10, lr="0.01:2:log", valid=0.2,
  ),
  "mnist_shards": dict(
    what="label skew: two shards of label-sorted images for each of 100 clients; asks for θ of each client",
    dataset="mnist", clients=100, partition=SHARDS, model=MLP, rounds=100, cohort=10, epochs=1, batch=20,
    lr="0.01:2:log",
  ),
  "mnist_rotated": dict(
    what="feature skew: four hidden rotations over 40 clients, equal labels; asks for θ of each cluster",
    dataset="mnist", options={"examples": 12000}, clients=40, partition={"name": "iid"},
    shift={"name": "rotation", "clusters": 4}, model=MLP, rounds=50, cohort=40, epochs=1,
    batch=20, lr="0.01:2:log",
  ),
  "femnist": dict(
    what="feature, label and quantity skew: 300 writers; asks for a shared θ, adapted a little",
    dataset="femnist", partition={"name": "natural", "sample": 300}, model=CNN, rounds=150, cohort=10,
    epochs=1, batch=20, lr="0.01:2:log",
  ),
  "fsdd": dict(
    what="feature skew: six speakers who say the same digits; asks for a shared θ, and for w",
    dataset="fsdd", partition=NATURAL, test=None, model=CNN, rounds=50, cohort=6, epochs=1, batch=20,
    lr="0.01:2:log",
  ),
  "shakespeare": dict(
    what="label and quantity skew: 100 speaking roles, next character; asks for a shared θ",
    dataset="shakespeare", options={"stride": 80}, partition={"name": "natural", "sample": 100}, test=None,
    model={"name": "stacked_lstm", "hidden": 64, "layers": 1}, rounds=60, cohort=10, epochs=1, batch=10,
    lr="0.1:3:log", valid=0.2,
  ),
  "heart": dict(
    what="concept, feature and quantity skew: patients of four hospitals, a linear model; asks for w",
    dataset="heart", task=BY_CLASS, partition=NATURAL, model={"name": "logistic_regression"}, rounds=200,
    cohort=4, epochs=1, batch=20, lr="0.001:1:log", valid=0.2,
  ),
  "berka": dict(
    what="label and quantity skew: loans of seven regions, a linear model; asks for w",
    dataset="berka", task=BY_CLASS, options={"leaky": False}, partition=NATURAL,
    model={"name": "logistic_regression"}, rounds=100, cohort=7, epochs=1, batch=20, lr="0.01:3:log",
    valid=0.2,
  ),
  "cifar10": dict(
    what="label and quantity skew: Dirichlet(0.1) over 100 clients, colour photographs; asks for θ",
    dataset="cifar10", clients=100, partition={"name": "dirichlet", "alpha": 0.1}, model={"name": "two_cnn"},
    rounds=500, cohort=10, epochs=5, batch=50, lr="0.01:2:log", gpu=True,
  ),
}  # fmt: skip
# No rows: name -> why.
LEFT_OUT = {
  "static": "is `fedavg`", "sgd": "is `fedavg`",
  "fedbn": "is `fedavg`, as none of the networks has norm layers",
  "fedevg": "trains a generator", "fedcvae": "trains a generator", "fedcgan": "trains a generator",
  "sgld": "moves the synthetic set of fedevg", "particles": "moves the synthetic set of fedevg",
}  # fmt: skip
FIXED = {
  "superfed_mm": {"start": 0.4}, "superfed_lm": {"start": 0.4}, "ifca": {"models": 4},
  "pfedme": {"outer_lr": 0.01},
}  # fmt: skip

TRIALS_TABLE = """
method        digits mnist_shards mnist_rotated femnist fsdd shakespeare heart berka cifar10
fedavg            32           32            32      32   32          28    32    32       8
fedprox           32           32            32      16   29          12    32    32       8
scaffold          32           32            32      17   30          12    32    32       8
lg_fedavg         32           32            32      32   32          27    32    32       8
fedper            32           32            32      25   32          19    32    32       8
fedrep            32           32            32      22   32          16    32    32       8
apfl              32           32            32       6   13           4    32    32       8
pfedme            32           32            32       4    4           4    32    32       8
ditto             32           32            32      12   23           8    32    32       8
superfed_mm       32           32            32       9   18           6    32    32       8
superfed_lm       32           32            32       4    8           4    32    32       8
sosicfl           32           32            32      23   32          17    32    32       8
sosicfl_all       32           32            32      12   22           8    32    32       8
sosicfl_plus      32           32            32       5   12           4    32    32       8
feddyn            32           32            32      23   32          16    32    32       8
fedspeed          32           32            32       8   18           5    32    32       8
local             32           32            32      32   32          25    32    32       8
moon              32           32            32      18   31          12    32    32       8
per_fedavg        32           32            32      10   20           6    32    32       8
fedbabu           32           32            32      25   32          19    32    32       8
fedproto          32           32            32      28   32          22    32    32       8
fedrod            32           32            32      32   32          28    32    32       8
fedlc             32           32            32      29   32          22    32    32       8
fedrs             32           32            32      24   32          18    32    32       8
fedntd            32           32            32      17   30          12    32    32       8
fedcm             32           32            32      32   32          28    32    32       8
mofedsam          32           32            32      12   22           8    32    32       8
feddc             32           32            32      20   32          14    32    32       8
fedadmm           32           32            32      28   32          22    32    32       8
fedsmoo           32           32            32       8   18           5    32    32       8
mimelite          32           32            32      24   32          18    32    32       8
mime              32           32            32      14   24           9    32    32       8
fedala            32           32            32      25   32          19    32    32       8
feddbe            32           32            32      32   32          28    32    32       8
fedphp            32           32            32      18   30          12    32    32       8
gpfl              32           32            32      14   25          10    32    32       8
fedcp             32           32            32      20   32          14    32    32       8
knn_per           32           32            32      19   32          14    32    32       8
ifca              32           32            32      24   32          17    32    32       8
fedem             32           32            32       4    4           4    32    32       8
fedamp            32           32            32       8   16           5    32    32       8
heurfedamp        32           32            32      14   25          10    32    32       8
fedfomo           32           32            32       8   16           4    32    32       8
cfl               32           32            32      32   32          28    32    32       8
apple             32            4            13       4    4           4    32    32       8
fedcac            32           32            32       4    4           4    32    32       8
fedpac            32           32            32      12   22           8    32    32       8
fedas             32           32            32       4    8           4    32    32       8
pfedhn            32           32            32       8   17           5    32    32       8
fml               32           32            32      12   21           8    32    32       8
fedkd             32           32            32       6   13           4    32    32       8
feddf             32           32            32       6   13           4    32    32       8
fedgen            32           32            32       6   13           4    32    32       8
fd                32           32            32      28   32          20    32    32       8
uniform           32           32            32      21   32          16    32    32       8
afl               32           32            32      21   32          16    32    32       8
qffl              32           32            32      21   32          16    32    32       8
term              32           32            32      21   32          16    32    32       8
fedmgda           32           32            32      21   32          16    32    32       8
propfair          32           32            32      21   32          16    32    32       8
aaggff_s          32           32            32      21   32          16    32    32       8
aaggff_d          32           32            32      21   32          16    32    32       8
fednova           32           32            32      21   32          16    32    32       8
fedexp            32           32            32      21   32          16    32    32       8
feddisco          32           32            32      21   32          16    32    32       8
krum              32           32            32      21   32          16    32    32       8
multi_krum        32           32            32      21   32          16    32    32       8
norm_bound        32           32            32      21   32          16    32    32       8
avgm              32           32            32      21   32          16    32    32       8
adam              32           32            32      21   32          16    32    32       8
yogi              32           32            32      21   32          16    32    32       8
adagrad           32           32            32      21   32          16    32    32       8
"""
(_, *_TASKS), *_ROWS = (line.split() for line in TRIALS_TABLE.strip().splitlines())
TRIALS = {task: {name: int(row[i]) for name, *row in _ROWS} for i, task in enumerate(_TASKS)}


def names() -> list[str]:
  """Returns the methods' names: client parts, then mixings, then servers, in the tables' order."""
  return [name for table in METHODS.values() for name in table if name not in LEFT_OUT]


def get_config(cell: str = "") -> ConfigDict:
  """Returns the configuration of a cell such as "task=digits,method=ditto"."""
  chosen = parse_cell(cell, {"task": "digits", "method": "fedavg", "seed": 0})
  check_choice("task", chosen["task"], TASKS)
  check_choice("method", chosen["method"], names())
  task, method = TASKS[chosen["task"]], chosen["method"]
  parts = {"algorithm": {"name": "fedavg"}, "mixing": {"name": "static"}, "server": {"name": "sgd"}}
  section = next(section for section, table in METHODS.items() if method in table)
  parts[section] = {"name": method, **FIXED.get(method, {})}
  rounds = FieldReference(task["rounds"])
  low, high, _ = task["lr"].split(":")
  return ConfigDict(
    {
      "dataset": task["dataset"],
      "data_dir": "",
      "dataset_options": task.get("options", {}),
      "task": task.get("task", {}),
      "feature_shift": task.get("shift", {}),
      "num_clients": optional(task.get("clients")),
      "partition": task["partition"],
      "test_fraction": optional(task.get("test", 0.2)),
      "valid_fraction": task.get("valid", 0.1),
      "model": task["model"],
      **parts,
      "local": {
        "epochs": task["epochs"],
        "batch_size": task["batch"],
        "momentum": 0.0,
        "weight_decay": 0.0,
        "lr": round((float(low) * float(high)) ** 0.5, 4),
      },
      "rounds": rounds,
      "cohort_size": task["cohort"],
      "seed": chosen["seed"],
      "eval_every": (rounds + 9) // 10,
    }
  )
