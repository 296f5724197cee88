"""A run's folder is loaded: its models predict the run's own test rows, here and in a process of its own."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from cases import REPRESENTATIVE, with_every

import fedjax_het as fh
from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.state import State
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import CLIENTS
from fedjax_het.parts import Sent
from fedjax_het.workdir.model import read_model, write_model

CITIES = ("Köln", "Oslo", "Århus", "São Paulo")


METHODS = [
  name for name in CLIENTS
  if name in REPRESENTATIVE - {"superfed_mm", "fedevg"} and "two_nn" in CLIENTS[name].models
]  # fmt: skip


def table(rows=200):
  rng = np.random.default_rng(0)
  age, city = rng.normal(60, 12, rows).round(2), rng.integers(0, 4, rows)
  ill = age + 6 * city + rng.normal(0, 8, rows) > 70
  age[::9] = np.nan
  return {
    "city": np.array(CITIES)[city], "age": age, "smoker": np.array(["yes", "no"])[rng.integers(0, 2, rows)],
    "label": np.where(ill, "ill", "well"), "set": np.where(np.arange(rows) % 4, "train", "test"),
  }  # fmt: skip


def configured(path, algorithm="superfed_mm", **more):
  config = get_config(f"algorithm={algorithm}").to_dict()
  if "start" in config["algorithm"]:
    config["algorithm"]["start"] = 0.4
  options = {"label": "label", "client": "city", "split": "set"}
  return config | {
    "dataset": f"file:{path}", "dataset_options": options, "num_clients": None, "test_fraction": None,
    "partition": {"name": "natural"}, "cohort_size": 2, "rounds": 3, "eval_every": 3, **more,
  }  # fmt: skip


def written(tmp_path):
  pd = pytest.importorskip("pandas")
  pd.DataFrame(table()).to_csv(tmp_path / "cities.csv", index=False)
  return tmp_path / "cities.csv"


@pytest.mark.parametrize("name", [
  "superfed_mm", *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS)
])  # fmt: skip
def test_a_model_file_is_read_as_it_was_written(name, tmp_path):
  config = get_config("algorithm=fedavg").to_dict()
  config["algorithm"], config["local"] = {"name": name}, {}
  config["model"] = {"name": "two_nn", "hidden": 4}
  built = build(plan(config))
  client, data = built.algorithm.client, built.data
  broadcast = jax.tree.map(np.asarray, client.init_broadcast(jax.random.key(7)))
  context = fh.Context(0, 0, 1, data.num_clients)
  one = client.init(
    jax.random.key(8), broadcast, client.shown("init", data.clients(jax.numpy.int32(0))), context
  )
  states = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * data.num_clients), one)
  write_model(tmp_path, built.algorithm, State(built.key, 0, broadcast, (), (), states))
  again = read_model(tmp_path, built.algorithm, data)
  jax.tree.map(np.testing.assert_array_equal, (Sent(broadcast, ()), states), again)


@pytest.mark.slow
@pytest.mark.parametrize(
  "algorithm", with_every(["superfed_mm", "fedrep", "sosicfl", "scaffold"], "superfed_mm", "fedrep")
)
def test_a_loaded_run_predicts_its_own_test_rows(algorithm, tmp_path):
  config = configured(written(tmp_path), algorithm)
  run_experiment(config, tmp_path / "run")
  run, rows = fh.load_run(tmp_path / "run"), table()
  assert run.clients == ("Köln", "Oslo", "São Paulo", "Århus") and run.encoder.labels == ("ill", "well")
  assert len(run.metrics) == 1 and run.config["rounds"] == 3 and algorithm in repr(run)
  with np.load(tmp_path / "run" / "clients.npz") as kept:
    held = {name: kept[name] for name in kept.files}
  for number, client in enumerate(run.clients):
    mine = (rows["city"] == client) & (rows["set"] == "test")
    own = {name: column[mine] for name, column in rows.items()}
    laid_out = np.asarray(run.experiment.data.x)[run.experiment.data.test.rows(np.array([number]))]
    assert sorted(map(tuple, laid_out)) == sorted(map(tuple, run.encoder.encode(own, number)))
    for model, predicted in [("personalized", run.predict(own, client)), ("global", None)]:
      if f"{model}/top1" in held:
        predicted = run.predict(own) if predicted is None else predicted
        right = (predicted == own["label"]).mean()
        np.testing.assert_allclose(right, held[f"{model}/top1"][number], rtol=1e-6)


@pytest.mark.slow
def test_a_saved_run_predicts_elsewhere_and_without_the_library(tmp_path):
  config = configured(written(tmp_path))
  run_experiment(config, tmp_path / "run")
  run, rows = fh.load_run(tmp_path / "run"), table()
  del rows["label"], rows["city"]
  run.save(tmp_path / "cities.npz")
  run.export(tmp_path / "oslo.jax", "Oslo")
  (tmp_path / "rows.json").write_text(json.dumps({name: own.tolist() for name, own in rows.items()}))
  np.save(tmp_path / "x.npy", run.encoder.raw(rows))
  (tmp_path / "cities.csv").unlink()
  there = (
    "import json, fedjax_het as fh; used = fh.load_model('cities.npz'); rows = json.load(open('rows.json'));"
    "print(json.dumps([used.predict(rows, 'Oslo').tolist(), used.predict(rows).tolist(),"
    "used.predict_proba(rows, 'Oslo').tolist()]))"
  )
  alone = (
    "import json, pathlib, sys; import jax, numpy as np; sys.modules['fedjax_het'] = None;"
    "program = jax.export.deserialize(bytearray(pathlib.Path('oslo.jax').read_bytes()));"
    "labels, chance = program.call(np.load('x.npy'));"
    "print(json.dumps([labels.tolist(), chance.tolist()]))"
  )
  own, shared, chance = printed(there, tmp_path)
  labels, chance_alone = printed(alone, tmp_path)
  assert own == run.predict(rows, "Oslo").tolist() and shared == run.predict(rows).tolist()
  np.testing.assert_allclose(chance, run.predict_proba(rows, "Oslo"), rtol=1e-6)
  assert [run.encoder.labels[label] for label in labels] == own
  np.testing.assert_allclose(chance_alone, chance, rtol=1e-4, atol=1e-6)
  with pytest.raises(fh.DataError, match=r"cities.csv: no such file"):
    fh.load_run(tmp_path / "run")


def printed(code, folder):
  done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
  return json.loads(done.stdout)


@pytest.mark.slow
def test_members_of_a_sweep_and_new_clients(tmp_path):
  config = configured(written(tmp_path), "fedavg")
  run_sweep(config, {"seed": [0, 1]}, str(tmp_path / "sweep"))
  with pytest.raises(fh.SettingError, match=r"holds no finished run. Name a member: seed=0, seed=1"):
    fh.load_run(tmp_path / "sweep")
  run, rows = fh.load_run(tmp_path / "sweep" / "members" / "seed=1"), table()
  with np.load(run.folder.root / "clients.npz") as kept:
    held = kept["personalized/top1"]
  for number, client in enumerate(run.clients):
    mine = (rows["city"] == client) & (rows["set"] == "test")
    own = {name: column[mine] for name, column in rows.items()}
    np.testing.assert_allclose((run.predict(own, client) == own["label"]).mean(), held[number], rtol=1e-6)
  few = {name: column[:40] for name, column in rows.items()}
  tuned = run.adapted(few, steps=300)
  fits = [(used.predict(few, *who) == few["label"]).mean() for used, who in [(run, ()), (tuned, ("new",))]]
  assert fits[1] > fits[0]
  with pytest.raises(fh.SettingError, match=r"labels = 'sick': is no label of training. Known: ill, well"):
    run.adapted(few, ["sick"] * 40)
  with pytest.raises(fh.SettingError, match=r"labels = None: are missing. Give labels=.*the column 'label'"):
    run.adapted({name: column for name, column in few.items() if name != "label"})


@pytest.mark.slow
def test_a_new_client_takes_as_many_steps_as_asked_and_not_as_many_passes(tmp_path):
  config = get_config("algorithm=fedavg").to_dict() | {"model": {"name": "logistic_regression"}, "rounds": 1}
  config["local"] |= {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 10}
  run_experiment(config | {"eval_every": 1}, tmp_path)
  run, lr = fh.load_run(tmp_path), 1e-4
  data, model = run.experiment.data, run.experiment.model
  x, y = (np.asarray(own)[:40] for own in (data.x, data.y))

  def loss(params):
    return -jax.nn.log_softmax(model.logits(params, jax.numpy.asarray(x)))[np.arange(40), y].mean()

  before = run.model_of()
  slope = jax.grad(loss)(before)  # four batches of ten rows are all rows once
  after = run.adapted(x, y, steps=4, lr=lr).model_of("new")
  moved = jax.tree.map(lambda own, start: (start - own) / lr, after, before)
  jax.tree.map(lambda own, own_slope: np.testing.assert_allclose(own, 4 * own_slope, atol=0.05), moved, slope)
  with pytest.raises(fh.SettingError, match=r"labels = '<U3 \[\]': is no list of labels. Give one label"):
    run.adapted(x, "cat")


@pytest.mark.slow
def test_a_run_of_the_user_s_own_model_is_given_it(tmp_path, monkeypatch):
  def own(shape, num_classes, hidden: int = 4):
    return fh.models.two_nn(shape, num_classes, hidden=hidden)

  monkeypatch.setitem(fh.models.MODELS, "own", own)
  config = configured(written(tmp_path), "fedavg", model={"name": "own", "hidden": 5})
  run_experiment(config, tmp_path / "run")
  monkeypatch.delitem(fh.models.MODELS, "own")
  with pytest.raises(fh.SettingError, match=r"model.name = 'own': unknown"):
    fh.load_run(tmp_path / "run")
  run = fh.load_run(tmp_path / "run", model=own)
  assert set(run.predict(table(), "Oslo")) <= {"ill", "well"} and "own" not in fh.models.MODELS


def test_what_holds_no_run_is_named(tmp_path):
  with pytest.raises(fh.SettingError, match=r"holds no finished run. Name a run's folder"):
    fh.load_run(tmp_path)


@pytest.mark.slow
def test_clients_and_labels_keep_their_names_in_files_and_on_the_page(tmp_path):
  run_experiment(configured(written(tmp_path), "fedavg"), tmp_path / "run")
  names = ["Köln", "Oslo", "São Paulo", "Århus"]
  with (
    np.load(tmp_path / "run" / "clients.npz") as clients,
    np.load(tmp_path / "run" / "partition.npz") as part,
  ):
    assert clients["names"].tolist() == part["names"].tolist() == names
    assert part["classes"].tolist() == ["ill", "well"]
  found = content(grouped(find([tmp_path / "run"])))
  assert found["partitions"][0]["names"] == names and found["partitions"][0]["classes"] == ["ill", "well"]
  assert "names" not in found["runs"][0]["clients"]
