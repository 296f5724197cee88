"""A setting is declared once: calls from Python and configurations are checked and explained by it alike."""

import inspect
import pydoc
from typing import Annotated, Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import client_of
from small_parts import mlp

import fedjax_het as fh
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.variant import variant_of
from fedjax_het.config.known import check_method
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.config.sections import sections
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS, TABLES, Method
from fedjax_het.models import GENERATORS, MODELS
from fedjax_het.settings import Choice, Count, Default, Positive, Range, Whole, checked, settings_of

ENTRIES = [(section, name) for section, table in TABLES.items() for name in table]


@pytest.mark.parametrize("section, name", ENTRIES, ids=[name for _, name in ENTRIES])
def test_every_setting_is_declared_with_its_range_and_its_meaning(section, name):
  for setting in TABLES[section][name].settings.values():
    assert setting.about and setting.types, setting.name
    assert setting.rules or not {*setting.types} & {int, float}, f"{setting.name} has no range"


def test_every_number_of_a_model_has_a_range():
  found = {
    f"{name}.{own.name}"
    for name, factory in (MODELS | GENERATORS).items()
    for own in settings_of(factory).values()
    if {*own.types} & {int, float} and not own.rules and own.name != "num_classes"
  }
  assert not found - {"squeezenet.version"}  # a string, which YAML may have read as a number


FREE = {  # section -> settings with a value that they take although it is bad for others
  "mixing": (("lam", -2.5), ("baseline", -2.5)), "uploads": (("norm", np.inf),), "attack": (("value", -2.5),),
  "system": (("deadline", np.inf),), "aggregation": (("clip", np.inf),),
}  # fmt: skip


def bad_values(setting) -> list[Any]:
  if {*setting.types} & {int, float}:
    return ["x", -2.5, True, np.inf] if setting.name != "start_round" else ["x", -2.5, True]
  return [3] if bool in setting.types else ["no_such_name"] if setting.rules else []


def said(call) -> str:
  """What an error says behind the setting's name: its value, the problem and the remedy."""
  with pytest.raises(SettingError) as caught:
    call()
  return str(caught.value).removeprefix(caught.value.setting)


@pytest.mark.parametrize("section, name", ENTRIES, ids=[name for _, name in ENTRIES])
def test_python_and_a_configuration_refuse_a_value_in_the_same_words(section, name):
  method = TABLES[section][name]
  for setting in (own for own in method.settings.values() if own.name not in method.from_data):
    for value in bad_values(setting):
      if (setting.name, value) in FREE.get(section, ()):
        continue
      config = {section: {"name": name, setting.name: value}, "local": {}}

      def configured(config=config):
        check_method(sections()[section], config)

      given = {setting.name: value}
      if section == "algorithm":
        python = lambda given=given: client_of(name, mlp(), 4, given)  # noqa: E731
      else:
        python = lambda given=given: method.make({"rounds": 4}, **given)  # noqa: E731
      assert said(python) == said(configured), setting.name


def test_a_configuration_names_the_section():
  config = get_config("algorithm=fedprox")
  config.local.momentum = 1.5
  with pytest.raises(
    SettingError, match=r"^local\.momentum = 1\.5: out of range\. It must be below 1\.0 and at"
  ):
    plan(config)


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: fh.fedprox(mlp(), momentun=1), "fedprox's setting = 'momentun': unknown.* mean 'momentum'"),
    (lambda: fh.fedavg(mlp(), mu=0.1), "fedavg's setting = 'mu': unknown"),
    (lambda: fh.superfed(mlp(), nuu=0.1), "Did you mean 'nu'"),
    (lambda: fh.models.two_nn((4,), 3, hiden=8), "two_nn's setting = 'hiden'.*mean 'hidden'"),
    (lambda: fh.data.dirichlet(jax.random.key(0), [0, 1], 2, alfa=1.0), "= 'alfa'.* mean 'alpha'"),
    (lambda: fh.server.adam(0.1, beta=0.9), "adam's setting = 'beta': unknown"),
    (lambda: fh.server.sgld(5, 1.0, -1.0), "server's last_step_size = -1.0: out of range"),
    (lambda: fh.mixing.qffl(q=-1.0), "q = -1.0: out of range. It must be below inf and at least 0.0"),
    (lambda: fh.mixing.static(q=1.0), "static's setting = 'q': unknown"),
    (lambda: fh.scaffold(mlp(), optimizer=lambda lr: None), "optimizer = .*SCAFFOLD.*Leave it out"),
    (lambda: fh.apfl(mlp(), adaptive="no"), "adaptive = 'no': of the wrong type. It must be bool"),
    (lambda: fh.models.two_nn((4,), 3, layers=0), "layers = 0: out of range"),
  ],
)  # fmt: skip
def test_a_call_from_python_is_checked_by_the_declaration(call, words):
  with pytest.raises(SettingError, match=words):
    call()


def test_missing_and_superfluous_arguments_are_python_s_own_errors():
  with pytest.raises(TypeError, match="model"):
    fh.fedavg()
  with pytest.raises(TypeError):
    fh.server.sgd(0.1, 0.2)


def test_local_settings_stand_in_every_signature_and_in_the_help():
  wanted = {**settings_of(LocalSettings)}
  for name in ("fedavg", "ditto", "superfed_lm", "sosicfl_all", "scaffold"):
    known = inspect.signature(CLIENTS[name].factory).parameters
    assert {own: known[own].default for own in wanted} == {own: each.default for own, each in wanted.items()}
  shown = pydoc.plain(pydoc.render_doc(fh.fedprox))
  assert "batch_size: int = 10" in shown and "Annotated" not in shown and "see `LocalSettings`" in shown
  assert "mini-batch size" in pydoc.plain(pydoc.render_doc(LocalSettings))


def test_values_of_a_program_are_numbers_that_may_be_fractions():
  settings = CLIENTS["pfedme"].settings
  assert {name for name, own in settings.items() if own.is_value} == {
    "lam", "outer_lr", "lr", "lr_decay", "momentum", "weight_decay", "clip_norm", "warmup", "b1", "b2", "eps",
    "label_smoothing", "sam_radius", "mixup", "calibration_strength", "decorrelate", "dp_clip",
    "dp_noise_multiplier",
  }  # fmt: skip
  config = get_config("algorithm=superfed_mm").to_dict()
  assert {"algorithm.mu", "algorithm.nu", "local.lr", "local.momentum"} <= {*plan(config).numbers}
  assert not {"local.epochs", "local.batch_size"} & {*plan(config).numbers}


def test_traced_values_and_numbers_of_any_kind_pass():
  jax.eval_shape(lambda lr: fh.fedavg(mlp(), lr=lr).init_broadcast(jax.random.key(0)), jnp.float32(-1.0))
  for value in (np.float32(0.1), jnp.float32(0.1), 1, np.int64(1)):
    fh.fedavg(mlp(), lr=value)
  with pytest.raises(SettingError, match="lr = "):
    fh.fedavg(mlp(), lr=jnp.float32(-1.0))


def plain(
  model: fh.Model, *, rate: float = 0.1, steps: int = 3, kind: str = "a", free=None
) -> fh.ClientUpdate:
  """A factory of a user's own, without ranges.

  Args:
    rate: a rate.
  """
  return fh.fedavg(model, lr=rate)._replace(name="plain")


def test_a_factory_of_one_s_own_without_ranges_has_its_types_checked(monkeypatch):
  monkeypatch.setitem(CLIENTS, "plain", Method("plain", plain, "one's own", "nobody"))
  config = get_config("algorithm=plain")
  plan(config)
  for setting, value, words in (
    ("rate", "x", "rate = 'x': of the wrong type. It must be float"),
    ("steps", 2.0, "steps = 2.0: of the wrong type. It must be int"),
    ("kind", 3, "kind = 3: of the wrong type. It must be str"),
    ("ratee", 0.1, "unknown to plain. Did you mean 'rate'"),
  ):
    config.algorithm = {"name": "plain", setting: value}
    with pytest.raises(SettingError, match=words):
      plan(config)
  config.algorithm = {"name": "plain", "rate": 1, "free": [1]}
  plan(config)


MODES = {"mean": 0}


class Own(TypedDict, total=False):
  """Settings of one's own.

  Attributes:
    rate: how fast.
  """

  rate: Annotated[Positive, Default(0.5)]


@checked(whose="own ")
def ranged(
  count: Count | None = None, mode: "Annotated[str, Choice(MODES)]" = "mean",
  bins: Annotated[int, Whole(2, 9)] = 2, part: Annotated[float, Range(0.0, 1.0)] | str = 0.5,
  **own: Unpack[Own],
):  # fmt: skip
  """Has settings of several kinds.

  Args:
    count: how many.
  """
  return {"count": count, **own}


def test_a_declaration_of_one_s_own(monkeypatch):
  known = settings_of(ranged)
  assert [*known] == ["count", "mode", "bins", "part", "rate"]
  assert (known["rate"].default, known["rate"].about, known["count"].about) == (0.5, "how fast.", "how many.")
  assert known["part"].kind == "float or str" and known["count"].kind == "int or None"
  assert ranged(rate=0.1, part="all") == {"count": None, "rate": 0.1}
  for given, words in (
    ({"count": 0}, "own count = 0"), ({"bins": 10}, "own bins = 10.*at most 9"),
    ({"rate": 0}, "own rate = 0"),
    ({"part": 2.0}, "own part = 2.0"), ({"mode": "max"}, "own mode = 'max': unknown"),
  ):  # fmt: skip
    with pytest.raises(SettingError, match=words):
      ranged(**given)
  monkeypatch.setitem(MODES, "max", 1)  # a name that is added later is known
  ranged(mode="max")
  fixed = variant_of(ranged, "mode")(lambda **given: ranged(mode="mean", **given))
  assert [*settings_of(fixed)] == ["count", "bins", "part", "rate"]


def test_a_factory_that_takes_any_other_keyword_is_given_it():
  @checked
  def open_ended(lr: Positive = 0.1, **more):
    return more

  assert open_ended(rate=1) == {"rate": 1}
  with pytest.raises(SettingError, match="lr = 0: out of range"):
    open_ended(0)
