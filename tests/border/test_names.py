"""Names as papers write them, and parts of a user's own that break when they are asked what they are."""

import functools

import pytest

from fedjax_het import data, models
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.config import fields, listing
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.sections import sections
from fedjax_het.data.partition import PARTITIONERS
from fedjax_het.errors import SettingError, check_choice, folder_of, near
from fedjax_het.methods import METHODS, Method, compositions
from fedjax_het.settings import settings_of
from fedjax_het.tasks import TASKS

KINDS = {
  **METHODS, "dataset": data.names(), "model": [*models.MODELS, *models.GENERATORS],
  "partition": PARTITIONERS, "field": [*sections()], "task": TASKS, "setting": settings_of(LocalSettings),
}  # fmt: skip
WRITTEN = {
  "algorithm": {
    "FedAvg": "fedavg", "FedSGD": "fedavg", "local SGD": "fedavg", "SCAFFOLD": "scaffold",
    "FedProx": "fedprox", "LG-FedAvg": "lg_fedavg", "APFL": "apfl", "pFedMe": "pfedme", "Ditto": "ditto",
    "SuPerFed-MM": "superfed_mm", "SuPerFed": "superfed_mm", "SosicFL+": "sosicfl_plus",
    "FedEVG": "fedevg", "FedCVAE": "fedcvae",
  },
  "mixing": {
    "AFL": "afl", "q-FFL": "qffl", "q-FedAvg": "qffl", "FedMGDA+": "fedmgda", "AAggFF-D": "aaggff_d",
    "AAggFF": "aaggff_d", "TERM": "term", "PropFair": "propfair", "Uniform": "uniform",
  },
  "server": {"FedAdam": "adam", "FedYogi": "yogi", "FedAdagrad": "adagrad", "SGLD": "sgld",
    "SVGD": "particles"},
  "dataset": {
    "MNIST": "mnist", "CIFAR10": "cifar10", "CIFAR-100": "cifar100", "Fashion-MNIST": "fashion_mnist",
    "Tiny-ImageNet": "tiny_imagenet", "TinyImageNet": "tiny_imagenet", "FEMNIST": "femnist",
    "CelebA": "celeba",
    "Speech Commands": "speech_commands", "HAM-10000": "ham10000", "ISIC-2019": "isic2019", "digit": "digits",
    "FSDD": "fsdd",
  },
  "model": {
    "ResNet-18": "resnet18", "ResNet18": "resnet18", "VGG-11": "vgg11", "MobileNetV2": "mobilenet_v2",
    "SqueezeNet": "squeezenet", "EfficientNet-B0": "efficientnet_b0", "2NN": "two_nn", "MLP": "two_nn",
    "BERT": "bert", "DistilBERT": "distilbert", "M5": "m5", "TwoCNN": "two_cnn",
  },
  "partition": {"IID": "iid", "Dirichlet": "dirichlet", "Dir": "dirichlet", "non-IID": "dirichlet"},
  "field": {"Rounds": "rounds", "numClients": "num_clients", "num-clients": "num_clients"},
  "setting": {"learning_rate": "lr", "num_epochs": "epochs"},
  "task": {"Multi-Label": "multilabel", "Regression": "regression"},
}  # fmt: skip


@pytest.mark.parametrize(
  ("kind", "written", "meant"), [(kind, *pair) for kind, pairs in WRITTEN.items() for pair in pairs.items()]
)
def test_a_name_as_papers_write_it_is_the_hint(kind, written, meant):
  if meant in KINDS[kind]:
    assert near(written, KINDS[kind]).startswith(f"Did you mean {meant!r}? Known: ")
  assert meant in KINDS[kind] or kind == "task"


def test_a_hint_is_the_nearest_of_names_that_are_spelled_alike():
  assert near("fedpr", ["FedPer", "fedper"]).startswith("Did you mean 'fedper'?")
  assert near("FEDPER", ["FedPer", "fedavg"]).startswith("Did you mean 'FedPer'?")
  assert near("zzz", ["a", "b"]) == "Known: a, b." and near(None, []) == "Known: ."
  with pytest.raises(SettingError, match=r"x = 'FedAvg': unknown\. Did you mean 'fedavg'\? Known: "):
    check_choice("x", "FedAvg", METHODS["algorithm"])


def test_a_home_folder_that_is_not_known(monkeypatch):
  assert str(folder_of("workdir", "runs/a")) == "runs/a"
  with pytest.raises(SettingError, match=r"workdir = '~nobody_of_that_name/a': names a home folder"):
    folder_of("workdir", "~nobody_of_that_name/a")


def refusing(model, *, rate: float = 0.1):
  """A method for large images.

  Args:
    model: which.
    rate: a rate.
  """
  raise RuntimeError("images of 32 x 32 pixels at least")


def unresolved(model: "NoSuchName"):  # noqa: F821
  """A method whose annotation cannot be resolved."""


def no_part(model):
  """A method whose factory forgets to return its part."""


@pytest.mark.slow
@pytest.mark.parametrize(
  ("section", "factory", "note"),
  [
    ("algorithm", refusing, "RuntimeError: images of 32 x 32"),
    ("algorithm", unresolved, None),
    ("algorithm", no_part, None),
    ("algorithm", functools.partial(refusing, rate=0.2), "RuntimeError"),
    ("mixing", lambda: 1 / 0, "ZeroDivisionError"),
    ("server", lambda: (_ for _ in ()).throw(OSError("no disk")), "OSError: no disk"),
  ],
)
def test_a_factory_that_breaks_is_listed_with_a_note(section, factory, note, monkeypatch, capsys):
  known, everything = compositions(), listing.goes_with("mixing", "afl")
  monkeypatch.setitem(METHODS[section], "own", Method("own", factory, "of my own", "mine"))
  assert compositions() == known and listing.goes_with("mixing", "afl") == everything
  listing.print_list("own")
  listing.print_list("two_nn")
  found = next(own for own in listing.entries()[f"{section}.name"] if own.name == "own")
  facts = found.facts()
  assert (note in facts["note"]) if note else facts["with"] in ("", "any", "mixing: ; server: ")
  fields.print_fields(get_config().to_dict(), "rounds")
  out = capsys.readouterr().out
  assert "of my own" in out and (not note or "not known" in " ".join(out.split()))


@pytest.mark.slow
def test_the_whole_list_has_the_note(monkeypatch, capsys):
  monkeypatch.setitem(METHODS["algorithm"], "own", Method("own", refusing, "of my own", "mine"))
  listing.print_list()
  out = capsys.readouterr().out
  assert "note its factory does not make it" in " ".join(out.split()) and "resnet18" in out
