"""Calls every public function with values that its parameters do not take; see `test_bad_input`.

`python tests/shared/bad_input.py` prints every call that ends neither in
a result nor in an error of the library.
"""

import contextlib
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bad_values import VALUES
from flax import linen as nn

import fedjax_het as fh
from fedjax_het.clients.regions import Regions
from fedjax_het.engine.base import Runs
from fedjax_het.metrics import fairness
from fedjax_het.output.progress import Progress

SECONDS = 20  # that a call may take
N, K = 60, 6


class Reached(Exception):
  """A call has come to where a program would be compiled."""


class Call(NamedTuple):
  """A public function with arguments that it takes, and parameters that are not varied."""

  function: Callable[..., Any]
  arguments: Mapping[str, Any]
  fixed: tuple[str, ...] = ()


def arrays() -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
  """x, y and parts."""
  x = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
  return x, np.arange(N) % 3, np.array_split(np.arange(N), K)


def model() -> fh.Model:
  """A model of the data set."""
  return fh.models.two_nn((4,), 3, hidden=3)


def algorithm(lr: float = 0.1) -> fh.Algorithm:
  """An algorithm of the model."""
  return fh.federated(fh.fedavg(model(), lr=lr, epochs=1))


def data() -> fh.data.FederatedData:
  """Six clients."""
  return fh.federate(*arrays(), jax.random.key(0), num_classes=3)


def calls() -> dict[str, Call]:
  """Every public function, by name."""
  x, y, parts = arrays()
  net, generative, key = model(), fh.models.make("cvae_mlp", (4,), 3), jax.random.key(0)
  own = fh.regions(np.eye(3)[[0, 0, 1, 1, 2, 2]] * 10 + 1, endpoints=2, clusters=2)
  local = dict(lr=0.1, lr_decay=0.9, epochs=1, batch_size=5)
  sgd = {**local, "momentum": 0.9, "weight_decay": 1e-4, "optimizer": None}
  run = dict(data=data(), rounds=1, cohort_size=2)
  engine = dict(client_batch=None, devices=None, device_rows=None)
  found = {
    "run": Call(fh.run, {
      "algorithm": algorithm(), **run, "key": key, "eval_every": None, "eval_clients": None, **engine,
      "device_states": None, "states_folder": None, "settings": None, "progress": False,
    }),
    "run of settings": Call(fh.run, {
      "algorithm": algorithm, **run, "key": key, "settings": {"lr": 0.1}, "progress": False,
    }),
    "sweep": Call(fh.sweep, {
      "make_algorithm": algorithm, "grid": {"lr": [0.1]}, "seeds": [0, 1], **run, "eval_every": None,
      "eval_clients": None,
      "member_batch": None, **engine, "progress": False,
    }),
    "sweep's values": Call(lambda values: fh.sweep(algorithm, {"lr": values}, **run), {"values": [0.1]}),
    "sweep's data": Call(
      lambda first: fh.sweep(algorithm, {}, [0, 1], **{**run, "data": [first, data()]}), {"first": data()}
    ),
    "Engine": Call(fh.Engine, {
      "algorithm": algorithm(), "data": data(), "cohort_size": 2, **engine, "device_states": None,
      "states_folder": None, "settings": None,
    }),
    "Engine.init": Call(lambda key: fh.Engine(algorithm(), data(), 2).init(key), {"key": key}),
    "federated": Call(fh.federated, {
      "client": fh.fedavg(net), "mixing": fh.mixing.static(), "server": fh.server.sgd(),
    }),
    "federate": Call(fh.federate, {
      "x": x, "y": y, "parts": parts, "key": key, "num_classes": 3, "task": None, "test_fraction": None,
      "valid_fraction": 0.1, "standardize": (), "stratify": False, "scale": None, "name": "", "train_y": None,
      "split": None,
    }),
    "federate's part": Call(lambda part: fh.federate(x, y, [parts[0], part], key, num_classes=3),
                            {"part": parts[1]}),
    "federate's tree": Call(lambda leaf: fh.federate({"a": x, "b": leaf}, y, parts, key, num_classes=3),
                            {"leaf": x}),
    "prepare_cpu": Call(fh.prepare_cpu, {"devices": None}, fixed=("devices",)),
    "regions": Call(fh.regions, {
      "counts": np.eye(3)[[0, 1, 2, 0]] * 9 + 1, "endpoints": 2, "clusters": 2, "rho": 0.4, "epsilon": None,
      "seed": 0,
    }),
    "fedavg": Call(fh.fedavg, {"model": net, **sgd}),
    "fedprox": Call(fh.fedprox, {"model": net, "mu": 0.1, **sgd}),
    "scaffold": Call(fh.scaffold, {"model": net, **{k: v for k, v in sgd.items() if k != "optimizer"}}),
    "fedper": Call(fh.fedper, {"model": net, "head": "", **sgd}),
    "lg_fedavg": Call(fh.lg_fedavg, {"model": net, "head": "", **sgd}),
    "fedrep": Call(fh.fedrep, {"model": net, "head": "", "body_epochs": 1, **sgd}),
    "ditto": Call(fh.ditto, {"model": net, "lam": 1.0, "local_epochs": 1, **sgd}),
    "apfl": Call(fh.apfl, {"model": net, "alpha": 0.2, **sgd}),
    "pfedme": Call(fh.pfedme, {"model": net, **local}),
    "sosicfl": Call(fh.sosicfl, {"model": net, "regions": own, "points": None, "start_round": 0, **sgd}),
    "sosicfl_all": Call(fh.sosicfl_all, {"model": net, "regions": own, **sgd}),
    "sosicfl_plus": Call(fh.sosicfl_plus, {
      "model": net, "regions": own, "layers": "head", "head": "", "lam": 1.0, "local_epochs": None, **sgd,
    }),
    "sosicfl's centers": Call(lambda of: fh.sosicfl(net, Regions(of, *own[1:])), {"of": own.centers}),
    "sosicfl's radius": Call(lambda of: fh.sosicfl(net, own._replace(radius=of)), {"of": own.radius}),
    "sosicfl's points": Call(lambda of: fh.sosicfl(net, own._replace(points=of)), {"of": own.points}),
    "sosicfl's clusters": Call(lambda of: fh.sosicfl(net, own._replace(clusters=of)), {"of": own.clusters}),
    "superfed": Call(fh.superfed, {"model": net, "mu": 0.1, "nu": 1.0, "start_round": 0, **sgd}),
    "superfed_mm": Call(fh.superfed_mm, {"model": net, "nu": 1.0, **sgd}),
    "superfed_lm": Call(fh.superfed_lm, {"model": net, "nu": 1.0, **sgd}),
    "fedevg": Call(fh.fedevg, {"model": net, **local}),
    "fedcvae": Call(fh.fedcvae, {"model": generative, **local}),
    "fedcgan": Call(fh.fedcgan, {"model": fh.models.make("cgan_mlp", (4,), 3), **local}),
    "data.iid": Call(fh.data.iid, {"key": key, "labels": y, "num_clients": 3}),
    "data.pathological": Call(fh.data.pathological, {
      "key": key, "labels": y, "num_clients": 3, "shards_per_client": 2, "deal": "random",
    }),
    "data.dirichlet": Call(fh.data.dirichlet, {
      "key": key, "labels": y, "num_clients": 2, "alpha": 10.0, "min_size": 1, "max_tries": None,
      "balance": False,
    }),
    "data.client_dirichlet": Call(fh.data.client_dirichlet, {
      "key": key, "labels": y, "num_clients": 2, "alpha": 10.0,
    }),
    "data.primary_class": Call(fh.data.primary_class, {
      "key": key, "labels": y, "num_clients": 6, "num_folds": 3, "fraction": 0.8,
    }),
    "data.quantity_skew": Call(fh.data.quantity_skew, {
      "key": key, "labels": y, "num_clients": 2, "alpha": 10.0, "min_size": 1,
    }),
    "data.power_law": Call(fh.data.power_law, {
      "key": key, "labels": y, "num_clients": 2, "exponent": 1.0, "min_size": 1,
    }),
    "data.label_quantity": Call(fh.data.label_quantity, {
      "key": key, "labels": y, "num_clients": 2, "classes_per_client": 2,
    }),
    "data.extended_dirichlet": Call(fh.data.extended_dirichlet, {
      "key": key, "labels": y, "num_clients": 2, "alpha": 10.0, "classes_per_client": 2, "min_size": 1,
    }),
    "data.rotations": Call(fh.data.rotations, {"clusters": 2, "degrees": 90.0}),
    "data.growing_noise": Call(fh.data.growing_noise, {"std": 0.1}),
    "data.feature_shift": Call(fh.data.feature_shift, {
      "key": key, "data": data(), "shift": fh.data.growing_noise(),
    }),
    "data.natural": Call(fh.data.natural, {"groups": y, "min_size": 1, "sample": 2, "key": key}),
    "data.partition": Call(fh.data.partition, {"key": key, "name": "iid", "labels": y, "num_clients": 3}),
    "data.from_arrays": Call(fh.data.from_arrays, {
      "key": key, "x": x, "y": y, "num_clients": 2, "partition": "iid", "num_classes": None,
    }),
    "data.from_groups": Call(fh.data.from_groups, {
      "key": key, "x": x, "y": y, "groups": y, "num_classes": None,
    }),
    "data.load": Call(fh.data.load, {
      "name": "digits", "data_dir": None, "resize": None, "examples": None,
    }),
    "data.load heart": Call(lambda where: fh.data.load("heart", where), {"where": "/no/such"}),
    "data.select": Call(fh.data.select, {"data": data(), "clients": [0, 1]}),
    "data.label_counts": Call(fh.data.label_counts, {"data": data()}),
    "data.split_clients": Call(fh.data.split_clients, {"key": key, "num_clients": 6, "fraction": 0.5}),
    "data.label_noise": Call(fh.data.label_noise, {"key": key, "labels": y, "transition": np.eye(3)}),
    "data.pair_flip": Call(fh.data.pair_flip, {"num_classes": 3, "ratio": 0.1}),
    "data.symmetric_flip": Call(fh.data.symmetric_flip, {"num_classes": 3, "ratio": 0.1}),
    "models.make": Call(fh.models.make, {
      "name": "two_nn", "shape": (4,), "num_classes": 3, "task": None, "hidden": 3, "layers": 1,
      "bias": True, "mean": 0.0, "std": 1.0, "weights": "",
    }),
    "models.from_flax": Call(fh.models.from_flax, {
      "module": nn.Dense(3), "shape": (4,), "num_classes": 3, "dtype": jnp.float32, "name": "", "task": None,
      "head": (),
    }),
    "models.standardized": Call(fh.models.standardized, {"model": net, "mean": 0.0, "std": 1.0}),
    "models.count_parameters": Call(fh.models.count_parameters, {"params": {"w": np.zeros(3)}}),
    "models.with_weights": Call(fh.models.with_weights, {"model": net, "path": "no.npz"}),
    "models.check_file": Call(fh.models.check_file, {"path": "no.npz"}),
    "mixing.static": Call(fh.mixing.static, {}),
    "mixing.afl": Call(fh.mixing.afl, {"lr": 0.1}),
    "mixing.aaggff_s": Call(fh.mixing.aaggff_s, {"cdf": "normal", "scale": "spacing", "learner": "gradient"}),
    "mixing.aaggff_d": Call(fh.mixing.aaggff_d, {"cdf": "normal", "sampling_probability": 0.5}),
    "mixing.qffl": Call(fh.mixing.qffl, {"q": 1.0, "lipschitz": 2.0}),
    "mixing.term": Call(fh.mixing.term, {"lam": 1.0}),
    "mixing.propfair": Call(fh.mixing.propfair, {"baseline": 3.0, "margin": 0.2}),
    "mixing.tilted": Call(fh.mixing.tilted, {"response": None, "zeta": 1.0, "name": "t"}),
    "mixing.krum": Call(fh.mixing.krum, {"byzantine": 1}),
    "mixing.norm_bound": Call(fh.mixing.norm_bound, {"bound": 2.0}),
    "aggregation.trimmed_mean": Call(fh.aggregation.trimmed_mean, {"share": 0.2}),
    "aggregation.geometric_median": Call(fh.aggregation.geometric_median, {"smoothing": 0.1}),
    "aggregation.centered_clipping": Call(fh.aggregation.centered_clipping, {"radius": 2.0, "iterations": 1}),
    "aggregation.bulyan": Call(fh.aggregation.bulyan, {"byzantine": 1}),
    "mixing.observed": Call(fh.mixing.observed, {"mixing": fh.mixing.static()}),
    "mixing.with_variance": Call(fh.mixing.with_variance, {"mixing": fh.mixing.static(), "of": dict}),
    "server.sgd": Call(fh.server.sgd, {"lr": 1.0}),
    "server.optimizer": Call(fh.server.optimizer, {"transformation": optax.sgd(1.0), "name": "own"}),
    "tasks.classification": Call(fh.tasks.classification, {"class_weights": None}),
    "tasks.binary": Call(fh.tasks.binary, {"positive_weight": 1.0}),
    "tasks.multilabel": Call(fh.tasks.multilabel, {"positive_weight": 1.0}),
    "tasks.next_token": Call(fh.tasks.next_token, {"ignore": (-1,)}),
    "tasks.balanced": Call(fh.tasks.balanced, {"y": y, "num_classes": 3}),
    "tasks.balanced_positive": Call(fh.tasks.balanced_positive, {"y": y % 2}),
    "tasks.check_task": Call(fh.tasks.check_task, {"task": fh.tasks.regression()}),
    "tasks.for_classes": Call(fh.tasks.for_classes, {"num_classes": 3}),
    "tasks.for_model": Call(fh.tasks.for_model, {"num_outputs": 3}),
    "metrics.fairness.gini": Call(fairness.gini, {"values": [0.5, 1.0]}),
    "metrics.fairness.summarize": Call(fairness.summarize, {"values": [0.5], "higher_is_better": True}),
    "metrics.fairness.summarize_all": Call(fairness.summarize_all, {"metrics": {"top1": [0.5]}}),
    "metrics.fairness.left_out": Call(fairness.left_out, {"metrics": {"top1": [0.5]}}),
  }  # fmt: skip
  images = dict(shape=(32, 32, 3), num_classes=3)
  for name in ("adam", "yogi", "adagrad"):
    settings = {"lr": 0.1, "b1": 0.9, "b2": 0.9, "tau": 0.1}
    found[f"server.{name}"] = Call(getattr(fh.server, name), {
      own: value for own, value in settings.items() if name != "adagrad" or own != "b2"})  # fmt: skip
  found["server.sgld"] = Call(fh.server.sgld, {
    "rounds": 3, "step_size": 1.0, "last_step_size": 0.1, "noise": 0.1, "bounded": True})  # fmt: skip
  found["server.particles"] = Call(fh.server.particles, {"rounds": 3, "step_size": 1.0})
  for name in ("two_nn", "logistic_regression", "energy_mlp"):
    found[f"models.{name}"] = Call(getattr(fh.models, name), {"shape": (4,), "num_classes": 3})
  for name in ("two_cnn", "leaf_cnn", "simple_cnn", "m5"):
    given = {"shape": (4000, 1), "num_classes": 3} if name == "m5" else images
    found[f"models.{name}"] = Call(getattr(fh.models, name), given)
  return found


@contextlib.contextmanager
def no_compile() -> Iterator[None]:
  """Within it a run ends by `Reached` where it would compile its first program."""

  @contextlib.contextmanager
  def reached(*_: Any) -> Iterator[None]:
    raise Reached
    yield

  kept = Progress.doing, Runs.__dict__.get("doing")
  Progress.doing = reached  # type: ignore[method-assign]
  Runs.doing = staticmethod(reached)  # type: ignore[assignment, method-assign]
  try:
    yield
  finally:
    Progress.doing, Runs.doing = kept  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
  """Raises `TimeoutError` in what takes longer."""

  def late(*_: Any) -> None:
    raise TimeoutError(f"took longer than {seconds} s")

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fault(call: Call, parameter: str, value: Any) -> str:
  """What is wrong with how a call with this value ends; "" for a result or an error of the library's."""
  try:
    with at_most(SECONDS), warnings.catch_warnings():
      warnings.simplefilter("ignore")
      call.function(**{**call.arguments, parameter: value})
  except (Reached, fh.DataError):
    return ""
  except fh.SettingError as error:
    named = str(error)
    return "" if len(named) < 1500 else f"an error of {len(named)} characters"
  except Exception as error:
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first[:110]}"
  return ""


def faults(only: str = "", share: int = 1, which: int = 0) -> Iterator[tuple[str, str, str, str]]:
  """(function, parameter, value, what is wrong) of every call that ends in another error.

  Args:
    only: a function, or one parameter of it as in "run.key"; by default all.
    share: how many parts the calls are in, other values of other parameters in each.
    which: the part, from 0.
  """
  with no_compile():
    number = 0
    values = {**VALUES, "an algorithm": algorithm, "a data set": data}
    for name, call in calls().items():
      for parameter in call.arguments:
        if only not in (name, f"{name}.{parameter}", "") or parameter in call.fixed:
          continue
        number += 1
        for place, (what, value) in enumerate(values.items()):
          if (place + number) % share == which and (wrong := fault(call, parameter, value())):
            yield name, parameter, what, wrong


if __name__ == "__main__":
  jax.config.update("jax_platforms", "cpu")
  count = 0
  for found in faults(*sys.argv[1:]):
    print(": ".join(found), flush=True)
    count += 1
  print(f"{count} faults")
  sys.exit(count > 0)
