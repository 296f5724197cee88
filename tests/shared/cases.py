"""A small algorithm for every method of the table: settings offered to all, and what a few need instead."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from fedjax_het.conditions import CONDITIONS, SEVERAL, UNLESS_CHOSEN
from fedjax_het.config.values import numbers, with_values
from fedjax_het.federated import federated
from fedjax_het.methods import CLIENTS, METHODS, MIXINGS, SERVERS, Method, compositions, or_brought
from fedjax_het.models import GENERATORS, Model
from fedjax_het.models.zoo.generative import cgan_mlp, cvae_mlp
from fedjax_het.parts import Algorithm, ClientUpdate

ROUNDS, EPOCHS = 4, 2  # a method that changes course at a share of the rounds does so in the middle
OFFERED = dict(lr=0.1, lr_decay=0.9, epochs=EPOCHS)
ADAM = dict(lr=1e-3, lr_decay=0.99)
OWN = {
  "fedprox": dict(mu=0.1),
  "fedala": dict(passes=3),
  "feddbe": dict(kappa=1.0, momentum_mean=0.5),
  "fedphp": dict(lam=0.3),
  "fedcp": dict(lam=0.5),
  "knn_per": dict(k=3),
  "scaffold": dict(momentum=0.5),
  "fedrep": dict(body_epochs=1),
  "apfl": dict(adaptive=True),
  "pfedme": dict(lam=2.0, inner_steps=2),
  "ditto": dict(local_epochs=1),
  "sosicfl_plus": dict(local_epochs=1),
  "fedfomo": dict(models=3),
  "feddf": dict(server_steps=3),
  "cfl": dict(eps1=9.0, eps2=0.01, warmup_rounds=1, clusters=3),
  "apple": dict(weights_lr=0.01),
  "fedcac": dict(beta=9.0),
  "pfedhn": dict(hidden=4, server_lr=0.1),
  "fedevg": dict(ADAM, per_class=2, lam=0.0, bounded=False),
  "fedcvae": ADAM,
  "fedcgan": ADAM,
  "adam": dict(lr=0.1),
  "yogi": dict(lr=0.1),
  "adagrad": dict(lr=0.1),
  "sgld": dict(bounded=False),
  # Of copies but for noise, which it is large for.
  "particles": dict(pixels="free", step_size=1.0, temperature=1e-3),
}
# Settings of conditions with which they do something that stays near the honest clients, for few clients.
OF_CONDITIONS = {
  "participation": {
    "uniform": dict(dropout=0.2),
    "available": dict(probability=0.8, spread=0.1, dropout=0.1),
    "cyclic": dict(period=2),
    "trace": dict(path=str(Path(__file__).with_name("trace.csv"))),
  },
  "attack": {
    "sign_flip": dict(share=0.3, scale=0.5),
    "gaussian": dict(share=0.3, std=0.1),
    **{name: dict(share=0.3) for name in CONDITIONS["attack"] if name not in ("sign_flip", "gaussian")},
  },
  "system": {"trace": dict(path=str(Path(__file__).with_name("speeds.csv")))},
  "aggregation": {"gaussian": dict(clip=3.0, noise_multiplier=0.02, quantile=0.8)},
  "uploads": {"gaussian": dict(std=0.1), "top_k": dict(share=0.3), "random_k": dict(share=0.3)},
  "asynchronous": {"fedbuff": dict(buffer_size=3, concurrency=8), "fedasync": dict(concurrency=4)},
}
# A client part whose clients have states, beside conditions: it sends another field than its model, or not.
BESIDE = {("participation", "importance"): "ditto"}
OF_IMAGES = {("attack", "backdoor")}  # conditions that need examples with pixels
NETWORKS = {"fedcgan": cgan_mlp}  # of a method that trains a generator; else an autoencoder
NUM_CLIENTS = 12  # of the federations that these algorithms run on, where nobody says otherwise
# Whose form another one has too, so that `pytest --all` leaves their promises to `pytest --every`.
BY_HAND = {
  "fedspeed", "moon", "fedbn", "per_fedavg", "fedbabu", "fedrod", "fedlc", "fedrs", "fedntd", "mofedsam",
  "fedadmm", "fedem", "fedexp", "avgm", "participation: cyclic", "participation: trace", "uploads: clip",
  "uploads: gaussian", "uploads: random_k", "uploads: sign", "attack: sign_flip", "attack: gaussian",
  "attack: ipm", "attack: mimic", "attack: backdoor", "aggregation: median", "aggregation: trimmed_mean",
  "aggregation: geometric_median", "aggregation: gaussian", "participation: available",
  "participation: importance",
  "uploads: quantize", "uploads: top_k", "attack: label_flip", "attack: alie",
  "aggregation: centered_clipping", "fedcm", "feddc", "feddisco", "fedphp", "fedcp", "mimelite",
  "heurfedamp", "fedcac", "fedas", "pfedhn", "fd", "fedsmoo", "gpfl", "fedprox", "lg_fedavg", "superfed_lm",
  "sosicfl", "fedala", "feddbe", "fedfomo", "apple", "fml", "uniform", "qffl", "term", "propfair",
  "multi_krum", "yogi", "adagrad", "system: constant", "system: trace", "fedkd", "fedgen",
  "fedper", "sosicfl_all", "local", "norm_bound", "afl",
}  # fmt: skip
# One method of each form, with which `pytest --all` tests what all methods go through.
REPRESENTATIVE = {
  "fedavg", "scaffold", "apfl", "pfedme", "superfed_mm", "sosicfl_plus", "fedevg", "fedem", "aaggff_s",
  "adam",
}  # fmt: skip
EVERYBODY = ("aaggff_s", "cfl")  # whose cohorts are all clients


def cases() -> dict[str, tuple[str, str, str]]:
  """Each method's name -> the first (client, mixing, server) that has it; each of these once."""
  found: dict[str, tuple[str, str, str]] = {}
  composed = compositions()
  for place, table in enumerate(METHODS.values()):
    for name in table:
      having = [names for names in composed if names[place] == name]
      if having and having[0] not in found.values():
        found[name] = having[0]
  return found


def conditions() -> list[tuple[str, str]]:
  """(section, name) of every condition; leaving a section out is no case of its own."""
  found = [(section, name) for section, table in CONDITIONS.items() for name in table]
  plain = [
    (section, name) for section, name in UNLESS_CHOSEN.items() if name not in OF_CONDITIONS.get(section, {})
  ]
  return [one for one in found if one not in plain]


def beside(condition: tuple[str, str]) -> tuple[str, str, str]:
  """The method that a condition is tested with."""
  mixing = "uniform" if condition == ("aggregation", "gaussian") else "static"
  return BESIDE.get(condition, "scaffold"), mixing, "sgd"


def under(condition: tuple[str, str]) -> dict:
  """The argument of `federated` that a condition is."""
  section, name = condition
  part = CONDITIONS[section][name].make({"rounds": ROUNDS}, **OF_CONDITIONS.get(section, {}).get(name, {}))
  return {section: (part,) if section in SEVERAL else part}


def client(
  name: str, model: Model, rounds: int = ROUNDS, num_clients: int = NUM_CLIENTS, **offered
) -> ClientUpdate:
  """A client part: around `model`, or a generator of examples of its shape."""
  return client_of(name, model, rounds, {**OFFERED, **offered, **OWN.get(name, {})}, num_clients)


def client_of(
  name: str, model: Model, rounds: int, settings: dict, num_clients: int = NUM_CLIENTS
) -> ClientUpdate:
  """The same of its own settings alone, halfway through `rounds` where it changes course."""
  method = CLIENTS[name]
  if method.models is GENERATORS:
    model = NETWORKS.get(name, cvae_mlp)(model.shape, model.num_classes, latent=2, hidden=5)
  halfway = {own: rounds // 2 for own in method.shares.values()}
  counts = np.random.default_rng(0).integers(0, 20, (num_clients, 3)) + 1
  prepared = method.prepare({"endpoints": 3}, made_of(method, counts, model))
  made = method.make({"model": model, "rounds": rounds, **prepared, **halfway, **settings})
  return made._replace(
    needs=made.needs._replace(check_examples=None)
  )  # the federations' examples are no pixels


def made_of(method: Method, counts: np.ndarray, model: Model) -> np.ndarray:
  """What an argument of the method is made of."""
  if method.prepares and method.prepares.source == "public":
    return np.random.default_rng(0).normal(size=(20, *model.shape)).astype(np.float32)
  return counts


def algorithm(names: tuple[str, str, str], model: Model, rounds: int = ROUNDS, **offered) -> Algorithm:
  """The algorithm of these (client, mixing, server), `offered` settings among the client part's."""
  make, values = maker(names, model, rounds, **offered)
  return make(**values)


def maker(
  names: tuple[str, str, str], model: Model, rounds: int = ROUNDS, num_clients: int = NUM_CLIENTS,
  condition: tuple[str, str] | None = None, **offered,
):  # fmt: skip
  """What makes it of the numbers that a launched run's program takes as values, and these numbers."""
  more = under(condition) if condition else {}
  sections = {section: {"name": name, **OWN.get(name, {})} for section, name in zip(METHODS, names)}
  config = ConfigDict({**sections, "local": {**OFFERED, **offered}})

  def make(**values):
    own = with_values(config.to_dict(), values)
    local = client_of(names[0], model, rounds, {**own["local"], **own["algorithm"]}, num_clients)
    counts = np.random.default_rng(0).integers(0, 20, (num_clients, 3)) + 1
    mixing = MIXINGS[names[1]].make({**own["mixing"], **MIXINGS[names[1]].prepare({}, counts)})
    server = SERVERS[names[2]].make({"rounds": rounds, **own["server"]})
    mixing, server = (
      or_brought(local, "mixing", names[1], mixing),
      or_brought(local, "server", names[2], server),
    )
    return federated(local, mixing, server, **more)

  return make, numbers(config.to_dict())


def in_other_tests(name: str) -> list[pytest.MarkDecorator]:
  """Marks of a method in tests of something else that all methods go through."""
  return [pytest.mark.slow, *([] if name in REPRESENTATIVE else [pytest.mark.by_hand])]


def slow_or_by_hand(name: str) -> list[pytest.MarkDecorator]:
  """Marks of the promises of a method or a condition that is not tested by default."""
  return [pytest.mark.slow, *([pytest.mark.by_hand] if name in BY_HAND else [])]


def with_every(values: Iterable[Any], *tried: Any) -> list[Any]:
  """A test's parameters, of which those that are not `tried` wait for --every.

  A tuple holds the values of several parameters.
  """
  rows = [(own, own if isinstance(own, tuple) else (own,)) for own in values]
  return [pytest.param(*row, marks=() if own in tried else pytest.mark.by_hand) for own, row in rows]
