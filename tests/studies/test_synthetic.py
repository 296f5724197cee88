"""Launched runs of methods that synthesise: what they keep, what it is worth, and bad input."""

import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from changed_configs import with_values
from ml_collections import ConfigDict
from PIL import Image
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment import experiment
from fedjax_het.experiment.build import build
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.program.where import Where
from fedjax_het.studies import Watched
from fedjax_het.studies.downstream import Judge, downstream, to_follow
from fedjax_het.studies.samples import sample_grid
from fedjax_het.studies.synthetic import Synthetic, as_many, in_range, synthetic_table, worth
from fedjax_het.workdir.checkpoint import Checkpoints

sys.path.append(str(Path(__file__).parents[2]))
from configs import table_4_2

ROUNDS = 20


def small(algorithm="fedevg", **changes) -> ConfigDict:
  """A few rounds of a cell on digits; changes as field__subfield=value."""
  config = table_4_2.get_config(f"dataset=digits,alpha=1.0,algorithm={algorithm},rounds={ROUNDS}")
  config.eval_every = 8
  config.local.epochs = 2
  config.model.hidden = 32
  config.algorithm.per_class = 3
  config.downstream.steps = 100
  config.downstream.features, config.downstream.seeds = "", 1
  return with_values(config, {name.replace("__", "."): value for name, value in changes.items()})


JUDGED = small(downstream__features="classifier", downstream__seeds=2, downstream__follow={"seeds": 2})


def start(config, workdir):
  return experiment.run_experiment(config, str(workdir), Where(devices=1))


def samples(workdir) -> dict[str, np.ndarray]:
  return {path.name: np.load(path)["x"] for path in sorted((workdir / "samples").iterdir())}


def judged(config, built, x, y):
  return worth(config.downstream, built.source, built.data, built.key, x, y)


def watched(config, folder=Path()) -> Watched:
  built = build(plan(config))
  return Watched(plan(config), built.algorithm, built.data, built.source, built.parts, built.key, folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("fedevg")
  return workdir, start(JUDGED, workdir)


@pytest.mark.slow
def test_what_a_run_keeps(whole):
  workdir, summary = whole
  kept = samples(workdir)
  assert list(kept) == ["000008.npz", "000016.npz", "000020.npz"]
  assert all(x.shape == (30, 8, 8, 1) for x in kept.values())
  checkpoints = Checkpoints(workdir / "checkpoints")
  experiment_ = build(plan(small()))
  engine = fh.Engine(experiment_.algorithm, experiment_.data, 10, devices=1)
  state, _ = checkpoints.restore(engine.init(jax.random.key(0)))
  checkpoints.close()
  np.testing.assert_array_equal(kept["000020.npz"], state.broadcast.params)
  assert summary["bytes"] == {"up": ROUNDS * 10 * 30 * 65 * 4, "down": ROUNDS * 10 * 30 * 64 * 4}
  with Image.open(workdir / "figures" / "samples.gif") as animation:
    assert animation.n_frames == 3
  assert (workdir / "figures" / "samples.png").stat().st_size > 5000


@pytest.mark.slow
def test_what_the_examples_are_worth(whole):
  _, summary = whole
  found = summary["synthetic"]
  assert found["examples"] == 30 and found["downstream"]["model"] == "two_nn"
  assert 0.2 < found["downstream"]["local"]["mean"] < 1.0 and found["downstream"]["official"] is None
  assert found["frechet"] > 0 and "real training examples" in found["features"]
  assert found["within_class_distance"]["real"] > 1.0
  real, tried = found["real"]["downstream"], found["downstream"]["seeds"]
  assert len(tried) == len(real["seeds"]) == 2
  local = [trial["local"]["mean"] for trial in tried]
  assert local[0] != local[1] and found["downstream"]["local"]["mean"] == pytest.approx(np.mean(local))
  assert real["local"]["mean"] > found["downstream"]["local"]["mean"]
  assert found["real"]["frechet"] < found["frechet"] / 2


@pytest.mark.slow
def test_balanced_accuracy_is_scikit_learns_and_naming_one_class_is_worth_one_class():
  source, key = fh.data.load("digits"), jax.random.key(3)
  kept = np.flatnonzero((source.y < 3) & ((source.y > 0) | (np.arange(len(source.y)) % 9 == 0)))
  source = source._replace(x=source.x[kept], y=source.y[kept], num_classes=3)
  parts = fh.data.dirichlet(key, source.y, num_clients=4, alpha=1.0)
  data = fh.federate(source.x, source.y, parts, key, num_classes=3)
  judge = Judge(key, source, data, steps=4)
  x, y = source.x[:60], source.y[:60]
  found = judge([(x, y)])
  params, _ = jax.jit(lambda key: downstream(key, judge.model, x, y, steps=4))(jax.random.fold_in(key, 0))
  test, labels = (np.asarray(own)[data.test.rows()] for own in (data.x, data.y))
  named = judge.model.apply(params, test).argmax(1)
  assert found["balanced"] == pytest.approx(balanced_accuracy_score(labels, named))
  assert abs(found["balanced"] - (named == labels).mean()) > 0.02
  nobody = fh.federate(source.x, source.y, parts, key, num_classes=3, test_fraction=0.0)
  unknown = Judge(key, source, nobody, steps=4)([(x, y)])
  assert np.isnan([unknown["local"]["mean"], unknown["local"]["std"], unknown["balanced"]]).all()
  assert unknown["loss"] == found["loss"] and unknown["official"] == found["official"]
  one_class = Judge(key, source, data)([(x, np.ones_like(y))])
  assert one_class["balanced"] == pytest.approx(1 / 3) and one_class["local"]["mean"] > 0.4


def followed(workdir) -> list[dict]:
  lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
  return [line["synthetic"]["downstream"] for line in lines if "synthetic" in line]  # not late ones


@pytest.mark.slow
def test_what_they_are_worth_is_followed_over_the_rounds(whole):
  """The same judge at every evaluation: the last one's verdict is the summary's."""
  workdir, summary = whole
  lines, final = followed(workdir), summary["synthetic"]["downstream"]
  assert len(lines) == 3 and lines[-1] == {name: final[name] for name in lines[-1]}
  assert {*lines[-1]} == {"loss", "local", "balanced", "official"}
  assert len({line["loss"] for line in lines}) == 3
  assert to_follow({"steps": 5, "seeds": 3}) is None and to_follow({"follow": False}) is None
  settings = {"steps": 5, "lr": 0.1, "seeds": 3, "features": "classifier"}
  assert to_follow({**settings, "follow": True}) == {"steps": 5, "lr": 0.1, "seeds": 1}
  assert to_follow({**settings, "follow": {"steps": 2}}) == {"steps": 2, "lr": 0.1, "seeds": 1}


@pytest.mark.slow
def test_the_judge_is_a_curve_of_its_own_where_it_is_followed(whole):
  lines = [{"synthetic": {"downstream": line}} for line in followed(whole[0])]
  assert Synthetic(watched(small())).curves(lines) == []
  (curve,) = Synthetic(watched(JUDGED)).curves([{}, *lines])
  assert curve.metric == "top1" and np.isnan(curve.values[0])
  assert curve.values[1:].tolist() == [line["local"]["mean"] for line in followed(whole[0])]


@pytest.mark.slow
def test_real_examples_are_worth_more(whole):
  """The studies of ten real examples a class, beside the few rounds' synthetic ones."""
  _, summary = whole
  config = small(downstream__features="classifier", downstream__steps=300)
  built = build(plan(config))
  rows = built.data.train.rows()
  train = np.asarray(built.data.x)[rows], np.asarray(built.data.y)[rows]
  x, y = as_many(np.random.default_rng(0), train, np.repeat(np.arange(10), 10))
  real = judged(config, built, x, y)
  assert real["downstream"]["local"]["mean"] > max(0.8, summary["synthetic"]["downstream"]["local"]["mean"])
  assert real["frechet"] < summary["synthetic"]["frechet"] / 2
  assert abs(real["kernel"]) < summary["synthetic"]["kernel"] / 2
  within = real["within_class_distance"]
  assert within["synthetic"] == pytest.approx(within["real"])
  assert real["frechet"] == pytest.approx(real["real"]["frechet"])
  assert real["downstream"] == real["real"]["downstream"] | {"model": "two_nn"}


@pytest.mark.slow
def test_all_studies_see_the_same_pixels():
  """Unbounded examples, and the same ones cut to [0, 1]: the same worth in every figure."""
  config = small(downstream__features="classifier", downstream__steps=20)
  built = build(plan(config))
  y = np.repeat(np.arange(10), 3)
  x = np.asarray(3.0 * jax.random.normal(jax.random.key(0), (30, *built.source.x.shape[1:])))
  assert judged(config, built, x, y) == judged(config, built, np.clip(x, 0.0, 1.0), y)
  wide = np.array([[-3.0], [0.5]])
  np.testing.assert_array_equal(in_range(wide, np.zeros((1, 1, 1), np.uint8)), [[0.0], [0.5]])
  np.testing.assert_array_equal(in_range(wide, 2.0 * wide), wide)


def test_distances_to_no_test_example_are_refused_before_training():
  with pytest.raises(SettingError, match=r"downstream\.features = 'classifier': .* of which there are 0"):
    build(plan(small(test_fraction=0.0, downstream__features="classifier")))


def test_classes_that_nobody_has_are_named(capsys):
  config = small(downstream__steps=5)
  source = build(plan(config)).source
  known = source.y < 8
  x, y = source.x[known], source.y[known]
  data = fh.federate(x, y, np.array_split(np.arange(len(y)), 2), jax.random.key(0), num_classes=10)
  x = np.zeros((30, *x.shape[1:]), np.float32)
  found = worth(config.downstream.to_dict(), source, data, jax.random.key(0), x, np.repeat(np.arange(10), 3))
  assert (found["examples"], found["absent"], found["real"]["examples"]) == (30, [8, 9], 24)
  found["within_class_distance"] = {"synthetic": None, "real": np.nan}
  Console(width=120).print(synthetic_table(found))
  shown = capsys.readouterr().out
  assert "24 real" in shown and "no client has an example of class 8, 9" in shown and "nan" not in shown


@pytest.mark.slow
def test_a_stopped_run_keeps_the_same_samples(whole, tmp_path):
  workdir, summary = whole
  shutil.copytree(workdir, tmp_path / "run")
  (tmp_path / "run" / "summary.json").unlink()
  for folder in (tmp_path / "run" / "checkpoints").iterdir():
    if folder.name.startswith("20"):
      shutil.rmtree(folder)
  np.savez(tmp_path / "run" / "samples" / "000020.npz", x=np.zeros((1, 8, 8, 1)), y=np.zeros(1, int))
  again = start(JUDGED, tmp_path / "run")
  assert again["synthetic"] == summary["synthetic"]
  assert followed(tmp_path / "run") == followed(workdir)
  wanted, found = samples(workdir), samples(tmp_path / "run")
  assert list(wanted) == list(found)
  for name in wanted:
    np.testing.assert_array_equal(wanted[name], found[name])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", with_every(["fedcvae", "fedcgan"], "fedcvae"))
def test_averaged_generators_are_launched_alike(algorithm, tmp_path):
  summary = start(small(algorithm), tmp_path)
  assert summary["algorithm"] == algorithm and summary["synthetic"]["examples"] == 30
  parameters = sum(
    leaf.size for leaf in jax.tree.leaves(build(plan(small(algorithm))).model.init(jax.random.key(0)))
  )
  assert summary["bytes"]["up"] == ROUNDS * 10 * 4 * parameters
  found = dry_run(small(algorithm, algorithm__steps=2), Where(devices=1))
  assert found["client_steps"] == ROUNDS * 10 * 2
  assert found["parameters"] == found["trained"] == parameters and found["flops_a_client_step"] > 1e5


@pytest.mark.slow
def test_members_of_one_program_keep_samples_each(tmp_path):
  run_sweep(small(), {"server.step_size": [10.0, 1.0]}, str(tmp_path), Where(devices=2))
  members = sorted((tmp_path / "members").iterdir())
  assert len(members) == 2
  last = [samples(member)["000020.npz"] for member in members]
  assert all(np.abs(a - b).max() > 0.1 for i, a in enumerate(last) for b in last[:i])
  own = [json.loads((member / "summary.json").read_text())["synthetic"] for member in members]
  rows = json.loads((tmp_path / "sweep.json").read_text())
  assert sorted(row["synthetic"]["downstream"]["local"]["mean"] for row in rows) == sorted(
    found["downstream"]["local"]["mean"] for found in own
  )
  for member in members:
    assert json.loads((member / "summary.json").read_text())["synthetic"]["examples"] == 30
    assert (member / "figures" / "samples.gif").exists()


@pytest.mark.parametrize(
  "changes, says",
  [
    (
      {"server": ConfigDict({"name": "sgd"})},
      "server = 'sgd': does not take the signals that fedevg uploads.*sgld",
    ),
    ({"algorithm": "fedavg", "local__lr": 0.1}, "server = 'sgld': does not take the models.*sgd"),
    ({"model": ConfigDict({"name": "cvae_mlp"})}, "model.name = 'cvae_mlp': not a model that fedevg trains"),
    ({"downstream__seeds": 0}, "downstream.seeds = 0: out of range"),
    ({"downstream__featurs": ""}, "Did you mean 'features'"),
    ({"downstream__follow": "yes"}, "downstream.follow = 'yes': of the wrong type. Set it to True, or"),
    (
      {"downstream__follow": {"step": 3}},
      "follow.step = .*: unknown to downstream.follow. Did you mean 'steps'",
    ),
    ({"downstream__follow": {"seeds": 0}}, "downstream.follow.seeds = 0: out of range"),
    ({"downstream__features": True}, "downstream.features = True: of the wrong type"),
    ({"downstream__model": "two_nn"}, "downstream.model = 'two_nn': "),
    ({"downstream__features": "nowhere.npz"}, "downstream.features = 'nowhere.npz': no such file"),
    ({"downstream__model": ConfigDict({"name": "two_n"})}, "Did you mean 'two_nn'"),
    ({"algorithm__energy": "squared"}, "energy = 'squared': unknown"),
    ({"algorithm__steps": 0}, "steps = 0: out of range"),
    ({"server__step_size": 0.0}, "step_size = 0.0: out of range"),
    ({"server__rounds": 3}, "unknown"),
    ({"local__momentum": 0.9}, "unknown"),
  ],
)
def test_bad_input(changes, says):
  config = small(**{name: value for name, value in changes.items() if name != "algorithm"})
  if "algorithm" in changes:
    config.algorithm = ConfigDict({"name": changes["algorithm"]})
  with pytest.raises(SettingError, match=says):
    plan(config)


def test_a_classifier_is_no_generator_and_weights_of_something_else_are_refused(tmp_path):
  with pytest.raises(SettingError, match=r"not a model that fedcvae trains\. Use one of cvae_mlp"):
    plan(small("fedcvae", model=ConfigDict({"name": "two_nn"})))
  np.savez(tmp_path / "other.npz", x=np.zeros(3))
  with pytest.raises(DataError, match="is not InceptionV3"):
    plan(small(downstream__features=str(tmp_path / "other.npz")))


def test_every_cell_of_the_table_is_a_configuration():
  for dataset in table_4_2.SIZES:
    for algorithm in table_4_2.MODELS:
      config = table_4_2.get_config(f"dataset={dataset},clients=100,algorithm={algorithm},steps=4")
      plan(config)
      assert config.cohort_size == 10 and config.algorithm.steps == 4


def test_the_judge_has_a_width_of_its_own():
  for cell, width in (("width=8", 64), ("width=8,judge_width=16", 16)):
    config = table_4_2.get_config(f"dataset=mnist,{cell}")
    assert config.model.width == 8 and config.downstream.model.width == width


def test_the_grid_has_a_class_a_row():
  x = jnp.arange(4.0)[:, None, None, None] * jnp.ones((4, 2, 3, 1)) / 3
  grid = sample_grid(np.asarray(x), np.array([1, 0, 1, 1]), 2, columns=2)
  assert grid.shape == (7, 9, 3)
  middles = grid[[1, 4]][:, [1, 5], 0]
  np.testing.assert_allclose(middles, [[1 / 3, 0.5], [0.0, 2 / 3]])
