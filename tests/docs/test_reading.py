"""docs/reading.md and docs/workdir.md explain every field that runs leave, and none that they do not."""

import fnmatch
import importlib.util
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from cases import algorithm as algorithm_of
from cases import cases, with_every
from changed_configs import with_values
from ml_collections import ConfigDict
from small_parts import SIZES, federation, mlp

from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.border import first_context
from fedjax_het.engine.shown import shown_validation
from fedjax_het.engine.state import init_client
from fedjax_het.experiment import experiment
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.metrics.catalogue import METRICS
from fedjax_het.parts import Feedback
from fedjax_het.program.where import Where

ROOT = Path(__file__).parents[2]
PAGES = "reading.md", "reading_parts.md", "workdir.md"
PAGE = "".join((ROOT / "docs" / name).read_text() for name in PAGES)
JUDGED = "metrics", "valid", "weighted", "left_out", "unseen", "late", "attackers", "ccvr"
FIGURES = "mean", "std", "worst10", "best10", "gini", "gap"
SMALL = {"rounds": 2, "eval_every": 1, "cohort_size": 3, "model": {"name": "two_nn", "hidden": 8}}


def explained(file: str) -> list[str]:
  """What the tables of a file have in their first columns."""
  sections = [part.partition("\n## ")[0] for part in PAGE.split(f"## `{file}`\n")[1:]]
  rows = re.findall(r"^\| (`.*?) \|", "\n".join(sections), re.M)
  return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def patterns(tree, path: tuple[str, ...] = ()) -> set[str]:
  """The paths of a file's fields, as the page writes them."""
  if isinstance(tree, dict):
    return {name for key, own in tree.items() for name in patterns(own, (*path, spelled(key, path)))}
  if isinstance(tree, list) and tree and isinstance(tree[0], dict):
    return {name for own in tree for name in patterns(own, (*path, "N"))}
  return {".".join(path)}


def spelled(key: str, path: tuple[str, ...]) -> str:
  if key in ("personalized", "global"):
    return "MODEL"
  if key in METRICS and path and path[0] in JUDGED:
    return "METRIC"
  figure = key in FIGURES and path[-1:] == ("METRIC",) and path[0] != "late"
  return "FIGURE" if figure else "N" if key.isdecimal() else key


def cell(name: str, text: str) -> ConfigDict:
  spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(text)


def configurations() -> dict[str, ConfigDict]:
  """Runs which between them have every field."""
  watched = {
    "unseen": {"fraction": 0.2, "steps": [1]}, "label_noise": {"name": "pair", "ratio": 0.4},
    "to_accuracy": 0.1, "system": {"name": "lognormal"}, "record_losses": True,
    "record_variance": True, "landscape": {"points": 3}, "stopping": {"patience": 5},
    "partition": {"name": "dirichlet", "alpha": 0.05, "min_size": 2},
  }  # fmt: skip
  judged = {"model": {"name": "two_nn", "hidden": 8}, "steps": 5, "features": "classifier", "follow": True}
  few = {name: SMALL[name] for name in ("rounds", "eval_every", "cohort_size")}
  return {
    "watched": with_values(get_config(), SMALL | watched),
    "own": with_values(
      get_config("algorithm=apfl"),
      SMALL
      | {
        "algorithm": {"name": "apfl", "adaptive": True},
        "num_clients": 3,
        "eval_clients": 2,
        "record_losses": True,
        "participation": {"name": "available", "probability": 0.8},
      },
    ),
    "statistics": with_values(
      get_config("algorithm=superfed_mm"),
      few
      | {
        "model": {"name": "leaf_cnn", "width": 8, "norm": "batch"},
        "attack": {"name": "label_flip", "share": 0.3},
      },
    ),
    "synthetic": with_values(
      cell("table_4_2", "dataset=digits,alpha=1.0,algorithm=fedevg"), few | {"downstream": judged}
    ),
    "simplex": with_values(cell("sosicfl_2", "dataset=digits,split=dir,algorithm=sosicfl"), few),
    "clusters": with_values(
      get_config("algorithm=ifca"), SMALL | {"feature_shift": {"name": "rotation", "clusters": 2}}
    ),
    "graph": with_values(
      get_config("algorithm=fedamp"), SMALL | {"feature_shift": {"name": "rotation", "clusters": 2}}
    ),
    "prototypes": with_values(get_config("algorithm=fedproto"), SMALL),
    "learnt weights": with_values(get_config("algorithm=fedala"), SMALL),
    "private": with_values(
      get_config("algorithm=fedavg"),
      SMALL
      | {
        "local": {"dp_clip": 1.0, "dp_sampling": "shuffle"},
        "membership": {"nonmembers": "test"},
        "inversion": {"examples": 1, "steps": 5},
      },
    ),
    "private clients": with_values(
      get_config("algorithm=fedavg"),
      SMALL
      | {
        "mixing": {"name": "uniform"},
        "aggregation": {"name": "gaussian", "noise_multiplier": 9.0, "quantile": 0.5},
        "local": {"dp_clip": 1.0, "dp_sampling": "shuffle"},
      },
    ),
    "asynchronous": with_values(
      get_config("algorithm=fedavg"),
      SMALL | {"asynchronous": {"buffer_size": 2, "concurrency": 4}, "system": {"name": "lognormal"}},
    ),
    "drawn": with_values(
      get_config("algorithm=fedavg"),
      SMALL | {"participation": {"name": "poisson", "capacity": 2}, "ccvr": {"per_class": 5, "steps": 2}},
    ),
  }


def reported(names: tuple[str, str, str]) -> set[str]:
  """Fields of metrics.jsonl that the parts of an algorithm report, from shapes alone."""
  algorithm, data, size = algorithm_of(names, mlp(), batch_size=6), federation(SIZES), len(SIZES)
  client, mixing, server, *_ = algorithm

  def figures(key):
    broadcast, context = client.init_broadcast(key), first_context(data, size)
    own = data.clients(jnp.int32(0))
    state = init_client(client, key, broadcast, own, context)
    steps = client.training
    if steps is None:
      upload, _, info = shown_validation(client, data).update(key, broadcast, state, own, context)
    else:
      upload, _, info = steps.finish(broadcast, state, own, context, steps.start(broadcast, state, context))
    uploads = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), upload)
    cohort = jnp.arange(size, dtype=jnp.int32)
    feedback = Feedback(cohort, data.train.size, 0, lambda: jnp.ones(size), lambda: uploads, broadcast)
    of_server = server.figures(server.init(broadcast), feedback) if server.figures else {}
    return dict(info.figures), {**(mixing.figures(feedback) if mixing.figures else {}), **of_server}

  clients, cohort = jax.eval_shape(figures, jax.random.key(0))
  return {f"clients.{name}" for name in clients} | {f"cohort.{name}" for name in cohort}


@pytest.mark.slow
def test_the_figures_of_every_method_are_explained():
  found, names = set().union(*map(reported, cases().values())), explained("metrics.jsonl")
  assert len(found) >= 15
  assert not {own for own in found if not any(fnmatch.fnmatchcase(own, each) for each in names)}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, set[str]]:
  """File -> the paths that occur in it."""
  folder = tmp_path_factory.mktemp("runs")
  for name, config in configurations().items():
    run_experiment(config, str(folder / name), Where(devices=1))
  config = with_values(get_config("algorithm=fedavg"), SMALL)
  run_sweep(config, {"local.lr": [0.01, 1e30]}, str(folder / "sweep"), Where(devices=1))
  files: dict[str, set[str]] = {}
  for path in [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]:
    if "checkpoints" not in path.parts:
      lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
      files.setdefault(path.name, set()).update(*(patterns(json.loads(line)) for line in lines))
  files["metrics.jsonl"] |= set().union(*map(reported, cases().values()))
  return files


@pytest.mark.slow
@pytest.mark.parametrize("file", ["summary.json", "metrics.jsonl", "starts.jsonl"])
def test_every_field_is_explained_and_every_explanation_is_of_a_field(found, file):
  names = explained(file)
  assert len(names) == len(set(names)) > 5
  unexplained = {own for own in found[file] if not any(fnmatch.fnmatchcase(own, name) for name in names)}
  assert not unexplained
  assert not [name for name in names if not any(fnmatch.fnmatchcase(own, name) for own in found[file])]


@pytest.mark.slow
def test_the_fields_of_a_sweep(found):
  kinds = {own.split(".")[1] for own in found["sweep.json"]}
  assert kinds == {"member", "local", "metrics", "valid", "late", "diverged"}


def test_the_page_names_every_figure_and_file():
  for name in FIGURES:
    assert f"| `{name}` |" in PAGE
  for file in ("summary.json", "metrics.jsonl", "starts.jsonl"):
    assert f"| `{file}` |" in PAGE and explained(file)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", with_every(configurations(), "watched", "statistics", "synthetic", "simplex", "graph", "clusters")
)
def test_every_picture_is_drawn_again_from_the_files_alone(name, tmp_path, monkeypatch):
  """The same picture, of every study."""
  run, config = str(tmp_path), configurations()[name]
  run_experiment(config, run, Where(devices=1))
  summary = (tmp_path / "summary.json").read_bytes()
  drawn = {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
  for path in drawn:
    path.unlink()
  monkeypatch.setattr(experiment, "engine_of", None)
  run_experiment(config, run, Where(devices=1))
  assert (tmp_path / "summary.json").read_bytes() == summary
  assert {path.name for path in (tmp_path / "figures").iterdir()} == {path.name for path in drawn}
  differ = [path.name for path, content in drawn.items() if path.read_bytes() != content]
  assert not differ
