"""Bad values of the Python API are a SettingError of parameter, value and remedy, before any compile."""

import jax
import numpy as np
import pytest
from bad_input import algorithm, arrays, data, faults, model, no_compile
from cases import with_every

import fedjax_het as fh
from fedjax_het.engine.sweep import keys_of
from fedjax_het.errors import check_run_key

KEY = jax.random.key(0)


@pytest.mark.slow
def test_a_part_of_all_bad_values_ends_in_an_error_of_the_library():
  assert list(faults(share=12)) == []


@pytest.mark.slow
@pytest.mark.parametrize("which", with_every(range(1, 12), 4, 8))
def test_all_bad_values_end_in_an_error_of_the_library(which):
  assert list(faults(share=12, which=which)) == []


def run(algorithm=None, data_=None, **settings):
  given = dict(rounds=1, cohort_size=2, key=KEY, progress=False) | settings
  return fh.run(algorithm or fh.federated(fh.fedavg(model(), epochs=1)), data_ or data(), **given)


def sweep(make=algorithm, grid=None, seeds=(0,), data_=None):
  return fh.sweep(
    make, {"lr": [0.1]} if grid is None else grid, seeds, data=data_ or data(), rounds=1, cohort_size=2
  )


REFUSED = {
  "data as a tuple": (lambda: run(data_=arrays()[:2]), r"data = 'tuple': is not a fh.data.FederatedData"),
  "data as a source": (lambda: run(data_=fh.data.load("digits")), r"data = 'Source': .*\(key, data.x"),
  "make_algorithm": (lambda: sweep(algorithm()), "make_algorithm = 'an algorithm': not a function"),
  "a name of the grid": (lambda: sweep(grid={"mu": [0.1]}), r"settings = \['mu'\]: make_algorithm cannot"),
  "a value of the grid": (lambda: sweep(grid={"lr": 0.1}), r"sweep.lr = 0.1: not a list of numbers"),
  "a grid": (lambda: sweep(grid=[0.1]), r"grid = \[0.1\]: not names with values"),
  "no algorithm": (lambda: sweep(lambda lr: fh.fedavg(model(), lr=lr)), "make_algorithm = 'ClientUpdate'"),
  "seeds": (lambda: sweep(seeds=3), "seeds = 3: not a list of seeds"),
  "a seed": (lambda: sweep(seeds=[0.5]), "seeds = 0.5"),
  "parts": (lambda: fh.federate(*arrays()[:2], None, KEY, num_classes=3), "parts = None: not a list of"),
  "named parts": (
    lambda: fh.federate(*arrays()[:2], {"a": [0]}, KEY, num_classes=3), r"parts = .* Give .*parts=\[\*values"
  ),
  "no rows": (
    lambda: fh.federate(np.zeros((0, 4)), np.zeros(0, int), [np.arange(0)], KEY, num_classes=3), "has no rows"
  ),
  "epochs": (lambda: fh.fedavg(model(), epochs=10**20), "epochs = .* is larger than any setting"),
  "batch_size": (lambda: fh.fedavg(model(), batch_size=2**40), "batch_size = 1099511627776: out of range"),
  "a complex rate": (lambda: fh.fedavg(model(), lr=1j), "lr = 1j: not a number"),
  "a schedule": (lambda: fh.fedavg(model(), lr=lambda t: 0.1), "lr = .*: a function"),
  "a shape": (lambda: fh.models.two_nn(4, 3), "shape = 4: not a list of whole numbers"),
  "settings": (lambda: run(algorithm, settings=[0.1]), r"settings = \[0.1\]: not names with values"),
  "a setting": (lambda: run(algorithm, settings={"lr": "fast"}), "settings.lr = 'fast': not a number"),
  "device_rows": (lambda: run(device_rows=0.5), "device_rows = 0.5"),
  "states_folder": (lambda: run(device_states=4, states_folder=5), "states_folder = 5: not the path"),
  "data_dir": (lambda: fh.data.load("mnist", 5), "data_dir = 5: not the path"),
  "an optimizer": (lambda: fh.fedavg(model(), optimizer=lambda: 0), "optimizer = .*: cannot be called"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_slip_is_told(what):
  call, said = REFUSED[what]
  with no_compile(), pytest.raises(fh.SettingError, match=said):
    call()


@pytest.mark.parametrize("name", ["batch_size", "epochs_of_shape"])
def test_a_setting_that_is_a_shape_cannot_be_swept(name):
  def make(**settings):
    if name == "batch_size":
      return fh.federated(fh.fedavg(model(), epochs=1, **settings))
    return fh.federated(fh.fedavg(fh.models.two_nn((4,), 3, hidden=settings[name]), epochs=1))

  with pytest.raises(fh.SettingError, match=f"{name} = .* changes the program itself"):
    fh.sweep(make, {name: [5, 10]}, data=data(), rounds=1, cohort_size=2)


def same(one, other):
  return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_keys_of_prngkey_give_the_draws_of_the_typed_key():
  old, (x, y, parts) = jax.random.PRNGKey(7), arrays()
  key = jax.random.key(7)
  for call in (
    lambda k: fh.data.from_arrays(k, x, y, num_clients=2),
    lambda k: fh.data.from_groups(k, x, y, y),
    lambda k: fh.federate(x, y, parts, k, num_classes=3),
    lambda k: fh.data.dirichlet(k, y, 2, alpha=1.0),
    lambda k: fh.data.iid(k, y, 3),
    lambda k: fh.data.split_clients(k, 9, 0.5),
    lambda k: fh.data.label_noise(k, y, fh.data.pair_flip(3, 0.5)),
  ):
    assert same(call(old), call(key)) and same(call(np.asarray(old)), call(key))
  names, keys = keys_of(jax.random.split(old, 2))
  assert names == [0, 1] and same(*map(jax.random.key_data, (keys, jax.random.split(key, 2))))
  assert same(*map(jax.random.key_data, (check_run_key(old), key)))
  with pytest.raises(fh.SettingError, match=r"key = '\(3,\) keys': not one key"):
    fh.data.iid(jax.random.split(old, 3), y, 3)
  with pytest.raises(fh.SettingError, match="not a key"):
    fh.data.iid(old[0], y, 3)


@pytest.mark.slow
def test_runs_and_sweeps_take_keys_of_prngkey():
  old, key = jax.random.PRNGKey(7), jax.random.key(7)
  assert same(*(run(key=each).state.broadcast.params for each in (old, key)))
  seeds = jax.random.split(old, 2), jax.random.split(key, 2)
  assert same(*(sweep(seeds=each).state.broadcast.params for each in seeds))


def test_generators_are_listed():
  x, y, parts = arrays()
  assert same(fh.federate(x, y, (part for part in parts), KEY, num_classes=3), data())
  names, keys = keys_of(seed for seed in (0, 1))
  assert names == [0, 1] and same(jax.random.key_data(keys[1]), jax.random.key_data(jax.random.key(1)))
  assert keys_of(jax.numpy.arange(2))[0] == [0, 1]


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, np.float16])
def test_floats_of_other_kinds_are_read_as_float32(dtype):
  x, y, parts = arrays()
  found = fh.federate(x.astype(dtype), y.astype(">i8"), parts, KEY, num_classes=3)
  assert found.x.dtype in (np.float32, np.float16) and found.x.dtype.isnative and found.y.dtype == np.int32
  np.testing.assert_allclose(np.sort(found.x, axis=None), np.sort(x, axis=None), rtol=1e-3)


def test_an_error_shows_no_more_of_a_value_than_a_reader_needs():
  with pytest.raises(fh.SettingError) as caught:
    fh.data.load("x" * 10**5)
  assert len(str(caught.value)) < 1500
  with pytest.raises(fh.SettingError, match="num_clients = 'a number of about 5000 digits'"):
    fh.data.split_clients(KEY, 10**5000, 0.5)
