"""The methods by name: what the launcher, the tests, the device benchmark and the README's table read.

A new method is a file with its factory, and an entry here. What goes with what is asked of the parts: see
`compositions`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from fedjax_het import mixing, models, server
from fedjax_het.clients.apfl import apfl
from fedjax_het.clients.ditto import ditto
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.fedrep import fedrep
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.clients.lg_fedavg import lg_fedavg
from fedjax_het.clients.pfedme import pfedme
from fedjax_het.clients.regions import regions, regions_of_nothing
from fedjax_het.clients.scaffold import scaffold
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.sosicfl import sosicfl, sosicfl_all, sosicfl_plus
from fedjax_het.clients.superfed import superfed_lm, superfed_mm
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.models import GENERATORS, MODELS, Generative
from fedjax_het.settings import Setting, settings_of

# By a section's fields: what is given, is another method's name, or can be set from Python alone.
NOT_SETTABLE = ("model", "rounds", "optimizer", "name", "shares_body")


class Preparation(NamedTuple):
  """An argument of a factory that is made of all clients' label counts, before the part is made.

  Attributes:
    argument: its name.
    make: (counts [K, C] of the classes that each client trains on, seed=, **settings) -> it. All settings
      have defaults, and are the method's own in a configuration.
    without: (K, or None where it is not known yet, **settings) -> one that is made without counts, for asking
      the part what it is; it checks the settings.
  """

  argument: str
  make: Callable[..., Any]
  without: Callable[..., Any]

  @property
  def settings(self) -> dict[str, Setting]:
    """What a configuration may set, by name."""
    return {name: own for name, own in settings_of(self.make).items() if name not in ("counts", "seed")}

  def of(self, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a method's settings that are its."""
    return {name: value for name, value in settings.items() if name in self.settings}


class OwnEpochs(NamedTuple):
  """A setting that counts passes of a method's own: as many as `epochs` unless it is set.

  Attributes:
    before: how many earlier versions trained, in whose config.json the setting may be missing.
    unless_none: a setting that switches these passes off where it is None; "" for none.
  """

  before: int
  unless_none: str = ""


class Method(NamedTuple):
  """One method.

  Attributes:
    name: as configurations write it.
    factory: (**settings) -> the part. A client part's also takes the `model`, whose annotation, `Model` or
      `Generative`, says which kind it trains; a part may ask for the run's `rounds`. All else has a default.
    about: a line of description.
    source: where it was published.
    keeps: what is kept between rounds.
    shares: settings that a configuration gives as a share of the rounds -> the factory's own, in rounds.
    prepares: what a client part is given that is made of all clients' label counts; None for most.
    own_epochs: settings that count passes of the method's own, see `OwnEpochs`.
  """

  name: str
  factory: Callable[..., Any]
  about: str
  source: str
  keeps: str = "nothing"
  shares: Mapping[str, str] = {}
  prepares: Preparation | None = None
  own_epochs: Mapping[str, OwnEpochs] = MappingProxyType({})

  @property
  def given(self) -> tuple[str, ...]:
    """Parameters of the factory that no configuration sets."""
    return NOT_SETTABLE if self.prepares is None else (*NOT_SETTABLE, self.prepares.argument)

  @property
  def settings(self) -> dict[str, Setting]:
    """What a configuration may set, by name."""
    known = settings_of(self.factory)
    own = {name: setting for name, setting in known.items() if name not in self.given}
    return own if self.prepares is None else own | self.prepares.settings

  @property
  def models(self) -> Mapping[str, Callable[..., Any]]:
    """The models by name that a client part trains; none for a mixing or a server."""
    if (model := settings_of(self.factory).get("model")) is None:
      return {}
    names = (getattr(kind, "__name__", str(kind)) for kind in model.types)  # as text where unresolved
    return GENERATORS if any(name.endswith(Generative.__name__) for name in names) else MODELS

  def make(self, offered: Mapping[str, Any], **settings: Any) -> Any:
    """The part with all of `settings`, and with those of `offered` that its factory takes.

    What is to be prepared is among what is offered, see `prepared`, and its settings are not looked at.
    """
    known = settings_of(self.factory)
    used = self.prepares.of(settings) if self.prepares else {}
    own = {name: value for name, value in settings.items() if name not in used}
    return self.factory(**{name: value for name, value in offered.items() if name in known} | own)

  def prepared(self, counts: ArrayLike, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `make` is to be offered, made of the clients' label counts [K, C]; {} for most methods.

    Args:
      counts: examples of each class that each client trains on.
      seed: of what is drawn.
      settings: the method's; those of others are not looked at.
    """
    own = self.prepares
    return {} if own is None else {own.argument: own.make(counts, seed=seed, **own.of(settings))}

  def unprepared(self, num_clients: int | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same without counts, to ask the part what it is, after checking the settings."""
    own = self.prepares
    return {} if own is None else {own.argument: own.without(num_clients, **own.of(settings))}


def _by_name(*entries: Method) -> dict[str, Method]:
  return {entry.name: entry for entry in entries}


_FEDAVG, _THESIS = "McMahan et al., AISTATS 2017", "Hahn, dissertation, chapter IV"
_SUPERFED, _AAGGFF = "Hahn, Jeong, Lee, KDD 2022", "Hahn, Kim, Lee, ICML 2024"
_FEDOPT, _FROM_L = "Reddi et al., ICLR 2021", {"start": "start_round"}
_SOSICFL, _REGIONS = "arXiv:2403.03333, 2024", Preparation("regions", regions, regions_of_nothing)

CLIENTS = _by_name(
  Method("fedavg", fedavg, "local SGD from the received model", _FEDAVG),
  Method("fedprox", fedprox, "FedAvg with a proximity term to the received model", "Li et al., MLSys 2020"),
  Method("scaffold", scaffold, "local SGD along gradients corrected by control variates",
         "Karimireddy et al., ICML 2020", "a client's control variate"),
  Method("lg_fedavg", lg_fedavg, "a shared head, and a body of each client's own",
         "Liang et al., 2020", "a client's body"),
  Method("fedper", fedper, "a shared body, and a head of each client's own",
         "Arivazhagan et al., 2019", "a client's head"),
  Method("fedrep", fedrep, "FedPer, whose head is trained before the body",
         "Collins et al., ICML 2021", "a client's head", own_epochs={"body_epochs": OwnEpochs(5)}),
  Method("apfl", apfl, "a mixture of the federated and a local model", "Deng et al., 2020",
         "a client's local model and mixture"),
  Method("pfedme", pfedme, "personal models by Moreau envelopes", "Dinh et al., NeurIPS 2020",
         "a client's own model"),
  Method("ditto", ditto, "FedAvg, and a personal model kept near to it", "Li et al., ICML 2021",
         "a client's own model", own_epochs={"local_epochs": OwnEpochs(5)}),
  Method("superfed_mm", superfed_mm, "a federated and a local model joined by a line of models, one λ a step",
         _SUPERFED, "a client's local model", _FROM_L),
  Method("superfed_lm", superfed_lm, "superfed_mm with one λ for each layer",
         _SUPERFED, "a client's local model", _FROM_L),
  Method("sosicfl", sosicfl, "a simplex of heads, of which each client trains a region",
         _SOSICFL, "a client's region", _FROM_L, _REGIONS),
  Method("sosicfl_all", sosicfl_all, "sosicfl with a simplex of all layers",
         _SOSICFL, "a client's region", _FROM_L, _REGIONS),
  Method("sosicfl_plus", sosicfl_plus, "sosicfl, and a simplex of each client's own",
         _SOSICFL, "a client's region and simplex", _FROM_L, _REGIONS,
         {"local_epochs": OwnEpochs(10, "lam")}),
  Method("fedevg", fedevg, "energies of a shared synthetic set; models stay at home",
         _THESIS, "nothing, or a classifier (`persistent`)"),
  Method("fedcvae", fedcvae, "a conditional variational autoencoder, averaged", _THESIS),
  Method("fedcgan", fedcgan, "a conditional adversarial pair, averaged", _THESIS),
)  # fmt: skip
MIXINGS = _by_name(
  Method("static", mixing.static, "p_i = n_i / n", _FEDAVG),
  Method("uniform", mixing.uniform, "p_i = 1 / S", _FEDAVG),
  Method("afl", mixing.afl, "projected ascent on p", "Mohri, Sivek, Suresh, ICML 2019", "p, K numbers"),
  Method("qffl", mixing.qffl, "p_i ∝ n_i F_i^q", "Li et al., ICLR 2020"),
  Method("term", mixing.term, "p_i ∝ n_i exp(λ F_i)", "Li et al., ICLR 2021"),
  Method("fedmgda", mixing.fedmgda, "the common direction of descent nearest to static mixing",
         "Hu et al., IEEE TNSE 2022"),
  Method("propfair", mixing.propfair, "p_i ∝ n_i / (M - F_i)", "Zhang et al., TMLR 2023"),
  Method("aaggff_s", mixing.aaggff_s, "online Newton step on p, with all clients in every round",
         _AAGGFF, "p and K x K sums"),
  Method("aaggff_d", mixing.aaggff_d, "exponentiated gradient on p, for cohorts of millions of clients",
         _AAGGFF, "p and K sums"),
)  # fmt: skip
SERVERS = _by_name(
  Method("sgd", server.sgd, "a step of gradient descent; with lr = 1 to the average", _FEDAVG),
  Method("adam", server.adam, "FedAdam", _FEDOPT, "two moments"),
  Method("yogi", server.yogi, "FedYogi", _FEDOPT, "two moments"),
  Method("adagrad", server.adagrad, "FedAdagrad", _FEDOPT, "two moments"),
  Method("sgld", server.sgld, "a Langevin step on the synthetic set", _THESIS, "a count"),
  Method(
    "particles",
    server.particles,
    "sgld's step with repulsion within a class",
    "after Liu and Wang, NeurIPS 2016",
    "labels",
  ),
)
METHODS = {"algorithm": CLIENTS, "mixing": MIXINGS, "server": SERVERS}  # section of a configuration -> its


def small_model(client: Method) -> Any:
  """One of the models that a client part trains, of images of next to no size."""
  return models.make("logistic_regression" if client.models is MODELS else "cvae_mlp", (2, 2, 1), 3)


def bare(method: Method) -> Any:
  """A method's part at its defaults, around a small model: enough to ask it what it is."""
  offered = {"rounds": 1} | method.unprepared(None, {})
  return method.make(offered | ({"model": small_model(method)} if method.models else {}))


def asked(method: Method) -> tuple[Any, str]:
  """A method's part as `bare` makes it, and ""; or None, and why its factory does not make it."""
  try:
    return bare(method), ""
  except Exception as error:  # of a user's own factory: whatever it raises
    return None, f"{type(error).__name__}: {error}"


def compositions() -> list[tuple[str, str, str]]:
  """The names (client, mixing, server) of all algorithms that `federated` composes.

  A part that its factory does not make around a small model is left out, as it cannot be asked.
  """
  parts = [
    {name: part for name, method in table.items() if (part := asked(method)[0]) is not None}
    for table in METHODS.values()
  ]
  clients, mixings, servers = (part.items() for part in parts)
  found = []
  for client, c in clients:
    for mix, m in mixings:
      for move, s in servers:
        try:
          federated(c, m, s)
        except (SettingError, AttributeError, TypeError):  # others: something that is no part
          continue
        found.append((client, mix, move))
  return found


def partners(section: str, name: str) -> dict[str, list[str]]:
  """For each other section the methods that some algorithm has beside this one, in the table's order."""
  sections = list(METHODS)
  own = sections.index(section)
  having = [names for names in compositions() if names[own] == name]
  return {
    other: [each for each in table if any(names[sections.index(other)] == each for names in having)]
    for other, table in METHODS.items()
    if other != section
  }
