"""The table of methods: entries agree with the parts they make, and composition is asked of the parts."""

import inspect
import itertools

import pytest
from cases import cases
from small_parts import mlp

import fedjax_het as fh
from fedjax_het.config.algorithm import build_algorithm
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.methods import CLIENTS, METHODS, TABLES, Method, asked, bare, compositions, partners

ENTRIES = [(section, name) for section, table in TABLES.items() for name in table if name != "trace"]


@pytest.mark.parametrize("section, name", ENTRIES, ids=[name for _, name in ENTRIES])
def test_an_entry_is_what_it_makes(section, name):
  method = TABLES[section][name]
  part = bare(method)
  kinds = {"algorithm": fh.ClientUpdate, "mixing": fh.Mixing, "server": fh.ServerUpdate,
           "aggregation": fh.Aggregation, "participation": fh.Participation,
           "uploads": fh.Upload, "attack": fh.Attack, "system": fh.System,
           "asynchronous": fh.Asynchronous}  # fmt: skip
  assert isinstance(part, kinds[section]) and part.name == method.name == name
  assert {*method.shares.values()} <= {*method.settings} and not {*method.shares} & {*method.settings}
  assert all(setting.default is not inspect.Parameter.empty for setting in method.settings.values())


def test_what_goes_with_what():
  """As the parts say: FedEvg uploads signals, two servers take them, four mixings scale updates.

  Robust mixings do not protect plain averages (`even`), which SCAFFOLD sends. FedNova has to know how the
  steps of a client part add up.
  """
  everything = compositions()
  bringing = {name for name, own in CLIENTS.items() if (part := asked(own)[0]) and part.needs.brings}
  found = [names for names in everything if names[0] not in bringing]
  robust, scaling = {"krum", "multi_krum", "norm_bound"}, {"fedmgda", "norm_bound", "fednova", "fedexp"}
  clients = [name for name in METHODS["algorithm"] if name not in {*bringing, "fedevg"}]
  servers = [name for name in METHODS["server"] if name not in ("sgld", "particles")]
  refused = {*itertools.product(clients, METHODS["mixing"], servers)} - {*found}
  assert {names[1] for names in refused} == robust | {"fednova"}
  assert {names[0] for names in refused if names[1] == "fednova"} == {
    name for name in clients if not ((own := bare(CLIENTS[name]).training) and own.counted)
  }
  of_fedevg = [names for names in found if names[0] == "fedevg"]
  assert len(of_fedevg) == 2 * (len(METHODS["mixing"]) - len(scaling))
  assert "scaffold" not in {names[0] for names in found if names[1] in robust}
  assert {names[2] for names in found if names[0] == "fedevg"} == {"sgld", "particles"}
  for name in ("sgld", "particles"):
    assert partners("server", name) == {
      "algorithm": ["fedevg"], "mixing": [name for name in METHODS["mixing"] if name not in scaling],
    }  # fmt: skip
  assert "fedevg" not in partners("mixing", "fedmgda")["algorithm"]


def test_the_kind_of_model_is_the_factory_s_own_word():
  assert CLIENTS["fedcgan"].models is fh.models.GENERATORS
  assert CLIENTS["superfed_lm"].models is fh.models.MODELS
  assert METHODS["mixing"]["qffl"].models == {}


@pytest.mark.parametrize(
  "variant, origin, fixed",
  [("fedavg", "fedprox", {"mu", "name"}), ("superfed_lm", "superfed", {"granularity"}),
   ("fedcvae", "generative", {"name"})],
)  # fmt: skip
def test_a_variant_is_signed_with_what_it_does_not_fix(variant, origin, fixed):
  factory = CLIENTS[variant].factory
  known, all_known = (inspect.signature(each).parameters for each in (factory, inspect.unwrap(factory)))
  assert inspect.unwrap(factory).__name__ == origin and factory.__name__ == variant
  assert {*all_known} - {*known} == fixed and {*known} <= {*all_known}


def test_a_part_is_offered_only_what_it_takes():
  offered = {"rounds": 7, "lr": 0.5, "epochs": 3}
  METHODS["mixing"]["static"].make(offered)
  part = METHODS["server"]["sgld"].make(offered, noise=0.0)
  with pytest.raises(fh.SettingError, match=r"rounds = 7"):
    part.needs.check_rounds(8)
  with pytest.raises(fh.SettingError, match="lr = -1"):
    METHODS["mixing"]["afl"].make(offered, lr=-1)  # a setting of its own counts more than an offer


def test_the_quickstart_takes_every_method_that_trains_its_model():
  refused = {  # whose server is another, and which has all clients in every round
    "fedevg": "server = 'sgd'.*fedevg uploads.*such as sgld", "cfl": "cohort_size = 5: cfl needs all 20",
  }  # fmt: skip
  fitting = [name for name, method in CLIENTS.items() if "two_nn" in method.models]
  assert {"fedavg", "superfed_lm"} < {*fitting} < {*CLIENTS}
  for name in {*fitting} - {*refused}:
    plan(get_config(f"algorithm={name}"))
  for name, words in refused.items():
    with pytest.raises(fh.SettingError, match=words):
      plan(get_config(f"algorithm={name}"))
  for name in {*CLIENTS, "superfed"} - {*fitting}:
    with pytest.raises(fh.SettingError, match=rf"algorithm = '{name}': unknown"):
      get_config(f"algorithm={name}")


def test_the_quickstart_sets_what_a_method_has(monkeypatch):
  def plain(model: fh.Model, *, lr: float = 0.1, epochs: int = 1) -> fh.ClientUpdate:
    return fh.fedavg(model, lr=lr, epochs=epochs)

  monkeypatch.setitem(CLIENTS, "plain", Method("plain", plain, "with few settings", "nobody"))
  config = get_config("algorithm=plain")
  plan(config)
  assert config.local.to_dict() == {"lr": 0.05, "epochs": 5}


def test_a_new_entry_is_launched_and_tested_like_all(monkeypatch):
  made = []

  def late(model: fh.Model, *, start_round: int = 0, epochs: int = 1) -> fh.ClientUpdate:
    made.append((start_round, epochs))
    return fh.fedavg(model)._replace(name="late")

  entry = Method("late", late, "a new one", "nobody", shares={"wait": "start_round"})
  monkeypatch.setitem(CLIENTS, "late", entry)
  assert cases()["late"] == ("late", "static", "sgd")
  config = get_config()
  config.algorithm, config.local = {"name": "late", "wait": 0.5}, {"epochs": 3}
  config.rounds = 9
  plan(config)
  assert build_algorithm(plan(config), mlp()).client.name == "late" and made[-1] == (4, 3)
  config.local.lr = 0.1
  with pytest.raises(
    fh.SettingError, match=r"local\.lr = 0\.1: unknown to late.*start_round, wait\. Settings"
  ):
    plan(config)


def test_every_client_part_is_reached_from_the_library():
  for name, method in CLIENTS.items():
    assert getattr(fh, "local_only" if name == "local" else name) is method.factory
  with pytest.raises(AttributeError, match="no attribute 'fedavgg'"):
    _ = fh.fedavgg
