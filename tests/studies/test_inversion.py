"""The study of gradient inversion: what is minimised, images found and hidden, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import small, start

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.studies.inversion import Found, Inversion, attacked, invert, plot_inversion

SHAPE = (2, 3, 4, 1)


@pytest.mark.slow
def test_the_objective_is_the_cosine_and_the_total_variation():
  """With one step of a rate that is next to nothing the images are the first ones."""
  rng = np.random.default_rng(0)
  weights = rng.normal(size=(12, 5))
  gradient = lambda x: {"w": x.reshape(2, 12).T @ jnp.ones((2, 5)) * jnp.asarray(weights)}  # noqa: E731
  update = {"w": jnp.asarray(rng.normal(size=(12, 5)), jnp.float32)}
  made, value = invert(jax.random.key(0), gradient, update, SHAPE, steps=1, rate=1e-12, tv=0.3)
  x = np.asarray(made, np.float64)
  g, u = x.reshape(2, 12).T @ np.ones((2, 5)) * weights, np.asarray(update["w"], np.float64)
  rough = np.abs(np.diff(x, axis=1)).mean() + np.abs(np.diff(x, axis=2)).mean()
  cosine = (g * -u).sum() / np.linalg.norm(g) / np.linalg.norm(u)
  assert float(value) == pytest.approx(1 - cosine + 0.3 * rough, rel=1e-5)
  assert x.min() >= 0 and x.max() <= 1 and x.std() > 0.1


def digits_of(**changes):
  return build(plan(small(algorithm={"name": "fedavg"}, local__momentum=0.0, **changes)))


def found_of(built, **settings):
  engine = fh.Engine(built.algorithm, built.data, 5, devices=1)
  state = engine.init(built.key)
  return attacked(jax.random.key(1), built.algorithm, built.model, built.data, state, **settings)


@pytest.mark.slow
def test_an_upload_of_one_image_shows_it_and_noise_hides_it():
  plain = found_of(digits_of(), client=3, steps=800)
  assert plain.psnr > 20 and plain.objective < 0.05
  noised = found_of(digits_of(local__dp_clip=1.0, local__dp_noise_multiplier=1.0), client=3, steps=800)
  np.testing.assert_array_equal(noised.images, plain.images)
  assert noised.psnr < 10
  clipped = found_of(digits_of(local__dp_clip=1.0, local__dp_noise_multiplier=0.0), client=3, steps=800)
  assert clipped.psnr > 20  # a clip alone hides nothing


def test_figures_of_found_images():
  images, made = np.zeros((2, 2, 2, 1)), np.stack([np.full((2, 2, 1), 0.1), np.full((2, 2, 1), 0.01)])
  found = Found(images, made, 0.0)
  assert found.mse == pytest.approx((0.01 + 0.0001) / 2) and found.psnr == pytest.approx((20 + 40) / 2)


def test_the_picture(tmp_path):
  rng = np.random.default_rng(0)
  path = plot_inversion(
    Found(rng.random((9, 8, 8, 1)), rng.random((9, 8, 8, 1)), 0.1), tmp_path / "inversion.png", title="a run"
  )
  assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.slow
def test_a_launched_run_has_figures_and_a_picture(tmp_path):
  config = small(algorithm={"name": "fedavg"}, rounds=2, inversion={"examples": 2, "steps": 20})
  summary = start(config, str(tmp_path))
  assert {*summary["inversion"]} == {"examples", "objective", "mse", "psnr"}
  assert summary["inversion"]["examples"] == 2 and (tmp_path / "figures" / "inversion.png").exists()


def test_what_cannot_be_inverted_is_refused():
  part = fh.fedavg(fh.models.two_nn((8, 8, 1), 10, hidden=4))
  for needs, task in (({"uploads_model": False}, part.task), ({}, fh.tasks.regression())):
    other = part._replace(needs=part.needs._replace(**needs), task=task)
    with pytest.raises(SettingError, match=r"inversion = .*uploads no update of a classifier"):
      Inversion.check({"examples": 1}, other, False)
  with pytest.raises(SettingError, match=r"examples.*= 0"):
    plan(small(algorithm={"name": "fedavg"}, inversion={"examples": 0}))
  for changes, said in (
    ({"algorithm": {"name": "fedper"}}, "does not send the whole model alone"),
    ({"inversion": {"examples": 10_000}}, r"inversion\.examples = 10000: client 0 has"),
    ({"inversion": {"client": 999}}, "client 999 has 0 training images"),
  ):
    with pytest.raises(SettingError, match=said):
      build(plan(small(**{"algorithm": {"name": "fedavg"}, "inversion": {"examples": 1}, **changes})))
