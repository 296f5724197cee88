"""JAX's options around a run: x64, strict promotion, the search for NaNs, disabled jit."""

import contextlib

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EPOCHS, EVERYBODY, ROUNDS, algorithm, cases, in_other_tests, with_every
from launching import records, small, start
from small_parts import SIZES, federation
from tiny_table import tiny_table, unchanged

import fedjax_het as fh
from fedjax_het.data.rows import as_held
from fedjax_het.experiment.recorded import timeless
from fedjax_het.models import MODELS, make
from fedjax_het.modes import in_float32
from fedjax_het.program.where import Where
from fedjax_het.tables import reproduce

QUICK = {"fedavg", "aaggff_s"}
EVERY_METHOD = [pytest.param(name, marks=[] if name in QUICK else in_other_tests(name)) for name in cases()]


@contextlib.contextmanager
def option(name, value):
  """JAX's option of this name, for all threads."""
  before = getattr(jax.config, name)
  jax.config.update(name, value)
  try:
    yield
  finally:
    jax.config.update(name, before)


def trained(method, **settings):
  """A small run of a method of the table: (state, infos, metrics) on the host."""
  cohort = len(SIZES) if method in EVERYBODY else 9
  model = fh.models.two_nn((4,), 3, hidden=5)
  result = fh.run(
    algorithm(cases()[method], model, batch_size=6), federation(SIZES), rounds=ROUNDS, cohort_size=cohort,
    key=jax.random.key(5), **{"eval_every": 2, "devices": 2, **settings},
  )  # fmt: skip
  state = result.state._replace(key=jax.random.key_data(result.state.key))
  return jax.tree.map(np.asarray, (state, result.infos, result.evaluation))


def same(found, wanted):
  chex.assert_trees_all_equal_dtypes(found, wanted)
  chex.assert_trees_all_equal(found, wanted)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_x64_with_strict_promotion_changes_no_bit(method):
  plain = trained(method)
  with option("jax_enable_x64", True), option("jax_numpy_dtype_promotion", "strict"):
    same(trained(method), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name, value", [("jax_enable_x64", True), ("jax_numpy_dtype_promotion", "strict")])
@pytest.mark.parametrize("method", with_every(["superfed_mm", "fedevg"], "superfed_mm"))
def test_either_of_x64_and_strict_promotion_changes_no_bit(method, name, value):
  plain = trained(method)
  with option(name, value):
    same(trained(method), plain)


@pytest.mark.slow
def test_x64_changes_no_bit_of_what_is_streamed_from_the_host():
  plain = trained("apfl")
  with option("jax_enable_x64", True):
    same(trained("apfl", device_rows=sum(sorted(SIZES)[-9:]) * 2, device_states=9), plain)


@pytest.mark.slow
def test_x64_changes_no_bit_of_a_sweep():
  def sweep():
    model = fh.models.two_nn((4,), 3, hidden=5)
    result = fh.sweep(
      lambda lr: fh.federated(fh.fedavg(model, lr=lr, epochs=1)), {"lr": [0.1, 0.2]}, (0, 1),
      data=federation(SIZES), rounds=2, cohort_size=4, devices=2,
    )  # fmt: skip
    return jax.tree.map(np.asarray, (result.state.broadcast, result.infos, result.history))

  plain = sweep()
  with option("jax_enable_x64", True):
    same(sweep(), plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(["jax_enable_x64", "jax_debug_infs"], "jax_enable_x64"))
def test_an_option_changes_no_figure_of_a_launched_run_with_noisy_labels(name, tmp_path):
  config = small(rounds=2, eval_every=2, label_noise={"name": "pair", "ratio": 0.4})
  plain = start(config, str(tmp_path / "plain"))
  assert 0.3 < plain["label_noise"]["changed"] < 0.5
  with option(name, True):
    assert timeless(start(config, str(tmp_path / "other"))) == timeless(plain)
  assert records(tmp_path / "other") == records(tmp_path / "plain")


@pytest.mark.slow
def test_x64_changes_no_figure_of_a_table(tmp_path):
  table = tiny_table(tmp_path)
  runs = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)

  def figures(folder):
    found = reproduce.reproduce(table, runs, tmp_path / folder, Where(devices=1))
    return [(entry.cell.text, entry.ours) for entry in found]

  plain = figures("plain")
  with option("jax_enable_x64", True):
    assert figures("other") == plain
  assert plain[0][1][0].mean > 0


def test_x64_is_off_within_the_scope_alone():
  with option("jax_enable_x64", True):
    with in_float32():
      assert jnp.ones(1).dtype == jnp.float32 and jnp.arange(2).dtype == jnp.int32
      assert jnp.ones(1, jnp.float64).dtype == jnp.float64  # asked for by name
    assert jnp.ones(1).dtype == jnp.float64


def test_data_are_held_in_32_bits_with_x64():
  with option("jax_enable_x64", True):
    data = fh.data.from_arrays(jax.random.key(0), np.ones((20, 3)), np.arange(20) % 2, num_clients=2)
    assert (data.x.dtype, data.y.dtype, as_held(np.arange(3)).dtype) == (np.float32, np.int32, np.int32)


class Wide(nn.Module):
  """A perceptron that computes in the dtype that it is told."""

  dtype: object

  @nn.compact
  def __call__(self, x):
    x = nn.tanh(nn.Dense(4, dtype=self.dtype)(x))
    SEEN.add(x.dtype)
    return nn.Dense(3, dtype=self.dtype)(x)


SEEN: set = set()


def test_a_model_that_says_float64_computes_in_it():
  def run(dtype):
    SEEN.clear()
    model = fh.models.from_flax(Wide(dtype), (4,), 3)
    result = fh.run(
      fh.federated(fh.fedavg(model, epochs=EPOCHS)), federation(SIZES), rounds=2, cohort_size=4,
      key=jax.random.key(0), devices=1,
    )  # fmt: skip
    return result.state.broadcast.params, set(SEEN)

  narrow, _ = run(jnp.float32)
  with option("jax_enable_x64", True):
    wide, seen = run(jnp.float64)
  assert seen == {np.dtype(np.float64)}
  chex.assert_trees_all_equal_dtypes(wide, narrow)  # parameters are averaged in float32
  chex.assert_trees_all_close(wide, narrow, rtol=1e-4, atol=1e-6)
  assert any((a != b).any() for a, b in zip(jax.tree.leaves(wide), jax.tree.leaves(narrow)))


SHAPES = {
  "m5": (8000, 1), "stacked_lstm": (20,), "gpt": (20,), "text_pair": (2, 16), "mobilenet": (48, 48, 3),
  "bert": {"tokens": (16,), "mask": (16,)}, "distilbert": {"tokens": (16,), "mask": (16,)},
  "minilm": {"tokens": (16,), "mask": (16,)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  with_every(
    sorted(MODELS),
    "m5",
    "stacked_lstm",
    "bert",
    "gpt",
    "mobilenet_v3_small",
    "mobilevit",
    "resnet10",
    "energy_mlp",
  ),
)
def test_a_model_of_the_zoo_stays_float32_with_x64(name):
  shape = SHAPES.get(name, (32, 32, 3))
  whole = name in ("stacked_lstm", "gpt", "text_pair", "bert", "distilbert", "minilm")
  dtype = np.int32 if whole else np.float32
  is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
  x = jax.tree.map(lambda own: jax.ShapeDtypeStruct((2, *own), dtype), shape, is_leaf=is_shape)
  with option("jax_enable_x64", True):
    model = make(name, shape, 5)
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = [params, jax.eval_shape(lambda p, x: model.logits(model.joined(p, model.stats), x), params, x)]
    if model.train is not None:
      real = jax.ShapeDtypeStruct((2,), np.float32)
      found.append(jax.eval_shape(model.train, params, model.stats, x, real, jax.random.key(0)))
  assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}


# The search for NaNs and infinities.


@pytest.mark.parametrize("name", ["jax_debug_nans", pytest.param("jax_debug_infs", marks=pytest.mark.slow)])
def test_a_healthy_run_has_nothing_that_the_search_finds(name):
  plain = trained("fedavg")
  assert np.isnan(plain[1].losses).all()  # static mixing asks for none
  with option(name, True):
    same(trained("fedavg"), plain)


def ill(x):
  """NaN, as a slip in a model of a user's own makes it."""
  return jnp.log(-1.0 - jnp.abs(x))


def ill_run(**settings):
  model = fh.Model(lambda key: {"w": jnp.ones((4, 3))}, lambda params, x: ill(x @ params["w"]), num_classes=3)
  return fh.run(
    fh.federated(fh.fedavg(model, epochs=1)), federation([3, 2]), rounds=1, cohort_size=2,
    key=jax.random.key(0), devices=1, **settings,
  )  # fmt: skip


def test_the_search_finds_a_nan_of_a_model():
  with option("jax_debug_nans", True), pytest.raises(FloatingPointError, match=r"nan\) encountered in the"):
    ill_run()


def test_without_jit_the_search_says_where():
  with (
    option("jax_debug_nans", True),
    option("jax_disable_jit", True),
    pytest.raises(FloatingPointError) as e,
  ):
    ill_run()
  assert any(entry.name == "ill" for entry in e.traceback)


# Without jit.


@pytest.mark.slow  # half a minute each; conformance has each method's update
@pytest.mark.parametrize("method", with_every(cases(), "superfed_mm"))
@pytest.mark.filterwarnings("ignore:No client is nearest", "ignore:Regions of")  # three clients, small ones
def test_without_jit_a_run_is_the_compiled_one_but_for_rounding(method):
  sizes = (5, 1, 3)

  def run():
    model = fh.models.two_nn((4,), 3, hidden=3)
    made = algorithm(cases()[method], model, rounds=2, num_clients=len(sizes), batch_size=6, epochs=1)
    result = fh.run(made, federation(sizes), rounds=2, cohort_size=3, key=jax.random.key(1), devices=1)
    return jax.tree.map(np.asarray, (result.state.broadcast, result.infos.clients, result.evaluation))

  compiled = run()
  with option("jax_disable_jit", True):
    eager = run()
  chex.assert_trees_all_close(eager, compiled, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_without_jit_a_sweep_is_the_compiled_one_but_for_rounding():
  def sweep():
    model = fh.models.two_nn((4,), 3, hidden=3)
    result = fh.sweep(
      lambda lr: fh.federated(fh.fedavg(model, lr=lr, epochs=1)), {"lr": [0.1, 0.2]},
      data=federation((5, 1, 3)), rounds=1, cohort_size=1, devices=1,
    )  # fmt: skip
    return jax.tree.map(np.asarray, (result.state.broadcast, result.infos))

  compiled = sweep()
  with option("jax_disable_jit", True):
    chex.assert_trees_all_close(sweep(), compiled, rtol=1e-3, atol=1e-4)
