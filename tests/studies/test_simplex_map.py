"""The simplex of models as a study: regions as polygons, the grid, its evaluation, the pictures."""

import types

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from matplotlib.path import Path as Outline
from small_parts import SIZES, mlp

import fedjax_het as fh
from fedjax_het.clients.regions import Regions
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.parts import Simplex
from fedjax_het.studies import simplex_plots
from fedjax_het.studies.simplex import SimplexMap, grid, on_grid
from fedjax_het.studies.simplex_plots import corners, region
from fedjax_het.studies.study import Moment

K = len(SIZES)


def offering(simplex):
  """Stands for a client part with this simplex."""
  return types.SimpleNamespace(studies=fh.Studies(simplex=simplex))


@pytest.mark.parametrize("radius", [0.1, 0.5, 1.2, 3.0])
def test_a_region_s_polygon_holds_what_the_region_holds(radius):
  rng = np.random.default_rng(0)
  for center in rng.dirichlet(np.ones(3), 5):
    shape = region(center, radius)
    assert (shape > -1e-12).all() and np.allclose(shape.sum(1), 1.0)
    points = rng.dirichlet(np.ones(3), 300)
    distance = np.abs(points - center).sum(1)
    inside = Outline(shape @ corners(3)).contains_points(points @ corners(3))
    clear = np.abs(distance - radius) > 1e-6
    np.testing.assert_array_equal(inside[clear], (distance < radius)[clear])


def test_the_grid_is_all_multiples():
  for count, divisions, size in ((2, 10, 11), (3, 6, 28)):
    points = grid(count, divisions)
    assert points.shape == (size, count) and len({tuple(own) for own in points.tolist()}) == size
    np.testing.assert_allclose(points.sum(1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(points * divisions, np.round(points * divisions), atol=1e-5)


def regions(endpoints) -> Regions:
  rng = np.random.default_rng(1)
  clusters = np.arange(K) % 4
  centers = rng.dirichlet(np.ones(endpoints), 4).astype(np.float32)[clusters]
  return Regions(centers, 0.3, rng.dirichlet(np.ones(endpoints), K).astype(np.float32), clusters)


def test_the_part_s_simplex_is_the_server_s_models():
  client = fh.sosicfl(mlp(), regions(3))
  broadcast, alpha = client.init_broadcast(jax.random.key(0)), np.float32([0.2, 0.7, 0.1])
  found = client.studies.simplex.at(broadcast, jnp.asarray(alpha))
  wanted = np.tensordot(alpha, np.asarray(broadcast.params["fc2"]["kernel"]), 1)
  np.testing.assert_allclose(found["fc2"]["kernel"], wanted, rtol=1e-5, atol=1e-6)
  of = on_grid(3)(client)
  assert len(of.studies.lambdas) == 28 and on_grid(3) is on_grid(3)
  place = 11
  own = of.personalize(broadcast, None, None, None, jnp.float32(of.studies.lambdas[place]))
  wanted = client.studies.simplex.at(broadcast, jnp.asarray(grid(3, 6)[place]))
  np.testing.assert_array_equal(own["fc2"]["kernel"], wanted["fc2"]["kernel"])
  assert fh.fedavg(mlp()).studies.simplex is None


def test_clients_are_drawn_with_what_they_are_by_and_without_whole_regions(tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(simplex_plots, "save", lambda figure, path: seen.append(figure))
  for endpoints, ends in ((2, [4, 0]), (3, [9, 1])):  # patches: the triangle's, two a region; rows of figures
    for radius, patches in zip((1.9, 2.0), ends):
      own = Simplex(lambda *_: None, *regions(endpoints)._replace(radius=radius))
      simplex_plots.plot_clients(own, tmp_path / "a.png", title="t", epsilon=None if radius < 2 else 0.5)
      (ax,) = seen[-1].axes
      bars = sum(len(bars) for bars in ax.containers)
      assert len(ax.patches) - bars == patches
  titles = [figure.get_suptitle() for figure in seen]
  assert titles == 2 * ["t, by their label counts", "t, by their label counts with noise of ε = 0.5"]
  above = [figure.axes[0].get_title() for figure in seen]
  assert above == 2 * ["", "every region is the whole simplex"]


@pytest.mark.parametrize("endpoints", [2, 3])
def test_whole_regions_are_not_drawn_on_models_either(endpoints, tmp_path, monkeypatch):
  seen, points = [], len(grid(endpoints, 3))
  monkeypatch.setattr(simplex_plots, "save", lambda figure, path: seen.append(figure))
  values = np.linspace(0.2, 0.8, points).tolist()
  found = {"metric": "top1", "alphas": grid(endpoints, 3).tolist(), "all": values, "clusters": {0: values}}
  plot = simplex_plots.plot_line if endpoints == 2 else simplex_plots.plot_triangles
  for radius in (1.9, 2.0):
    plot(found, Simplex(lambda *_: None, *regions(endpoints)._replace(radius=radius)), tmp_path / "a.png")
  drawn = [sum(len(ax.patches) for ax in figure.axes[:2]) for figure in seen]
  assert drawn[0] - drawn[1] == 1
  if endpoints == 2:
    labels = [figure.legends[0].get_texts()[1].get_text() for figure in seen]
    assert labels == ["cluster 0, its region shaded", "cluster 0"]


def test_one_endpoint_has_no_pictures():
  part = lambda endpoints: offering(Simplex(lambda *_: None, *regions(endpoints)))  # noqa: E731
  fits = lambda client: SimplexMap.fits(types.SimpleNamespace(algorithm=types.SimpleNamespace(client=client)))  # noqa: E731
  assert not fits(part(1)) and fits(part(2)) and not fits(offering(None))


def test_dishonest_clients_do_not_count():
  client = offering(Simplex(lambda *_: None, *regions(2)))
  run = types.SimpleNamespace(algorithm=types.SimpleNamespace(client=client))
  values, liars = np.random.default_rng(2).random((K, 11)), np.arange(K) < 3
  seen = Evaluation({"top1": values[:, :1]}, {})
  nothing = lambda *_: None  # noqa: E731
  now = Moment(
    1, Evaluations(seen, headlines=("top1",), dishonest=liars), False, nothing, nothing,
    lambda of: Evaluation({"top1": values}, {}),
  )  # fmt: skip
  found = SimplexMap(run).section(now)["simplex"]
  np.testing.assert_allclose(found["all"], values[3:].mean(0))
  np.testing.assert_allclose(found["clusters"][1], values[5::4].mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("endpoints, files", [(2, 2), (3, 2), (5, 1)])
def test_section_rows_and_pictures(tmp_path, monkeypatch, endpoints, files):
  titles, save = [], simplex_plots.save
  kept = lambda figure, path: titles.append(figure.get_suptitle()) or save(figure, path)  # noqa: E731
  monkeypatch.setattr(simplex_plots, "save", kept)
  owned = regions(endpoints)
  client = offering(Simplex(lambda *_: None, *owned))
  run = types.SimpleNamespace(
    algorithm=types.SimpleNamespace(client=client), writes=True, figures=tmp_path, title="sosicfl on nothing",
    config=types.SimpleNamespace(client=types.SimpleNamespace(settings={"epsilon": 0.25})),
  )  # fmt: skip
  assert SimplexMap.fits(run)
  points = len(grid(endpoints, {2: 10, 3: 6}.get(endpoints, 1)))
  values = np.random.default_rng(2).random((K, points))
  values[3] = np.nan  # a client without test examples
  evaluations = Evaluations(Evaluation({"top1": values[:, :1]}, None), headlines=("top1",))
  asked = []
  nothing = lambda *_: None  # noqa: E731
  now = Moment(
    1, evaluations, False, nothing, nothing, lambda of: asked.append(of) or Evaluation({"top1": values}, None)
  )
  study = SimplexMap(run)
  study.draw_first()
  assert titles == ["sosicfl on nothing, by their label counts with noise of ε = 0.25"]
  section = study.section(now)
  study.draw([], section)
  assert len([path for path in tmp_path.iterdir() if path.stat().st_size > 5000]) == files
  if endpoints == 5:
    assert section == {} and not asked and SimplexMap.rows(section) is None
    return
  assert asked == [on_grid(endpoints)]
  found = section["simplex"]
  np.testing.assert_allclose(found["all"], np.nanmean(values, 0))
  assert {*found["clusters"]} == {0, 1, 2}
  np.testing.assert_allclose(found["clusters"][1], values[owned.clusters == 1].mean(0))
  assert f"best {100 * np.nanmean(values, 0).max():.2f} at α" in str(SimplexMap.rows(section))
  assert study.section(now._replace(diverged=True)) == {}
  picture = tmp_path / "simplex.png"
  wide = matplotlib.image.imread(picture).shape[1]
  nothing = [np.nan] * points
  study.draw([], {"simplex": found | {"clusters": found["clusters"] | {1: nothing}}})  # without test examples
  if endpoints == 3:  # a triangle less
    assert matplotlib.image.imread(picture).shape[1] < wide
  picture.unlink()
  study.draw([], {"simplex": found | {"all": nothing, "clusters": {}}})
  assert not picture.exists()
