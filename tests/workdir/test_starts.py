"""What a run's first start compiles: a few programs, whatever the model."""

import re

import jax
import pytest
from changed_configs import with_values
from launching import small
from ml_collections import ConfigDict

from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where

THREE = {"_init", "<lambda>"}  # the first state; the rounds and the evaluation
OTHERS = 12  # of keys, scalars and what is drawn; of a program for each shape there would be thirty


def compiled(caplog, config: ConfigDict, folder: str) -> list[str]:
  """The names of the programs that a run compiles, or takes from a cache of them."""
  caplog.clear()
  with jax.log_compiles():
    run_experiment(config, folder, Where(devices=2))
  return re.findall(r"Finished XLA compilation of jit\((.+?)\) in", caplog.text)


@pytest.mark.slow
def test_no_program_is_for_a_shape_of_the_model(tmp_path, caplog):
  model = {"name": "leaf_cnn", "width": 8, "norm": "batch"}  # of arrays of a dozen shapes
  programs = compiled(caplog, with_values(small(), {"model": model}), str(tmp_path / "run"))
  assert {*programs} >= THREE
  assert len(programs) <= 3 + OTHERS, programs
