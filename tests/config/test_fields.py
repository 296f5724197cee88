"""`--describe`: every field of every configuration, its meaning, type and default."""

import importlib.util
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from fedjax_het.config import fields as module
from fedjax_het.config.fields import fields, print_fields
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.sections import sections as known
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS
from fedjax_het.settings import settings_of

CONFIGS = Path(__file__).parents[2] / "configs"


def configuration(name: str) -> ConfigDict:
  spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
  found = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(found)
  return found.get_config()


def leaves(config: ConfigDict) -> set[str]:
  """Every field that a configuration sets."""
  flat = {}
  for name, value in config.to_dict().items():
    flat |= (
      {f"{name}.{own}": each for own, each in value.items()} if isinstance(value, dict) else {name: value}
    )
  return {*flat}


SHIPPED = sorted(path.stem for path in CONFIGS.glob("*.py"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_field_of_a_shipped_configuration_is_explained(name):
  config = configuration(name)
  found = {field.path: field for field in fields(config.to_dict())}
  assert leaves(config) <= {*found}
  assert not [path for path, field in found.items() if not field.about]
  flat = config.to_dict()
  for path in leaves(config):
    section, _, own = path.partition(".")
    assert found[path].value == (flat[section][own] if own else flat[section])


@pytest.mark.parametrize("algorithm", [name for name, own in CLIENTS.items() if "two_nn" in own.models])
def test_every_method_s_fields_are_explained(algorithm):
  config = get_config(f"algorithm={algorithm}").to_dict()
  found = fields(config)
  assert all(field.about for field in found) and len({field.path for field in found}) == len(found)
  settings = {
    field.path.partition(".")[2] for field in found if field.path.startswith(("algorithm.", "local."))
  }
  assert settings == {"name", *CLIENTS[algorithm].settings, *CLIENTS[algorithm].shares}


def test_no_field_is_missing():
  """All that a configuration may have is there, also what the quickstart leaves out."""
  sections = {field.path.partition(".")[0] for field in fields(get_config().to_dict())}
  assert sections == {*known()}


def test_types_and_defaults(capsys):
  config = get_config().to_dict()
  found = {field.path: field for field in fields(config)}
  lr = "local learning rate η > 0 in round 0."
  assert found["local.lr"] == ("local.lr", lr, "float", 0.01, 0.05)
  assert found["algorithm.start_round"].value is module.NO_DEFAULT
  assert found["model.layers"].kind == "int" and found["eval_every"].kind == "int or None"
  assert found["partition.alpha"].default is module.NO_DEFAULT
  print_fields(config, "local.lr")
  assert capsys.readouterr().out == f"local.lr = 0.05  float, by default 0.01\n    {lr}\n"
  print_fields(config, "unseen")
  out = capsys.readouterr().out
  assert "unseen.fraction  float\n" in out and "rounds" not in out.replace("unseen", "")
  print_fields(config)
  out = capsys.readouterr().out
  assert out.index("dataset =") < out.index("rounds = 100  int\n") and "\x1b" not in out
  assert "data_dir = ''  str or PathLike or None, by default None\n" in out


def test_sections_of_a_configuration_of_one_s_own():
  config = get_config().to_dict()
  config["task"], config["label_noise"] = {"class_weights": "balanced"}, {"name": "pair", "ratio": 0.4}
  config["mixing"], config["model"] = {"name": "qffl"}, {"name": "minilm"}
  found = {field.path: field for field in fields(config)}
  assert found["task.class_weights"].value == "balanced" and found["label_noise.ratio"].value == 0.4
  assert found["mixing.q"].default == 1.0 and found["mixing.q"].value is module.NO_DEFAULT
  assert found["model.heads"].about and {"mean", "std", "weights"} <= {
    path.partition(".")[2] for path in found if path.startswith("model.")
  }


@pytest.mark.parametrize(
  "change, text",
  [
    ({"roundz": 3}, "Did you mean 'rounds'"),
    ({"local": {"lrr": 3}}, r"local\.lrr.*Did you mean 'local\.lr'|algorithm\.lr"),
    ({"model": {"name": "two_n"}}, r"model\.name = 'two_n': unknown\. Did you mean 'two_nn'"),
  ],
)
def test_what_nobody_knows(change, text):
  with pytest.raises(SettingError, match=text):
    fields({**get_config().to_dict(), **change})


def test_an_unknown_field_is_refused():
  with pytest.raises(SettingError, match=r"describe = 'local\.lrr': unknown\. Did you mean 'local\.lr'"):
    print_fields(get_config().to_dict(), "local.lrr")


def test_kinds():
  def factory(a: int | None, b: "float", c: list[int], d, e: dict | float = 1.0):
    pass

  kinds = [own.kind for own in settings_of(factory).values()]
  assert kinds == ["int or None", "float", "list", "", "dict or float"]


def test_the_page_of_a_first_run_names_every_section():
  page = (Path(__file__).parents[2] / "docs" / "first_run.md").read_text()
  assert [name for name in known() if f"`{name}`" not in page] == []
