"""Cells of the papers' tables on small files of the true format: planned, and trained for two rounds."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_files import write_small

from fedjax_het.config.plan import plan
from fedjax_het.experiment import experiment
from fedjax_het.experiment.build import build
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.program.where import Where

CONFIGS = Path(__file__).parents[2] / "configs"
ONE = Where(devices=1)
FEW = {"num_clients": 3, "cohort_size": 2}
READER = {"width": 8, "layers": 1, "heads": 2, "vocabulary": 16, "positions": 16}
CELLS = {  # cell -> what is smaller, and the headline
  "table_2_4.py:dataset=cifar100,algorithm=fedrep": ({**FEW, "model.width": 8}, "top5"),
  "table_2_5.py:dataset=femnist,algorithm=ditto": ({"cohort_size": 2, "model.width": 8}, "top1"),
  "table_2_5.py:dataset=shakespeare,algorithm=superfed_lm": ({"cohort_size": 2, "model.hidden": 4}, "top1"),
  "table_3_8.py:dataset=mqp,mixing=term": (
    {"dataset_options.length": 16} | {f"model.{name}": value for name, value in READER.items()}, "auroc",
  ),
  "table_3_9.py:dataset=celeba,mixing=qffl": ({"cohort_size": 2, "dataset_options.size": 16}, "top1"),
  "table_3_9.py:dataset=reddit,mixing=aaggff_d": (
    {"cohort_size": 2, "dataset_options.size": 12, "model.embedding": 4, "model.hidden": 4}, "top1",
  ),
  "table_3_9.py:dataset=speech_commands,mixing=fedmgda": ({"cohort_size": 2, "model.width": 8}, "top5"),
}  # fmt: skip
DEEP = {  # cells whose models take long to compile
  "table_2_4.py:dataset=tiny_imagenet,algorithm=superfed_mm": FEW,
  "table_3_8.py:dataset=isic2019,mixing=aaggff_s": {"dataset_options.size": 32},
  "table_3_10.py:dataset=tiny_imagenet,algorithm=fedprox,mixing=aaggff_d,server=adam": FEW,
}


def small(cell, folder, patch):
  """The configuration of a cell on small files, with its smaller settings, for two rounds."""
  file, _, keys = cell.partition(":")
  config = runpy.run_path(str(CONFIGS / file))["get_config"](keys)
  write_small(config.dataset, folder, patch)
  with config.ignore_type(), config.unlocked():
    config.update(data_dir=str(folder), rounds=2, eval_every=2)
    config.local.epochs = 1
    for name, value in (DEEP[cell] if cell in DEEP else CELLS[cell][0]).items():
      *sections, field = name.split(".")
      place = config
      for section in sections:
        place = place[section]
      place[field] = value
    if config.partition.name == "dirichlet":
      config.partition.min_size = 5
  return config


def summary_of(cell, folder, patch):
  return experiment.run_experiment(small(cell, folder, patch), str(folder / "run"), ONE)


def check(cell, summary):
  headline = CELLS[cell][1]
  assert summary["rounds"] == 2 and summary["client_steps"] > 0
  for found in summary["metrics"].values():
    assert 0 <= found[headline]["mean"] <= 1 and np.isfinite(found["loss"]["mean"])


@pytest.mark.slow
def test_a_cell_of_words_is_trained(tmp_path, monkeypatch):
  cell = "table_3_9.py:dataset=reddit,mixing=aaggff_d"
  check(cell, summary_of(cell, tmp_path, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize("cell", DEEP)
def test_cells_of_deep_models_are_built(cell, tmp_path, monkeypatch):
  built = build(plan(small(cell, tmp_path, monkeypatch)))
  x, y = jax.eval_shape(lambda: built.data.clients(0).take(jnp.arange(5)))
  params = jax.eval_shape(built.model.init, jax.random.key(0))
  logits = jax.eval_shape(
    lambda p, x: built.model.logits(built.model.joined(p, built.model.stats), x), params, x
  )
  assert logits.shape == (5, built.source.num_classes) and y.shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize("cell", with_every(CELLS, *list(CELLS)[2::4], *list(CELLS)[:1]))
def test_cells_are_planned_and_trained(cell, tmp_path, monkeypatch):
  config = small(cell, tmp_path, monkeypatch)
  plan = dry_run(config, ONE)
  assert all(plan[name] > 0 for name in ("parameters", "data_bytes", "memory_bytes", "client_steps"))
  assert plan["flops_a_client_step"] > plan["parameters"] and plan["bytes"]["up"] > 0
  check(cell, experiment.run_experiment(config, str(tmp_path / "run"), ONE))
