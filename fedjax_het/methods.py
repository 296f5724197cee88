"""Tables of the methods by name; `compositions` lists the combinations that the parts allow.

A new method is a file with its factory, and an entry in a table.
"""

import contextlib
import functools
from typing import Any

from fedjax_het import mixing, models, server
from fedjax_het.baselines import BASELINES
from fedjax_het.clients.apfl import apfl
from fedjax_het.clients.ditto import ditto
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.fedrep import fedrep
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.clients.lg_fedavg import lg_fedavg
from fedjax_het.clients.pfedme import pfedme
from fedjax_het.clients.regions import counts_released, regions, regions_of_nothing
from fedjax_het.clients.scaffold import scaffold
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.sosicfl import sosicfl, sosicfl_all, sosicfl_plus
from fedjax_het.clients.superfed import superfed_lm, superfed_mm
from fedjax_het.conditions import CONDITIONS, SEVERAL
from fedjax_het.entries import LABEL_COUNTS as LABEL_COUNTS
from fedjax_het.entries import SIZES as SIZES
from fedjax_het.entries import Method, OwnEpochs, Preparation, by_name
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.models import MODELS
from fedjax_het.parts import ClientUpdate

_FEDAVG, _THESIS = "McMahan et al., AISTATS 2017", "Hahn, dissertation, chapter IV"
_SUPERFED, _AAGGFF = "Hahn, Jeong, Lee, KDD 2022", "Hahn, Kim, Lee, ICML 2024"
_KRUM = "Blanchard et al., NeurIPS 2017"
_FEDOPT, _FROM_L = "Reddi et al., ICLR 2021", {"start": "start_round"}
_SOSICFL = "arXiv:2403.03333, 2024"
_REGIONS = Preparation("regions", regions, regions_of_nothing, release=counts_released)

CLIENTS = by_name(
  Method("fedavg", fedavg, "local SGD from the received model", _FEDAVG),
  Method("fedprox", fedprox, "FedAvg with a proximal term to the received model", "Li et al., MLSys 2020"),
  Method("scaffold", scaffold, "local SGD along gradients corrected by control variates",
         "Karimireddy et al., ICML 2020", "a client's control variate"),
  Method("lg_fedavg", lg_fedavg, "a shared head, and a body of each client's own",
         "Liang et al., 2020", "a client's body"),
  Method("fedper", fedper, "a shared body, and a head of each client's own",
         "Arivazhagan et al., 2019", "a client's head", python_only=("shares_body",)),
  Method("fedrep", fedrep, "FedPer, whose head is trained before the body",
         "Collins et al., ICML 2021", "a client's head", own_epochs={"body_epochs": OwnEpochs(5)}),
  Method("apfl", apfl, "a mixture of the federated and a local model", "Deng et al., 2020",
         "a client's local model and mixture"),
  Method("pfedme", pfedme, "personalised models by Moreau envelopes", "Dinh et al., NeurIPS 2020",
         "a client's own model"),
  Method("ditto", ditto, "FedAvg, and a personalised model regularised to it", "Li et al., ICML 2021",
         "a client's own model", own_epochs={"local_epochs": OwnEpochs(5)}),
  Method("superfed_mm", superfed_mm, "federated and local model joined by a line of models, one λ per step",
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
  *BASELINES,
  Method("fedevg", fedevg, "energies of a shared synthetic set; models are not sent",
         _THESIS, "nothing, or a classifier (`persistent`)"),
  Method("fedcvae", fedcvae, "a conditional variational autoencoder, averaged", _THESIS),
  Method("fedcgan", fedcgan, "a conditional adversarial pair, averaged", _THESIS),
)  # fmt: skip
MIXINGS = by_name(
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
  Method("aaggff_d", mixing.aaggff_d, "exponentiated gradient on p, for cohorts out of millions of clients",
         _AAGGFF, "p and K sums"),
  Method("fednova", mixing.fednova, "updates divided by how much their steps count",
         "Wang et al., NeurIPS 2020"),
  Method("fedexp", mixing.fedexp, "longer server steps where updates point apart",
         "Jhunjhunwala, Wang, Joshi, ICLR 2023"),
  Method("feddisco", mixing.feddisco, "p_i ∝ n_i / n - a d_i + b, d_i the skew of the labels",
         "Ye et al., ICML 2023", prepares=LABEL_COUNTS),
  Method("krum", mixing.krum, "the one upload nearest to its neighbours", _KRUM),
  Method("multi_krum", mixing.multi_krum, "the mean of the uploads nearest to their neighbours", _KRUM),
  Method("norm_bound", mixing.norm_bound, "static mixing of updates up to a length", "Sun et al., 2019"),
)  # fmt: skip
SERVERS = by_name(
  Method("sgd", server.sgd, "a gradient step on the pseudo-gradient; lr = 1 gives the average", _FEDAVG),
  Method("avgm", server.avgm, "server momentum", "Hsu, Qi, Brown, 2019", "a momentum"),
  Method("adam", server.adam, "FedAdam", _FEDOPT, "two moments"),
  Method("yogi", server.yogi, "FedYogi", _FEDOPT, "two moments"),
  Method("adagrad", server.adagrad, "FedAdagrad", _FEDOPT, "two moments"),
  Method("sgld", server.sgld, "a Langevin step on the synthetic set", _THESIS, "a step count"),
  Method(
    "particles",
    server.particles,
    "sgld's step with repulsion within a class",
    "after Liu and Wang, NeurIPS 2016",
    "labels",
  ),
)
METHODS = {"algorithm": CLIENTS, "mixing": MIXINGS, "server": SERVERS}  # section -> methods
TABLES = METHODS | CONDITIONS
DEFAULTS = {"mixing": "static", "server": "sgd"}  # which a client part's own ones replace, see `Needs.brings`


def or_brought(client: ClientUpdate, section: str, name: str, part: Any) -> Any:
  """Returns the part that a client part brings in the place of a section's default one, else `part`."""
  return client.needs.brings.get(section, part) if name == DEFAULTS[section] else part


def small_model(client: Method) -> Any:
  """Returns a model that a client part trains, for images of 2 x 2 pixels and three classes."""
  return models.make("logistic_regression" if client.models is MODELS else "cvae_mlp", (2, 2, 1), 3)


def bare(method: Method) -> Any:
  """Returns a method's part at its defaults, around a small model, so that its properties can be read."""
  offered = {"rounds": 1} | method.prepare({})
  return method.make(offered | ({"model": small_model(method)} if method.models else {}))


class _Same:
  """A method as the key of a cache, which is equal to itself alone; some fields of methods have no hash."""

  def __init__(self, method: Method):
    self.method = method

  def __hash__(self) -> int:
    return id(self.method)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Same) and self.method is other.method


def asked(method: Method) -> tuple[Any, str]:
  """Returns a method's part as `bare` makes it and ""; or None and the reason why its factory fails."""
  return _asked(_Same(method))


@functools.lru_cache(maxsize=256)  # a listing asks each method once for every other one
def _asked(own: _Same) -> tuple[Any, str]:
  try:
    return bare(own.method), ""
  except Exception as error:  # a user's factory may raise anything
    return None, f"{type(error).__name__}: {error}"


def compositions() -> list[tuple[str, str, str]]:
  """Returns the names (client, mixing, server) of all algorithms that `federated` composes.

  A part whose factory fails with a small model is left out, as it cannot be asked.
  """
  tables = tuple(tuple((name, _Same(own)) for name, own in table.items()) for table in METHODS.values())
  return [*_composed(tables)]


@functools.lru_cache(maxsize=2)  # each of the thousands of combinations is tried; tables rarely change
def _composed(tables: tuple[tuple[tuple[str, _Same], ...], ...]) -> list[tuple[str, str, str]]:
  parts = [{name: part for name, own in table if (part := _asked(own)[0]) is not None} for table in tables]
  clients, mixings, servers = (part.items() for part in parts)
  found = []
  for client, c in clients:
    for mix, m in mixings:
      for move, s in servers:
        try:
          federated(c, or_brought(c, "mixing", mix, m), or_brought(c, "server", move, s))
        except (SettingError, AttributeError, TypeError):  # the latter two: something that is not a part
          continue
        found.append((client, mix, move))
  return found


def partners(section: str, name: str) -> dict[str, list[str]]:
  """Returns for each other section the methods that can be composed with this one, in the table's order.

  A part of `CONDITIONS` is tried with each client part, see `_composed_with`.
  """
  sections = list(METHODS)
  if section not in METHODS:
    return _composed_with(section, bare(TABLES[section][name]))
  own = sections.index(section)
  having = [names for names in compositions() if names[own] == name]
  return {
    other: [each for each in table if any(names[sections.index(other)] == each for names in having)]
    for other, table in METHODS.items()
    if other != section
  }


def _composed_with(section: str, part: Any) -> dict[str, list[str]]:
  """Returns the client parts that `federated` composes with a part of a section of `CONDITIONS`.

  A client part is tried with its own or the default mixing, then with the others; if some need one of these,
  the mixings that go with the first of them are returned, too.
  """
  condition: dict[str, Any] = {section: (part,) if section in SEVERAL else part}
  clients, mixings, servers = (
    {name: own for name, method in table.items() if (own := asked(method)[0]) is not None}
    for table in (CLIENTS, MIXINGS, SERVERS)
  )

  def composed(client: str, mix: str | None) -> bool:
    own = clients[client]
    mixing = None if mix is None else or_brought(own, "mixing", mix, mixings[mix])
    for move, last in servers.items():
      with contextlib.suppress(SettingError, AttributeError, TypeError):  # as in `compositions`
        federated(own, mixing, or_brought(own, "server", move, last), **condition)
        return True
    return False

  alone = [client for client in clients if composed(client, None)]
  others = {client for client in clients if client not in alone and any(composed(client, m) for m in mixings)}
  found = {"algorithm": [client for client in clients if client in {*alone, *others}]}
  if first := next((client for client in clients if client in others), None):
    found["mixing"] = [mix for mix in mixings if composed(first, mix)]
  return found
