"""What a configuration's mistakes are answered with: the field as the user writes it, and a way on."""

import ast
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import small
from small_parts import federation, mlp

from fedjax_het.clients.sgd import fedavg
from fedjax_het.config.fields import print_fields
from fedjax_het.config.plan import plan
from fedjax_het.data.partition import dirichlet
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.federated import federated
from fedjax_het.parts import Mixing

LEFT = {  # a part chosen by its name alone -> the first of the settings that the one before it has left
  "server": ("sgld", "server.lr = 1.0"),
  "mixing": ("afl", "mixing.q = 2.0"),
  "model": ("resnet20", "model.hidden = 8"),
  "partition": ("iid", "partition.alpha = 0.1"),
  "algorithm": ("fedavg", "algorithm.mu = 0.01"),
}

WHOSE = {  # has the setting, where only a few do
  "mixing": "qffl",
  "partition": "dirichlet, client_dirichlet, quantity_skew, extended_dirichlet",
}


@pytest.mark.parametrize("section", LEFT)
def test_settings_left_by_another_part_are_named_with_a_way_on(section):
  name, field = LEFT[section]
  config = small(mixing={"name": "qffl", "q": 2.0})
  config[section]["name"] = name
  with pytest.raises(SettingError, match="only the name is changed") as refused:
    plan(config)
  whose = WHOSE.get(section)
  problem = f"unknown to {name}, a setting of {whose}" if whose else f"unknown to {name}"
  assert str(refused.value).startswith(f"{field}: {problem}. Known: ")
  flags = re.findall(r'--config\.(\w+)="(\{.*?\})"', str(refused.value))
  assert flags[0] == (section, f"{{'name': '{name}'}}")
  for own, value in flags:  # what the error says works
    config[own] = ast.literal_eval(value)
  if section == "server":
    config.algorithm, config.local = {"name": "fedevg"}, {"lr": 0.1}
  plan(config)


def test_settings_left_by_another_method_are_named_in_both_sections():
  config = small(algorithm__name="fedcvae", model={"name": "cvae_mlp"})
  with pytest.raises(SettingError) as refused:
    plan(config)
  flags = dict(re.findall(r'--config\.(\w+)="(\{.*?\})"', str(refused.value)))
  kept = ast.literal_eval(flags["local"])
  assert "lr" in kept and "momentum" not in kept and flags["algorithm"] == "{'name': 'fedcvae'}"


@pytest.mark.parametrize(
  "change, text",
  [
    ({"local__lrate": 0.1}, r"^local\.lrate = 0\.1: unknown to superfed_mm\. Did you mean 'lr'"),
    ({"algorithm__strat": 0.4}, r"strat = 0\.4.*Did you mean 'start'\?.* start, start_round"),
    ({"algorithm__start": 30}, r"start = 30.*start is a share of the rounds, start_round a number of rounds"),
    ({"server__lrr": 0.4}, r"^server\.lrr = 0\.4: unknown to sgd\. Did you mean 'lr'\? Known: lr"),
    ({"model__layrs": 3}, r"^model\.layrs = 3: unknown to two_nn\. Did you mean 'layers'"),
  ],
)
def test_a_slip_of_the_pen(change, text):
  with pytest.raises(SettingError, match=text):
    plan(small(**change))


@pytest.mark.parametrize("section", ["partition", "model", "algorithm", "mixing", "server"])
def test_a_section_without_a_name(section):
  with pytest.raises(SettingError, match=rf"^{section}\.name = None: is missing"):
    plan(small(**{section: {}}))


def test_a_setting_in_both_sections():
  both = small(algorithm={"name": "fedavg", "lr": 0.5})
  with pytest.raises(
    SettingError, match=r"^algorithm\.lr = 0\.5: is given in local too, as 0\.\d+\. Give it once"
  ):
    plan(both)
  del both.local["lr"]
  plan(both)


def test_more_clients_than_the_rows_allow():
  labels = np.arange(1797) % 10
  text = r"^num_clients = 900: 1797 rows .*min_size = 10 rows\. Use at most 179 .*min_size = 1 with .*balance"
  with pytest.raises(SettingError, match=text):
    dirichlet(jax.random.key(0), labels, 900, 0.1)
  assert len(dirichlet(jax.random.key(0), labels, 900, 0.1, min_size=1, balance=True)) == 900


def test_a_run_s_rounds_are_described_to_a_user(capsys):
  print_fields(small().to_dict(), "rounds")
  assert "number of rounds" in capsys.readouterr().out


def test_a_refused_run_leaves_no_folder(tmp_path):
  """Also where it is refused after the data are read."""
  for change in ({"cohort_size": 50}, {"num_clients": 900}):
    with pytest.raises(SettingError):
      run_experiment(small(**change), str(tmp_path / "runs" / "mine"))
  with pytest.raises(SettingError):
    run_sweep(small(num_clients=900), {"seed": [0, 1]}, str(tmp_path / "runs" / "sweep"))
  assert not [*tmp_path.iterdir()]


def test_a_cohort_that_the_mixing_does_not_take_is_refused_with_the_other_checks():
  mixing = {"name": "aaggff_s"}
  with pytest.raises(SettingError, match=r"^cohort_size = 5: AAggFF-S needs all 20 clients"):
    plan(small(mixing=mixing))
  plan(small(mixing=mixing, cohort_size=20))
  apart = small(mixing=mixing, unseen={"fraction": 0.5}, algorithm={"name": "fedavg"}, cohort_size=10)
  plan(apart)
  apart.cohort_size = 9
  with pytest.raises(SettingError, match=r"^cohort_size = 9: AAggFF-S needs all 10 clients"):
    build(plan(apart))


@pytest.mark.slow
@pytest.mark.parametrize(
  "update, text",
  [
    (lambda s, f: (jnp.ones(2) / 2, s), r"'float32 \(2,\)': its coefficients are not floats \(3,\)"),
    (lambda s, f: (jnp.float32(1.0), s), r"'float32 \(\)': its coefficients are not floats \(3,\)"),
    (lambda s, f: (jnp.ones(3, int), s), r"'int32 \(3,\)': its coefficients"),
    (lambda s, f: jnp.ones(3) / 3, "'ShapeDtypeStruct': is what its update gives"),
    (lambda s, f: (jnp.ones(3) / 3, jnp.ones(1)), r"is what its state becomes, and it was \(\)"),
    (lambda s, f: (f.sizes.astype(float), s), "a round's coefficients sum to 13, the least is 3"),
    (lambda s, f: (jnp.array([2.0, -0.5, -0.5]), s), "sum to 1, the least is -0.5"),
  ],
)
def test_a_mixing_that_gives_no_mixture_is_named(update, text):
  own = Mixing(lambda sizes: (), update, "mine")
  data, algorithm = federation((3, 4, 6)), federated(fedavg(mlp(), lr=0.1), own)
  with pytest.raises(SettingError, match=f"mixing = .*{text}"):
    engine = Engine(algorithm, data, 3)
    engine.advance(engine.init(jax.random.key(0)), 1)


def test_a_mixing_is_shown_uploads_of_the_cohort_before_anything_is_compiled():
  shapes = []

  def update(state, feedback):
    shapes.append([(leaf.shape[0], leaf.ndim > 1) for leaf in jax.tree.leaves(feedback.uploads().params)])
    return jnp.ones(3) / 3, state

  Engine(federated(fedavg(mlp(), lr=0.1), Mixing(lambda sizes: (), update)), federation((3, 4, 6, 2)), 3)
  assert len(shapes) == 1 and len(shapes[0]) > 1 and {*shapes[0]} == {(3, True)}
