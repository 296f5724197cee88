"""Pictures of runs: the learning curve, the clients side by side, the line of λ."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fedjax_het.studies import Curve, client_metrics, lambda_line, plots, unseen
from fedjax_het.studies.client_metrics import ClientMetrics, accuracy_over_clients
from fedjax_het.studies.lambda_line import lambda_curve
from fedjax_het.studies.plots import learning_curve


def check_png(path):
  pixels = matplotlib.image.imread(path)
  assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
  assert pixels.shape[0] > 400 and pixels.shape[1] > 600 and pixels[..., :3].std() > 0.02
  return pixels


@pytest.mark.slow
def test_learning_curve(tmp_path):
  """A panel a metric; a curve without numbers is not drawn, and one with holes is."""
  rounds = np.arange(0, 400, 10)
  rise = 1 - np.exp(-rounds / 100)
  mean = Curve("top1", "personalized", rise, rise - 0.1, rise + 0.1)
  loss = Curve("training_loss", "cohort", 3.0 * np.exp(-rounds / 50))
  both = learning_curve(rounds, [mean, Curve("top1", "global", rise / 2), loss], tmp_path / "new" / "a.png")
  holes = np.where(rounds == 30, np.nan, rise)
  nothing = Curve("drift", "cohort", np.full(len(rounds), np.nan))
  one = learning_curve(rounds, [mean._replace(values=holes), loss, nothing], tmp_path / "b.png")
  assert check_png(both).shape == check_png(one).shape and (check_png(both) != check_png(one)).any()
  more = learning_curve(rounds, [mean, loss, nothing._replace(values=rise)], tmp_path / "c.png")
  assert check_png(more).shape[0] > check_png(both).shape[0]
  marked = learning_curve(rounds, [mean, loss], tmp_path / "f.png", milestones={"L": 200})
  beyond = learning_curve(rounds, [mean, loss], tmp_path / "g.png", milestones={"L": 390, "t": 0})
  plain = learning_curve(rounds, [mean, loss], tmp_path / "h.png")
  assert (check_png(marked) != check_png(plain)).any() and (check_png(beyond) == check_png(plain)).all()
  check_png(learning_curve([1], [Curve("loss", "global", np.ones(1))], tmp_path / "d.png"))
  assert learning_curve([], [], tmp_path / "e.png").stat().st_size > 0


def test_the_learning_curve_of_the_lines_of_metrics(tmp_path):
  """The first metric's mean, worst and best tenth of each model there is; nothing, before there is a line."""

  def line(value, **models):
    figures = {"mean": value, "worst10": value - 0.1, "best10": value + 0.1}
    return {"metrics": {name: {"auroc": figures, "top1": figures} for name in models}}

  own = ClientMetrics(None)
  lines = [{"round": 0}, line(0.5, personalized=1, **{"global": 1}), line(0.6, personalized=1)]
  (only,) = own.curves(lines)
  assert (only.metric, only.of) == ("auroc", "personalized") and own.curves(lines[:1]) == []
  np.testing.assert_allclose(
    [only.low, only.values, only.high], [[np.nan, v, v + 0.1] for v in (0.4, 0.5, 0.6)]
  )
  assert [curve.of for curve in own.curves(lines[:2])] == ["personalized", "global"]


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_accuracy_over_clients(tmp_path, k):
  x = np.random.default_rng(k).beta(8, 2, k)
  holes = np.concatenate([x, [np.nan]])
  one = check_png(accuracy_over_clients({"personalized": x, "global": x**2}, tmp_path / "a.png"))
  two = check_png(accuracy_over_clients({"personalized": holes, "global": holes**2}, tmp_path / "b.png"))
  np.testing.assert_array_equal(one, two)


def test_accuracy_over_clients_of_other_metrics_and_models(tmp_path):
  many = {f"run {i}": np.linspace(0, i, 20) for i in range(8)}
  check_png(accuracy_over_clients(many, tmp_path / "a.png", "loss", title="Eight"))
  check_png(accuracy_over_clients({"global": [np.nan]}, tmp_path / "b.png"))


def test_lambda_curve(tmp_path):
  grid = np.linspace(0, 1, 11)
  curve = 0.99 - 0.1 * grid**4, 0.01 + 0 * grid
  best = check_png(lambda_curve(grid, *curve, tmp_path / "a.png"))
  np.testing.assert_array_equal(best, check_png(lambda_curve(grid, *curve, tmp_path / "c.png", common=0.0)))
  for other in (
    {"common": 0.5},
    {"metric": "auroc"},
    {"picked_on": "validation"},
    {"own": {"mean": 0.95, "std": 0.02}},
  ):
    assert (best != check_png(lambda_curve(grid, *curve, tmp_path / "d.png", **other))).any()
  check_png(lambda_curve(grid, np.full(11, np.nan), np.full(11, np.nan), tmp_path / "b.png"))


@pytest.fixture
def figures(monkeypatch):
  """The figures that are saved, laid out as in their files."""
  found = []

  def keep(figure, path):
    FigureCanvasAgg(figure).draw()
    found.append(figure)
    return path

  for module in (client_metrics, lambda_line, plots, unseen):
    monkeypatch.setattr(module, "save", keep)
  return found


def test_no_line_joins_a_handful_of_clients(figures):
  """They are points over their names, worst first by the first model; one without a value is left out."""
  names = "Köln", "Oslo", "closed", "Århus"
  own = {"personalized": [0.9, 0.6, np.nan, 0.7], "global": [0.5, 0.4, np.nan, 0.8]}
  accuracy_over_clients(own, "a.png", names=names)
  accuracy_over_clients({"personalized": np.arange(13)}, "b.png")
  few, many = (figure.axes[0] for figure in figures)
  assert [tick.get_text() for tick in few.get_xticklabels()] == ["Oslo", "Århus", "Köln"]
  points = [line for line in few.lines if line.get_marker() != "None"]
  assert {line.get_linestyle() for line in points} == {"None"} and len(points) == 2
  np.testing.assert_allclose(points[1].get_ydata(), [40, 80, 50])
  assert any(len(line.get_xdata()) == 13 and line.get_linestyle() == "-" for line in many.lines)


def test_no_legend_covers_a_curve(figures):
  """Legends stand beside or below the axes, whatever the curves of 5,000 clients do."""
  rng = np.random.default_rng(0)
  accuracy_over_clients({"personalized": rng.random(5000), "global": rng.random(5000) ** 9}, "a.png")
  accuracy_over_clients({"personalized": rng.random(5000)}, "b.png", "loss")
  rounds = np.arange(1, 100)
  curves = [Curve("top1", of, rng.random(99), np.zeros(99), np.ones(99)) for of in ("personalized", "global")]
  learning_curve(rounds, [*curves, Curve("train_loss", "cohort", rng.random(99))], "c.png")
  block = {"top1": {"mean": 0.5, "worst10": 0.0, "best10": 1.0}}
  found = {"metrics": [block] * 3, "steps": [0, 1, 5], "clients": 5000}
  unseen.plot_unseen(found, {"personalized": block, "global": {"top1": {"mean": 0.4}}}, "d.png")
  seen = 0
  for figure in figures:
    legends = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    seen += len(legends)
    for legend in legends:
      entries = legend.get_tightbbox()
      assert not any(ax.get_window_extent().shrunk(0.99, 0.99).overlaps(entries) for ax in figure.axes)
      assert figure.bbox.width >= entries.x1 and entries.y0 >= 0
  assert seen == 5


@pytest.mark.parametrize(("metric", "ends"), [("auroc", (0, 1)), ("top1", (0, 100)), ("loss", (0, 1.4)),
                                              ("ece", (0, 1)), ("r2", (-0.3, 1))])  # fmt: skip
def test_a_band_stays_within_the_range_of_its_metric(figures, metric, ends):
  lambda_curve(np.linspace(0, 1, 3), [0.5, 0.1, 0.9], [0.4, 0.4, 0.5], "a.png", metric=metric)
  (area,) = figures[0].axes[0].collections
  height = area.get_paths()[0].vertices[:, 1]
  np.testing.assert_allclose((height.min(), height.max()), ends, atol=1e-6)
