"""A run on Flower's deployment engine, whose SuperNode is killed on the way, beside the simulated one."""

import pytest

from benchmarks.checks.flower_deployment import MOST, deployed, federation

pytestmark = pytest.mark.slow


def test_a_deployed_run_is_the_simulated_one(tmp_path):
  pytest.importorskip("flwr", reason="the extra flower is not installed")
  with federation(tmp_path) as made:
    found = deployed(made, "scaffold", 2)
  assert max(found["model_difference"], found["figures_difference"]) <= MOST
  assert found["states"] == [2, 2]
