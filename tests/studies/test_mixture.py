"""Pictures of mixing are drawn, for few and for many clients."""

import matplotlib.image
import numpy as np

from benchmarks.papers.regret import plot_regret
from fedjax_het.studies.mixture import plot_mixture


def is_png(path):
  return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_mixtures_of_few_named_and_of_many_clients(tmp_path):
  rng = np.random.default_rng(0)
  few, many = rng.dirichlet(np.ones(3), 20), rng.dirichlet(np.ones(50), 20)
  assert is_png(plot_mixture(few, tmp_path / "new" / "few.png", names=["a", "b", "c"]))
  assert is_png(plot_mixture(many, tmp_path / "many.png"))
  assert is_png(
    plot_mixture(few, tmp_path / "cohorts.png", same_clients=False, rounds=np.arange(10, 210, 10))
  )


def test_a_single_round_is_drawn_too(tmp_path):
  """As much of the picture is drawn for one round's coefficients as for the same in two rounds."""
  for names, cohort in (
    (["a", "b", "c"], [[0.6, 0.3, 0.1]]),
    (None, np.random.default_rng(0).dirichlet(np.ones(50), 1)),
  ):
    one, two = (
      matplotlib.image.imread(plot_mixture(np.repeat(cohort, n, axis=0), tmp_path / f"{n}.png", names=names))
      for n in (1, 2)
    )
    assert abs(one[..., :3].mean() - two[..., :3].mean()) < 0.003


def test_regret_beside_its_bound(tmp_path):
  at = np.array([1, 10, 100])
  curves = {name: (np.array([[0.0, 0.1, 0.2], [0.0, 0.2, 0.4]]), at**0.5) for name in ("one", "two")}
  assert is_png(plot_regret(at, curves, tmp_path / "regret.png"))
