"""Pictures of mixing are drawn, for few and for many clients."""

import numpy as np

from fedjax_het.yardsticks.mixture import plot_mixture
from fedjax_het.yardsticks.regret import plot_regret


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


def test_regret_beside_its_bound(tmp_path):
  at = np.array([1, 10, 100])
  curves = {name: (np.array([[0.0, 0.1, 0.2], [0.0, 0.2, 0.4]]), at**0.5) for name in ("one", "two")}
  assert is_png(plot_regret(at, curves, tmp_path / "regret.png"))
