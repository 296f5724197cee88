"""What would be taken for something else, or have no effect, is refused before anything is compiled."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.spatial.distance import pdist

import fedjax_het as fh
from fedjax_het.clients.heads import parting
from fedjax_het.clients.objective import updates_barrier
from fedjax_het.config.shares import in_rounds
from fedjax_het.engine.sweep import grid_of
from fedjax_het.errors import check_key, check_seed
from fedjax_het.mixing.responses import relative
from fedjax_het.models.layers.product import value_barrier
from fedjax_het.parts import Feedback
from fedjax_het.studies.downstream import within_class_distance
from fedjax_het.studies.frechet import frechet_distance, kernel_distance
from fedjax_het.tables.runs import ended
from fedjax_het.workdir.folder import read_json, read_json_lines, read_record

N = 24
MODEL = fh.models.two_nn(shape=(2,), hidden=3, num_classes=3)
PARTS = np.array_split(np.arange(N), 4)
Y = np.arange(N) % 3
KEY = jax.random.key(0)


def federated(x, **settings):
  return fh.federate(x, Y, PARTS, KEY, num_classes=3, **settings)


@pytest.mark.parametrize("method", [fh.superfed, fh.superfed_lm])
@pytest.mark.parametrize("start", [0.4, 2.5, np.float32(1.5)])
def test_a_share_of_the_rounds_is_no_round(method, start):
  with pytest.raises(fh.SettingError, match=r"start_round = .*not a round.*int\("):
    method(MODEL, start_round=start)


def test_a_whole_round_may_come_as_any_number():
  for start in (2, 2.0, np.int64(2), jnp.int32(2)):
    fh.superfed(MODEL, start_round=start)


@pytest.mark.parametrize(
  "settings", [{"momentum": 0.5}, {"weight_decay": 0.0}, {"momentum": np.float32(0.1)}]
)
def test_settings_of_sgd_beside_another_optimizer(settings):
  (name,) = settings
  with pytest.raises(fh.SettingError, match=f"{name} = .*no effect.*within optimizer"):
    fh.fedavg(MODEL, optimizer=optax.adam, **settings)


def test_a_sweep_over_a_setting_without_effect():
  def make(weight_decay):
    return fh.federated(fh.fedavg(MODEL, optimizer=optax.sgd, weight_decay=weight_decay))

  data = federated(np.ones((N, 2), np.float32))
  with pytest.raises(fh.SettingError, match="no effect"):
    fh.sweep(make, {"weight_decay": [1e-4, 5.0]}, data=data, rounds=1, cohort_size=2)


@pytest.mark.parametrize(
  ("make", "problem"),
  [
    (lambda lr: None, "NoneType, no optax transformation"),
    (optax.lbfgs, "missing .*'value'.*Take one"),
    (optax.adam(0.1), "not a function of the learning rate"),
  ],
)
def test_an_optimizer_that_local_training_cannot_use(make, problem):
  with pytest.raises(fh.SettingError, match=problem):
    fh.fedavg(MODEL, optimizer=make)


def test_a_server_takes_a_transformation_not_what_makes_one():
  with pytest.raises(fh.SettingError, match=r"adam.*optax.adam\(0.01\)"):
    fh.server.optimizer(optax.adam)
  with pytest.raises(fh.SettingError, match=r"transformation = 'custom': its .*'value'"):
    fh.server.optimizer(optax.polyak_sgd())


@pytest.mark.parametrize(
  ("name", "value"), [("lr", np.inf), ("momentum", 1.0), ("weight_decay", np.inf), ("mu", np.inf)]
)
def test_local_settings_that_cannot_work(name, value):
  with pytest.raises(fh.SettingError, match=name):
    fh.fedprox(MODEL, **{name: value})


@pytest.mark.parametrize(
  ("x", "shown"),
  [
    (np.full((N, 2), 3_000_000_000, np.int64), "3000000000"),
    (np.full((N, 2), 2**32 + 1, np.uint64), "4294967297"),
    (np.full((N, 2), -(2**31) - 1, np.int64), "-2147483649"),
    (np.full((N, 2), 1e39), "1e.39"),
    (np.where(np.arange(2 * N).reshape(N, 2) == 7, -1e300, 0.0), "-1e.300"),
  ],
)
def test_features_that_32_bits_cannot_hold(x, shown):
  with pytest.raises(fh.SettingError, match=f"x = {shown}: .*32 cannot hold it"):
    federated(x)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.float64])
def test_wide_features_that_32_bits_hold_come_as_they_are(kind):
  x = np.arange(2 * N).reshape(N, 2).astype(kind)
  data = federated(x)
  assert data.x.dtype.itemsize == 4
  assert {tuple(row) for row in data.x.tolist()} == {tuple(row) for row in x.tolist()}


def test_infinite_and_missing_floats_are_no_overflow():
  x = np.ones((N, 2))
  x[PARTS[0][0], 0] = np.inf
  assert np.isinf(federated(x).x).sum() == 1


@pytest.mark.parametrize("kind", [np.complex64, np.complex128, "datetime64[s]", "timedelta64[s]"])
def test_examples_that_are_no_real_numbers(kind):
  with pytest.raises(fh.SettingError, match="not rows of numbers"):
    federated(np.ones((N, 2)).astype(kind))


@pytest.mark.parametrize("standardize", [True, 1])
def test_columns_to_standardise_are_named(standardize):
  with pytest.raises(fh.SettingError, match="Name them"):
    federated(np.ones((N, 2), np.float32), standardize=standardize)


def test_one_key_is_one_key():
  with pytest.raises(fh.SettingError, match=r"not one key.*keys\[0\]"):
    check_key(jax.random.split(KEY, 3))
  check_key(KEY)


@pytest.mark.parametrize("values", [[0, 0], [0.05, 0.1, 0.05], [1, 1.0], np.array([2.0, 2.0])])
def test_a_value_twice_would_count_one_run_as_two(values):
  with pytest.raises(fh.SettingError, match="twice"):
    grid_of({"lr": values})


def test_a_seed_twice():
  data = federated(np.ones((N, 2), np.float32))
  with pytest.raises(fh.SettingError, match=r"seeds = .*has 3 twice"):
    fh.sweep(lambda: fh.federated(fh.fedavg(MODEL)), seeds=[3, 4, 3], data=data, rounds=1, cohort_size=2)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_device_trains_at_least_one_client_at_once(count):
  data = federated(np.ones((N, 2), np.float32))
  with pytest.raises(fh.SettingError, match="client_batch"):
    fh.Engine(fh.federated(fh.fedavg(MODEL)), data, 2, client_batch=count)


def test_more_rows_than_there_are_is_no_remedy():
  data = federated(np.ones((N, 2), np.float32))
  with pytest.raises(fh.SettingError, match=r"device_rows.*Leave it out") as error:
    fh.Engine(fh.federated(fh.fedavg(MODEL)), data, 4, device_rows=N - 1)
  assert "or more" not in str(error.value)


@pytest.mark.parametrize("make", [fh.tasks.classification, fh.tasks.binary])
def test_balanced_is_a_word_of_configurations(make):
  with pytest.raises(fh.SettingError, match=r"fh\.tasks\.balanced"):
    make("balanced")


@pytest.mark.parametrize("value", [5e37, 9e37, 3e38])
def test_losses_near_the_largest_number_have_their_ratio(value):
  np.testing.assert_allclose(relative(jnp.array([value, value, 1.0, 1.0])), [2, 2, 0, 0], atol=1e-6)
  np.testing.assert_allclose(relative(jnp.array([1e-30, 3e-30])), [0.5, 1.5], rtol=1e-6)


@pytest.mark.parametrize("mixing", [fh.mixing.term(100.0), fh.mixing.qffl(5.0), fh.mixing.term(-100.0)])
def test_large_losses_leave_coefficients(mixing):
  losses = jnp.array([1e38, 1e38, 1.0, 1.0])
  sizes = jnp.ones(4)
  feedback = Feedback(jnp.arange(4), sizes, jnp.int32(0), lambda: losses, None, None)
  coefficients, _ = mixing.update(mixing.init(sizes), feedback)
  np.testing.assert_allclose(coefficients.sum(), 1.0, rtol=1e-6)
  favoured = coefficients[:2] if mixing.name != "term" or coefficients[0] > 0 else coefficients[2:]
  np.testing.assert_allclose(favoured, 0.5, rtol=1e-6)


def test_updates_wait_for_each_other_also_beside_an_empty_leaf():
  updates = {"a": jnp.array([1.0, jnp.inf]), "none": jnp.zeros((0, 3))}
  found = updates_barrier(updates)
  np.testing.assert_array_equal(found["a"], updates["a"])


def test_settling_changes_no_bit():
  x = jnp.array([0.0, -0.0, 1e-37, -3.7, jnp.inf, -jnp.inf, jnp.nan, 3e38], jnp.float32)
  for own in (x, x.astype(jnp.bfloat16)):
    found = jax.jit(value_barrier)(own)
    assert found.dtype == own.dtype
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(own, np.float32))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(own))


def test_damaged_json_is_as_good_as_none(tmp_path):
  path = tmp_path / "summary.json"
  assert read_json(path) is None
  path.write_text('{"a": 1')
  assert read_json(path) is None
  path.write_text(json.dumps({"a": 1}))
  assert read_json(path) == read_record(path) == {"a": 1}
  path.write_text("[1]")
  assert read_json(path) == [1] and read_record(path) is None


def test_a_line_that_is_being_written_is_not_read(tmp_path):
  path = tmp_path / "metrics.jsonl"
  assert read_json_lines(path) == []
  path.write_bytes(b'{"round": 1}\n7\n{"round": \xff}\n{"round": 2}\n{"rou')
  assert read_json_lines(path) == [{"round": 1}, {"round": 2}]


@pytest.mark.parametrize("name", ["summary.json", "failed.json"])
def test_a_run_whose_end_is_damaged_has_not_ended(tmp_path, name):
  run = tmp_path / "run"
  run.mkdir()
  (run / "config.json").write_text('{"rounds": 3}')
  assert ended(tmp_path) == {}
  (run / name).write_text('{"left_out": ')
  assert ended(tmp_path) == {}
  (run / name).write_text("{}")
  assert [*ended(tmp_path).values()] == [run]
  (run / "config.json").write_text('{"rou')
  assert ended(tmp_path) == {}


@pytest.mark.parametrize(
  ("method", "settings"),
  [
    (fh.fedavg, {"epochs": 2.0}),
    (fh.fedprox, {"batch_size": 4.0}),
    (fh.pfedme, {"inner_steps": 2.0}),
    (fh.ditto, {"lam": None}),
    (fh.superfed_mm, {"nu": None}),
    (fh.superfed_lm, {"start_round": None}),
    (fh.fedavg, {"lr": None}),
    (fh.apfl, {"adaptive": "no"}),
    (fh.fedper, {"head": ["fc2"]}),
    (fh.fedrep, {"head": 5}),
    (fh.fedavg, {"mu": 0.1}),  # fixed by the variant
    (fh.lg_fedavg, {"shares_body": True}),
  ],
)
def test_settings_that_no_program_takes_are_named(method, settings):
  """Each went into a traceback of JAX's, or had another effect than it says."""
  (name,) = settings
  with pytest.raises(fh.SettingError, match=name):
    method(MODEL, **settings)


def test_whole_numbers_of_any_kind_count():
  for count in (2, np.int64(2), jnp.int32(2)):
    assert fh.fedavg(MODEL, epochs=count).name == "fedavg"
  with pytest.raises(fh.SettingError, match=r"epochs = 2.0: must be a whole number. Write 2\."):
    fh.fedavg(MODEL, epochs=2.0)


def test_a_head_s_names_may_have_blanks():
  params = fh.models.two_nn(shape=(2,), hidden=3, num_classes=3, layers=3).init(KEY)
  model = fh.models.two_nn(shape=(2,), hidden=3, num_classes=3, layers=3)
  *_, last, top = params
  assert jax.tree.structure(parting(model, f"{last}, {top}")(params)) == jax.tree.structure(
    parting(model, f"{last},{top}")(params)
  )


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5])
def test_a_seed_that_would_be_another_one(seed):
  with pytest.raises(fh.SettingError, match="seed"):
    check_seed("seed", seed)
  assert (jax.random.key_data(jax.random.key(2**32 + 4)) == jax.random.key_data(jax.random.key(4))).all()


ENERGY = fh.models.energy_mlp((2,), num_classes=3)


@pytest.mark.parametrize(
  ("make", "named"),
  [
    (lambda: fh.fedevg(ENERGY, per_class=2.5), "per_class"),
    (lambda: fh.fedevg(ENERGY, chain_steps=1.5), "chain_steps"),
    (lambda: fh.fedevg(ENERGY, steps=1.5), "steps"),
    (lambda: fh.fedevg(ENERGY, b1=1.5), "b1"),
    (lambda: fh.fedevg(ENERGY, b2=-0.1), "b2"),
    (lambda: fh.fedevg(ENERGY, chain_step_size=float("nan")), "chain_step_size"),
    (lambda: fh.fedevg(ENERGY, persistent="no"), "persistent"),
    (lambda: fh.server.sgld(2.5), "rounds"),
    (lambda: fh.server.particles(2.5), "rounds"),
    (lambda: fh.server.sgld(5, step_size=1.0, last_step_size=2.0), "last_step_size"),
    (lambda: fh.server.particles(5, space="blocks", temperature=0.0), "space"),
    (lambda: fh.server.particles(5, space_seed=1), "space_seed"),
    (lambda: fh.server.particles(5, heat=float("inf")), "heat"),
    (lambda: fh.sosicfl(MODEL, np.ones((4, 2))), "regions"),
    (lambda: fh.sosicfl_plus(MODEL, fh.regions(np.eye(3)), layers="all", head="fc1"), "head"),
    (lambda: frechet_distance(np.ones((1, 3)), np.ones((4, 3))), "features"),
    (lambda: kernel_distance(np.ones((4, 2)), np.ones((4, 3))), "features"),
  ],
)
def test_settings_of_synthesis_and_regions(make, named):
  with pytest.raises(fh.SettingError, match=named):
    make()


def test_regions_of_other_clients():
  """JAX clamps an index: a client beyond them would own the last one's region."""
  found = fh.regions(np.eye(3).repeat(2, 0))
  with pytest.raises(fh.SettingError, match="num_clients = 4: the client part was made for 6"):
    fh.Engine(fh.federated(fh.sosicfl(MODEL, found)), federated(np.zeros((N, 2), np.float32)), 2)


def test_noise_for_privacy_wants_bounded_uploads_that_count_alike():
  """By n_i the largest client's share of a round's sum is not 1/S, nor is it known before a run."""
  noisy = fh.server.particles(5, signal_noise=0.1)
  bounded = fh.fedevg(ENERGY, energy="even", upload_norm=1.0)
  assert fh.federated(bounded, fh.mixing.uniform(), noisy).server.name == "particles"
  for client, mixing in (
    (bounded, fh.mixing.static()),
    (fh.fedevg(ENERGY, energy="even"), fh.mixing.uniform()),
  ):
    with pytest.raises(fh.SettingError, match="signal_noise"):
      fh.federated(client, mixing, noisy)


def test_distances_within_a_class_take_no_more_memory_than_the_set():
  x, y = np.random.default_rng(0).normal(size=(12, 2, 2)), np.arange(12) % 3
  pairs = [pdist(x[y == label].reshape(4, 4)).mean() for label in range(3)]
  np.testing.assert_allclose(within_class_distance(x, y, 3), pairs, rtol=1e-5)
  memory = jax.jit(within_class_distance, static_argnums=2).lower(
    jnp.zeros((500, 500)), jnp.zeros(500, int), 10
  ).compile().memory_analysis()  # fmt: skip
  assert memory.temp_size_in_bytes < 20 * 500 * 500


@pytest.mark.slow
def test_a_simplex_that_is_learnt_without_regions():
  """t̃ = ∞: clients draw on all of the simplex to the end, and are judged in its middle."""
  assert in_rounds({"name": "sosicfl", "start": 1.0}, 5)["start_round"] == np.inf
  data, found = (
    federated(np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)),
    fh.regions(np.eye(4)),
  )
  never = fh.federated(fh.sosicfl(MODEL, found, start_round=np.inf, epochs=1))
  result = fh.run(never, data, key=KEY, rounds=2, cohort_size=2)
  whole = result.clients["global"]["top1"]
  np.testing.assert_array_equal(result.clients["personalized"]["top1"], whole)
  for method in (fh.superfed_mm(MODEL, start_round=np.inf), fh.sosicfl(MODEL, found, start_round=2)):
    with pytest.raises(fh.SettingError, match="start_round"):
      fh.run(fh.federated(method), data, key=KEY, rounds=2, cohort_size=2)
