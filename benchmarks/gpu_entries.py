"""The entries of gpu_queue.py, in order of worth, each with the minutes that it should take.

Minutes are computed from what docs/results/gpu.md has timed on an H100 and an H200: a million client steps
of TwoCNN take about 1.1 minutes (FedPer 57 s, LG-FedAvg 61 s), and a program 0.4 to start and to compile.
`COST` has the steps and models of a method relative to FedAvg's. FedEvg's step of ten clients takes 54 ms;
the other methods of table 4.2, none of which was timed, are taken to need as long for as many products.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.gpu_data import RGB, STD
from benchmarks.papers import why_low_cifar10

LONGEST = 9.0  # minutes of one call of an entry at most
DATA = {"mnist": 12, "cifar10": 86, "femnist": 6, "shakespeare": 3, "weights": 1}  # packed, MB
COST = {
  "fedavg": 1.0, "fedprox": 1.0, "scaffold": 1.0, "lg_fedavg": 1.0, "fedper": 1.0, "fedrep": 1.5,
  "ditto": 1.5, "apfl": 2.0, "superfed_mm": 1.7, "superfed_lm": 1.7, "pfedme": 5.0,
}  # fmt: skip
MILLION, START = 1.1, 0.4  # minutes
STEPS = {50: 1.6, 100: 1.0, 500: 0.175}  # millions of client steps of a CIFAR-10 run with two shards
TOY = (
  "--config.rounds=2", "--config.dataset=digits", "--config.dataset_options={'resize':32}",
  "--config.num_clients=4", "--config.cohort_size=2", "--config.local.epochs=1",
  "--config.late_evaluations=0",
)  # fmt: skip
TINY = ("--config.model={'name':'two_nn','hidden':4}",)  # in place of a table's network


class Entry(NamedTuple):
  """Something that waits for a GPU.

  Attributes:
    name: a name that a file may have.
    about: what it is for.
    minutes: the minutes that it should take in all.
    command: the words after `python`, without spaces in them, with {RUNS}, {DATA} and {OUT}, the file for a
      measurement's lines.
    data: names of data sets, see `DATA`.
    toy: further words with which it runs on a CPU in seconds.
    folder: the folder of RUNS that it writes to.
    timed: whether gpu.md has timed a step of its model, from which `minutes` follows.
  """

  name: str
  about: str
  minutes: float
  command: str
  data: tuple[str, ...] = ()
  toy: tuple[str, ...] = ()
  folder: str = ""
  timed: bool = True


def minutes(methods: Sequence[str], millions: float, seeds: int = 1) -> float:
  """Returns the minutes of some methods' runs of so many million FedAvg steps, seeds as one program."""
  return sum(START + MILLION * COST[method] * millions * seeds for method in methods)


def of_table(
  name: str, about: str, table: str, where: str, time: float, seeds: str = "0", toy: Sequence[str] = (),
  timed: bool = True, more: Sequence[str] = (), data: Sequence[str] = ("cifar10",),
) -> Entry:  # fmt: skip
  """Makes an entry of some cells of a table, whose runs stand in RUNS/TABLE."""
  command = (
    f"-m fedjax_het.reproduce --table=configs/{table}.py --where={where} --seeds={seeds} "
    f"--workdir={{RUNS}}/{table} --data_dir={{DATA}} {' '.join(more)}"
  )
  return Entry(name, about, time, command, tuple(data), (*TOY, *toy), table, timed)


GROUPS = (
  ("fedavg", "fedprox", "scaffold"), ("lg_fedavg", "fedper", "fedrep"), ("ditto", "superfed_mm"),
  ("superfed_lm", "apfl"),
)  # fmt: skip


def table_2_3() -> Iterator[Entry]:
  """Table 2.3, CIFAR-10: cells that have no figure yet (pFedMe, K = 500, K = 50), then seeds at K = 100."""

  def entry(methods: Sequence[str], clients: int, seeds: str) -> Entry:
    where = f"dataset=cifar10,clients={clients},algorithm={'|'.join(methods)}"
    name = f"table_2_3.{clients}.{'+'.join(methods)}.seed={seeds.replace(',', '+')}"
    time = minutes(methods, STEPS[clients], len(seeds.split(",")))
    return of_table(name, f"K = {clients}, seed {seeds}", "table_2_3", where, time, seeds, TINY)

  yield entry(("pfedme",), 100, "0")
  for clients in (500, 50):
    for group in (*GROUPS, ("pfedme",)):
      yield entry(group, clients, "0")
  for group in GROUPS:
    yield entry(group, 100, "1,2")
  yield from (entry(("pfedme",), 100, seed) for seed in "12")


def table_2_6() -> Iterator[Entry]:
  """Table 2.6's CIFAR-10 half: four kinds of label noise."""
  groups = ((*GROUPS[0], *GROUPS[1][:2]), ("fedrep", *GROUPS[2]), GROUPS[3], ("pfedme",))
  for noise, ratio in (("pair", 0.4), ("symmetric", 0.6), ("pair", 0.1), ("symmetric", 0.2)):
    for group in groups:
      where = f"dataset=cifar10,noise={noise},ratio={ratio},algorithm={'|'.join(group)}"
      name, about = f"table_2_6.{noise}.{ratio}.{'+'.join(group)}", f"{noise} noise of {ratio}"
      yield of_table(name, about, "table_2_6", where, minutes(group, 1.0), toy=TINY)


def table_2_7() -> Iterator[Entry]:
  """Table 2.7 unscaled: five starts as one program."""
  for method in ("superfed_mm", "superfed_lm"):
    time, where = START + MILLION * COST[method] * 0.4 * 5, f"algorithm={method}"
    yield of_table(f"table_2_7.{method}", "five starts", "table_2_7", where, time, toy=TINY)


def sosicfl() -> Iterator[Entry]:
  """SosicFL's tables 2 and 3, CIFAR-10, T = 500; no step of these models was timed on a GPU."""
  for table in ("sosicfl_2", "sosicfl_3"):
    pretrained = table == "sosicfl_3"
    toy = ("--config.model.weights=", "--config.model.mean=0.5", "--config.model.width=0.125")
    for split in ("5fold", "2fold", "dir"):
      for method in ("sosicfl", "fedavg", "fedprox", *OF_OWN * (split != "2fold")):
        clusters = ("--config.algorithm.clusters=2",) * method.startswith("sosicfl")
        yield of_table(
          f"{table}.{split}.{method}", f"{split}, T = 500", table,
          f"dataset=cifar10,split={split},algorithm={method}",
          (5.0 if pretrained else 8.0) * (2 if method in OF_OWN else 1),
          toy=("--config.num_clients=10", *(toy if pretrained else TINY), *clusters), timed=False,
          more=WEIGHTS * pretrained,
          data=("cifar10", *("weights",) * pretrained),
        )  # fmt: skip


def synthesis() -> Iterator[Entry]:
  """Table 4.2 at the thesis's width and T = 500: 75 steps of ten clients a round on MNIST, 63 on CIFAR-10."""
  toy = (
    "--config.model.width=4", "--config.downstream.model.width=4", "--config.downstream.seeds=1",
    "--config.downstream.steps=2", "--config.partition.alpha=1.0",
  )  # fmt: skip
  for method, clients in SYNTHESIS:
    timed, step = method == "fedevg", 0.054 * PRODUCTS[method] / PRODUCTS["fedevg"]  # s, of ten clients
    for dataset, steps in (("mnist", 75), ("cifar10", 63)):
      for alpha in ("0.01", "1.0"):
        time = 4.0 + 500 * step * (steps * 10 // clients) / 60
        where = f"dataset={dataset},alpha={alpha},clients={clients},algorithm={method}"
        name, about = f"table_4_2.{method}.{dataset}.{alpha}.{clients}", f"{method}, K = {clients}, T = 500"
        yield of_table(
          name, about, "table_4_2", where, time, toy=toy, timed=timed, data=(dataset,),
          more=() if timed else ("--cell=protocol=thesis",),
        )  # fmt: skip


def causes() -> Iterator[Entry]:
  """Causes of low baselines on CIFAR-10: FedAvg's decay and deal with three seeds, the others with one."""
  for deal in ("random", "round_robin"):
    for decay in (0.999, 0.99):
      command = (
        "-m fedjax_het.run --config=configs/table_2_3.py:dataset=cifar10,clients=100,algorithm=fedavg "
        f"--config.eval_every=5 --config.partition.deal={deal} --config.local.lr_decay={decay} "
        f"--sweep.seed=1,2,3 --workdir={{RUNS}}/why_low_cifar10/{deal}_{decay} --config.data_dir={{DATA}}"
      )
      name, time = f"why_low_cifar10.fedavg.{deal}.{decay}", minutes(("fedavg",), 1.0, 3) + 0.5
      toy = (*TOY, *TINY)
      yield Entry(name, "decay and deal", time, command, ("cifar10",), toy, "why_low_cifar10")
  toy = (*TOY, "--config.model.dense=4")
  for method in why_low_cifar10.METHODS:
    for variant in why_low_cifar10.variants(method)[1:]:  # table 2.3 has the first, which changes nothing
      if method == "fedavg" and variant in ("decay", "deal", "decay_deal"):
        continue
      run = f"{method}.{variant}.0"
      words = [word.replace("RUNS/", "{RUNS}/why_low_cifar10/") for word in why_low_cifar10.command(run, 500)]
      command, time = " ".join([*words[1:], "--config.data_dir={DATA}"]), minutes((method,), 1.0)
      about = why_low_cifar10.VARIANTS[variant][0]
      yield Entry(f"why_low_cifar10.{run}", about, time, command, ("cifar10",), toy, "why_low_cifar10")


def peers() -> Iterator[Entry]:
  """Flower's niid_bench, four methods a split, and its MOON, one seed each; no step of LeNet was timed."""
  toy = ("--config.num_clients=10", "--config.record_official=False", "--config.test_fraction=0.2")
  for dataset in ("mnist", "cifar10"):
    for split in ("dir", "c2", "c1", "c3", "iid"):
      name, about = f"peers_niid_bench.{dataset}.{split}", f"Flower's niid_bench, {dataset}, {split}"
      where = f"dataset={dataset},split={split}"
      yield of_table(name, about, "peers_niid_bench", where, 7.0, toy=toy, timed=False, data=(dataset,))
  for method in ("moon", "fedprox"):
    name, about, where = f"peers_moon.{method}", f"Flower's MOON, {method}", f"algorithm={method}"
    yield of_table(name, about, "peers_moon", where, 7.0, toy=toy, timed=False)


def measurements() -> Iterator[Entry]:
  """What gpu.md leaves open, and three workloads whose times FLUTE has published."""
  small = ("--small",)
  command = "benchmarks/speed/gpu_choices.py --only products --out {OUT}"
  yield Entry("momentum_products", "a kernel's gradient with momentum", 3.0, command, (), small)
  command = "benchmarks/speed/gpu.py --only cohort --models resnet10 --convs patches --out {OUT}"
  yield Entry("resnet10_cohorts", "cohorts of ResNet-10", 4.0, command, (), small, timed=False)
  command = "benchmarks/speed/lanes_timed.py --turns 1 --out {OUT}"
  yield Entry("lanes", "clients of unequal sizes in lanes", 3.0, command, timed=False)
  toy = (*TOY, *TINY, "--config.partition={'name':'iid'}")
  for name, published, time, data, flags in FLUTE:
    command = (
      "-m fedjax_het.run --config=configs/quickstart.py:algorithm=fedavg --config.valid_fraction=0.0 "
      "--config.local.lr_decay=1.0 --config.local.momentum=0.0 --config.local.weight_decay=0.0 "
      f"--config.local.epochs=1 --config.cohort_size=10 --config.dataset={data} {flags} "
      f"--config.data_dir={{DATA}} --workdir={{RUNS}}/flute/{name}"
    )
    about = f"FLUTE's {name}, published with {published}"
    own = (*toy, "--config.test_fraction=0.2")
    yield Entry(f"flute.{name}", about, time, command, (data,), own, "flute", timed=False)


OF_OWN = ("ditto", "sosicfl_plus")  # methods that train a model of each client's own besides
WEIGHTS = (
  f"--config.model.weights={{DATA}}/weights/{RGB}", "--config.model.mean=(0.4824,0.4588,0.4078)",
  f"--config.model.std={STD}",
)  # fmt: skip
PRODUCTS = {"fedevg": 80, "fedcgan": 29, "fedcvae": 8}  # GFLOP of a client's step in table 4.2
SYNTHESIS = (("fedevg", 10), ("fedevg", 100), ("fedcgan", 100), ("fedcgan", 10), ("fedcvae", 10))
FLUTE = (  # name, published time, minutes, data set, flags: of FLUTE's README; its clients are others
  (
    "lr_mnist", "1:35 minutes", 0.7, "mnist",
    "--config.rounds=100 --config.eval_every=20 --config.num_clients=1000 --config.local.lr=0.03 "
    "--config.partition={'name':'iid'} --config.model={'name':'logistic_regression'}",
  ),
  (
    "cnn_femnist", "8:22 minutes", 6.0, "femnist",
    "--config.rounds=1500 --config.eval_every=50 --config.num_clients=None --config.local.lr=0.1 "
    "--config.local.batch_size=20 --config.partition={'name':'natural','min_size':5} "
    "--config.model={'name':'femnist_cnn'}",
  ),
  (
    "rnn_shakespeare", "21:50 minutes", 8.0, "shakespeare",
    "--config.rounds=1200 --config.eval_every=50 --config.num_clients=None --config.local.lr=0.8 "
    "--config.local.batch_size=4 --config.partition={'name':'natural'} --config.test_fraction=None "
    "--config.model={'name':'stacked_lstm'} --config.dataset_options={'stride':80}",
  ),
)  # fmt: skip
ENTRIES = [
  *table_2_3(),
  *table_2_6(),
  *table_2_7(),
  *sosicfl(),
  *synthesis(),
  *causes(),
  *peers(),
  *measurements(),
]
