"""The plane through three models beside NumPy's, and the surface of the regularised loss on it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import small
from small_parts import federation, float64, linear, linear_logits, softmax

from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.landscape import loss_surface, plot_surfaces
from fedjax_het.studies.plane import plane_through, squared_norms

MODEL = linear()
MODELS = [
  {"fc": {"kernel": MODEL.init(jax.random.key(i))["fc"]["kernel"], "bias": jnp.arange(3.0) * (i - 1.0)}}
  for i in range(3)
]


def flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(float64(tree))])


def test_the_basis_is_orthonormal_and_the_models_are_where_they_should_be():
  basis, corners = plane_through(MODELS[0], MODELS[1:])
  u, v = map(flat, basis)
  np.testing.assert_allclose([[u @ u, u @ v], [v @ u, v @ v]], np.eye(2), atol=1e-6)
  q, r = np.linalg.qr(np.stack([flat(MODELS[i]) - flat(MODELS[0]) for i in (1, 2)], 1))
  np.testing.assert_allclose(corners[1:], (np.sign(np.diag(r))[:, None] * r).T, atol=1e-5)
  np.testing.assert_allclose(np.stack([u, v], 1), q * np.sign(np.diag(r)), atol=1e-6)
  for own, (a, b) in zip(MODELS, corners):
    np.testing.assert_allclose(flat(MODELS[0]) + a * u + b * v, flat(own), atol=1e-5)
  shifts = np.array([[0.3, -1.0], [0.0, 0.0]])
  wanted = [((flat(MODELS[0]) + a * u + b * v) ** 2).sum() for a, b in shifts]
  np.testing.assert_allclose(squared_norms(MODELS[0], basis, shifts), wanted, rtol=1e-6)


def test_the_regularised_surface_is_numpys():
  """Every point of the grid; its middle is θ, and the farthest model lies at the span of 1."""
  data, l2, span = federation((7, 3, 2), tests=(4, 1, 3)), 0.3, 1.5
  line, losses = loss_surface(
    jax.random.key(3), MODEL.task, MODEL.apply, MODELS[0], data, points=3, span=span, l2=l2, others=MODELS[1:]
  )
  (u, v), corners = plane_through(MODELS[0], MODELS[1:])
  np.testing.assert_allclose(line, span * np.abs(corners).max() * np.array([-1.0, 0.0, 1.0]))
  rows = data.test.rows()
  x, y = np.asarray(data.x, np.float64)[rows], np.asarray(data.y)[rows]
  for i, a in enumerate(line):
    for j, b in enumerate(line):
      moved = jax.tree.map(lambda p, d, e: p + a * d + b * e, *map(float64, (MODELS[0], u, v)))
      p = softmax(linear_logits(moved, x))
      wanted = -np.log(p[np.arange(len(y)), y]).mean() + 0.5 * l2 * (flat(moved) ** 2).sum()
      np.testing.assert_allclose(losses[i, j], wanted, rtol=1e-5)


def test_planes_that_cannot_be():
  line = [jax.tree.map(lambda a, b, by=by: a + by * (b - a), *MODELS[:2]) for by in (1.0, -2.0)]
  with pytest.raises(SettingError, match="on one line with the model"):
    plane_through(MODELS[0], line)
  with pytest.raises(SettingError, match="equal to the model"):
    plane_through(MODELS[0], MODELS[:2])
  for changes, message in (
    (dict(others=("a.npz",)), "landscape.others = .*not the two other models"),
    (dict(others=("a.npz", "b.npz")), "landscape.others = 'a.npz': no such file"),
    (dict(l2=-1.0), "landscape.l2 = -1.0"),
  ):
    with pytest.raises(SettingError, match=message):
      plan(small(algorithm={"name": "fedavg"}, landscape=changes))


@pytest.mark.slow
def test_a_run_draws_the_plane_through_two_other_runs(tmp_path):
  def config(**changes):
    return small(rounds=2, algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, **changes)

  for seed in (1, 2):
    experiment.run_experiment(config(seed=seed), str(tmp_path / str(seed)), Where(devices=1))
  others = tuple(str(tmp_path / str(seed) / "model.npz") for seed in (1, 2))
  whole = config(landscape={"points": 3, "others": others, "l2": 1e-2})
  found = experiment.run_experiment(whole, str(tmp_path / "3"), Where(devices=1))["landscape"]
  with np.load(tmp_path / "3" / "landscape.npz") as stored:
    np.testing.assert_allclose(found["models"], stored["models"])
    assert stored["models"].shape == (3, 2) and stored["line"][-1] == pytest.approx(
      np.abs(stored["models"]).max()
    )
    assert found["center"] == stored["losses"][1, 1] and found["l2"] == 1e-2
  assert (tmp_path / "3" / "figures" / "landscape.png").stat().st_size > 10_000
  plot_surfaces({"one": tmp_path / "3" / "landscape.npz"}, tmp_path / "again.png")
  other = config(landscape={"points": 3, "others": others})
  other.model = {"name": "two_nn"}
  with pytest.raises(SettingError, match="not those of this two_nn"):
    experiment.build(plan(other))
