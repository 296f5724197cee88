"""The loss around the global model: directions by filter, the surface beside NumPy's, its pictures."""

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from launching import small
from small_parts import federation, float64, linear, linear_logits, mlp, softmax

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.experiment.recorded import timeless
from fedjax_het.program.where import Where
from fedjax_het.studies import landscape
from fedjax_het.studies.landscape import Landscape, filter_normalised, loss_surface, plot_surfaces

KEY = jax.random.key(0)


def test_every_filter_is_as_long_as_the_models():
  """Of a dense kernel a column, of a convolution's all that makes one channel; biases and scales stay."""
  keys = jax.random.split(KEY, 3)
  params = {
    "conv": {"kernel": jax.random.normal(keys[0], (3, 3, 2, 4)) * jnp.arange(4.0), "bias": jnp.ones(4)},
    "norm": {"scale": jnp.ones(4)},
    "fc": {"kernel": 5.0 * jax.random.normal(keys[1], (6, 3)), "bias": jnp.ones(3)},
  }
  found = filter_normalised(keys[2], params)
  for layer, shape in (("conv", (18, 4)), ("fc", (6, 3))):
    own, direction = (np.asarray(tree[layer]["kernel"]).reshape(shape) for tree in (params, found))
    np.testing.assert_allclose(np.linalg.norm(direction, axis=0), np.linalg.norm(own, axis=0), rtol=1e-5)
    assert not np.allclose(direction, own) and not found[layer]["bias"].any()
  assert not found["norm"]["scale"].any()
  cosine = (found["fc"]["kernel"] * params["fc"]["kernel"]).sum(0) / (params["fc"]["kernel"] ** 2).sum(0)
  assert np.abs(cosine).max() < 0.99 and len(np.unique(np.round(np.asarray(cosine), 3))) == 3
  other = filter_normalised(keys[0], params)["fc"]["kernel"]
  assert not np.allclose(found["fc"]["kernel"], other)


@pytest.mark.parametrize("part", ["test", pytest.param("train", marks=pytest.mark.slow)])
def test_the_surface_is_numpys(part, monkeypatch):
  """Every example of every client once, also where the last block and the last device are not full."""
  monkeypatch.setattr(landscape, "rows_at_once", lambda outputs: 5)
  model, data = linear(), federation((7, 3, 2), tests=(4, 1, 3))
  params = {"fc": {"kernel": model.init(KEY)["fc"]["kernel"], "bias": jnp.arange(3.0)}}
  line, losses = loss_surface(
    jax.random.key(3), model.task, model.apply, params, data, points=3, span=0.5, part=part
  )
  one, other = (float64(filter_normalised(jax.random.fold_in(jax.random.key(3), i), params)) for i in (0, 1))
  rows = getattr(data, part).rows()
  x, y, start = np.asarray(data.x, np.float64)[rows], np.asarray(data.y)[rows], float64(params)
  np.testing.assert_allclose(line, [-0.5, 0.0, 0.5])
  for i, a in enumerate(line):
    for j, b in enumerate(line):
      moved = jax.tree.map(lambda p, d, e: p + a * d + b * e, start, one, other)
      p = softmax(linear_logits(moved, x))
      np.testing.assert_allclose(losses[i, j], -np.log(p[np.arange(len(y)), y]).mean(), rtol=1e-5)
  some = loss_surface(KEY, model.task, model.apply, params, data, points=3, part=part, examples=1)[1][1, 1]
  p = softmax(linear_logits(start, x))
  assert np.isclose(some, -np.log(p[np.arange(len(y)), y]), rtol=1e-5, atol=1e-6).sum() == 1


def test_mistakes_are_named():
  def config(algorithm="fedavg", **settings):
    return small(algorithm={"name": algorithm}, landscape=settings)

  plan(config())
  plan(config(points=5, span=0.5, part="train", examples=10))
  for changes, message in (
    (dict(points=4), "landscape.points = 4: has no middle"), (dict(points=1), "points"),
    (dict(span=0.0), "landscape.span"), (dict(part="tests"), "Did you mean 'test'"),
    (dict(examples=0), "landscape.examples"), (dict(size=3), "landscape.size = 3"),
    (dict(points="many"), "points"), (dict(points=3, algorithm="fedper"), "fedper has no global model"),
  ):  # fmt: skip
    with pytest.raises(SettingError, match=message):
      plan(config(**changes))
  model = mlp()
  with pytest.raises(SettingError, match="part = 'valid': no client has examples"):  # a thousandth of twenty
    experiment.build(plan(small(landscape={"points": 3, "part": "valid"}, valid_fraction=1e-3)))
  with pytest.raises(SettingError, match="no client has examples"):
    loss_surface(KEY, model.task, model.apply, model.init(KEY), federation((3, 4)), part="valid")


def test_figures_that_are_infinite_are_shown_as_none():
  assert "4.0000, at most –" in str(Landscape.rows({"landscape": {"center": 4.0, "most": None}}))


@pytest.mark.slow
def test_surfaces_side_by_side_share_their_colours(tmp_path):
  line = np.linspace(-1, 1, 5)
  bowl = 0.1 + line[:, None] ** 2 + 3 * line**2
  for name, losses in (("a", bowl), ("b", 5 * bowl), ("c", np.where(bowl > 3.5, np.inf, bowl))):
    np.savez(tmp_path / f"{name}.npz", line=line, losses=losses)

  def drawn(*names):
    surfaces = {f"run {i}": tmp_path / f"{name}.npz" for i, name in enumerate(names)}
    return matplotlib.image.imread(plot_surfaces(surfaces, tmp_path / "x.png", title="Two"))

  pair, twice, open_ = drawn("a", "b"), drawn("a", "a"), drawn("c")
  assert pair.shape[1] > 1.5 * open_.shape[1] and open_[..., :3].std() > 0.02
  quarter = pair.shape[1] // 4
  assert (pair[:, :quarter] != twice[:, :quarter]).any()  # the first changes with the second


@pytest.mark.slow
def test_a_run_that_is_asked_draws_its_landscape(tmp_path, capsys):
  """Its middle is the global model's loss over all test examples; other figures are as without it."""
  config = small(rounds=2, eval_every=2, algorithm={"name": "fedavg"}, model={"name": "logistic_regression"})
  without = experiment.run_experiment(config, str(tmp_path / "without"), Where(devices=1))
  config.landscape = {"points": 5, "span": 2.0}
  summary = experiment.run_experiment(config, str(tmp_path / "with"), Where(devices=1))
  found = summary.pop("landscape")
  assert timeless(summary) == timeless(without)
  with np.load(tmp_path / "with" / "landscape.npz") as stored:
    assert stored["losses"].shape == (5, 5) and stored["line"].tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert found["center"] == stored["losses"][2, 2] < found["most"] == stored["losses"].max()
  built = experiment.build(plan(config))
  result = fh.run(built.algorithm, built.data, rounds=2, cohort_size=5, key=built.key, devices=1)
  sizes = np.asarray(built.data.test.size)
  own = result.clients["global"]["loss"][sizes > 0]
  assert found["center"] == pytest.approx((sizes[sizes > 0] * own).sum() / sizes.sum(), rel=1e-4)
  assert (tmp_path / "with" / "figures" / "landscape.png").stat().st_size > 10_000
  assert "loss of the global model" in capsys.readouterr().out


def test_a_page_is_told_which_models_the_plane_goes_through(tmp_path):
  path = tmp_path / "landscape.npz"
  for more, models in (
    ({}, None),
    ({"models": np.eye(3, 2)}, [[1, 0], [0, 1], [0, 0]]),
    ({"models": np.eye(3)}, None),
  ):
    np.savez(path, line=np.arange(3.0), losses=np.ones((3, 3)), **more)
    found = Landscape.on_page(tmp_path)["landscape"]
    assert found["models"] == models and found["line"] == [0, 1, 2]
