"""Numbers that cannot be: functions, arrays, complex ones, and what vanishes or overflows in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import OFFERED, OWN, ROUNDS, client_of
from small_parts import federation, mlp

import fedjax_het as fh
from fedjax_het.errors import SettingError, check_range, check_whole
from fedjax_het.methods import TABLES

BAD = [
  optax.cosine_decay_schedule(0.1, 10), "x", 1j, jnp.complex64(1), np.ones(2), jnp.ones(1), [0.1], {}, True,
  object(), jax.random.key(0), float("nan"), np.float32("nan"), -np.inf, 1e-60, -1e-60, 1e-39, -1e39, 10**400,
  10**5000,
]  # fmt: skip
NUMBERS = [
  (section, name, setting)
  for section, table in TABLES.items()
  for name, method in table.items()
  for setting, own in method.settings.items()
  if {*own.types} & {int, float}
]


@pytest.mark.parametrize("section", TABLES)
def test_every_number_of_every_method_refuses_what_is_none(section):
  counts = np.random.default_rng(0).integers(0, 20, (12, 3)) + 1
  for name, setting in [own[1:] for own in NUMBERS if own[0] == section]:
    method, own = TABLES[section][name], OWN.get(name, {})
    for value in BAD:
      with pytest.raises(SettingError, match=setting):
        if setting in method.from_data:
          method.prepare({"endpoints": 3, setting: value}, counts)
        elif section == "algorithm":
          client_of(name, mlp(), ROUNDS, {**OFFERED, **own, setting: value})
        else:
          method.make({"rounds": ROUNDS, **own, setting: value})


def test_the_error_names_setting_value_and_remedy():
  wanted = [
    (1e-60, "vanishes in float32"), (1e39, "overflows float32"), (-1e-39, "out of range"),
    (10**400, "about 400 digits"), (np.inf, "out of range"), (lambda step: 0.1, "lr_decay"),
    (None, "not a number"), (10**10, "Write 10000000000.0"),
  ]  # fmt: skip
  for value, said in wanted:
    with pytest.raises(SettingError, match=f"lr = .*{said}"):
      fh.fedavg(mlp(), lr=value)


def test_a_number_that_float32_cannot_tell_from_its_bound():
  with pytest.raises(SettingError, match=r"momentum = 0.999999999: is 1.0 in float32"):
    fh.fedavg(mlp(), momentum=0.999999999)


def test_zero_host_numbers_and_scalars_pass():
  check_range("mu", 0.0, 0.0)
  check_range("share", 1e-60, 0.0, on_host=True)
  for value in (np.float64(0.1), jnp.float32(0.1), np.array(0.1), 1):
    check_range("lr", value, above=0.0)
  check_whole("rounds", np.int64(3), 1)
  with pytest.raises(SettingError, match="at most 2147483647"):
    check_whole("rounds", 2**31, 1)


def test_values_of_a_sweep_and_of_a_program_are_refused():
  make = lambda lr: fh.federated(fh.fedavg(mlp(), lr=lr))  # noqa: E731
  data = federation((3, 2))
  with pytest.raises(SettingError, match="lr = 1e-60"):
    fh.sweep(make, {"lr": [0.1, 1e-60]}, data=data, rounds=1, cohort_size=2)
  with pytest.raises(SettingError, match=r"lr = 1e\+39"):
    fh.run(make, data, rounds=1, cohort_size=2, key=jax.random.key(0), settings={"lr": 1e39})


def test_a_partition_and_a_server_refuse_a_schedule():
  schedule = optax.cosine_decay_schedule(0.1, 10)
  with pytest.raises(SettingError, match="alpha"):
    fh.data.dirichlet(jax.random.key(0), np.arange(40) % 2, 2, alpha=schedule)
  with pytest.raises(SettingError, match=r"fh\.server\.optimizer"):
    fh.server.sgd(lr=schedule)
