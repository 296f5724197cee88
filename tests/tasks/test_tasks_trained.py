"""Tasks and trees of examples from data to summary: trained, mixed, picked, swept, streamed, launched."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from rich.console import Console

import fedjax_het as fh
from fedjax_het import tasks
from fedjax_het.config.data import build_task
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data.files import Source
from fedjax_het.engine import evaluate
from fedjax_het.experiment import build, experiment
from fedjax_het.experiment.report import report
from fedjax_het.metrics.catalogue import METRICS, Metric
from fedjax_het.program.where import Where

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
N, T, V, D = 60, 4, 6, 5
PARTS = np.split(RNG.permutation(N), [25, 29, 44])  # ragged: 25, 4, 15 and 16 rows
SETTINGS = {"rounds": 6, "cohort_size": 3, "key": KEY, "devices": 1}


@pytest.fixture(autouse=True)
def draws(monkeypatch):
  """The same of a test, whichever ran before it."""
  monkeypatch.setitem(globals(), "RNG", np.random.default_rng(1))


def federate(x, y, **settings):
  return fh.federate(x, y, PARTS, KEY, valid_fraction=0.25, **settings)


def rows_of(data, i, part):
  rows = getattr(data, part).rows(np.array([i]))
  return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (data.x, data.y))


def falls(result):
  losses = result.infos.clients.loss.mean(axis=1)
  assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]


class Reader(nn.Module):
  """The mean of the embeddings of a text's tokens that are not masked: one logit."""

  @nn.compact
  def __call__(self, x):
    mask = x["mask"][..., None]
    return nn.Dense(1)((nn.Embed(V, 3)(x["tokens"]) * mask).sum(1) / mask.sum(1))


def texts():
  """Whether token 1 is among a text's tokens that are not masked."""
  tokens, mask = RNG.integers(0, V, (N, T)), RNG.random((N, T)) < 0.6
  mask[:, 0] = True
  return {"tokens": tokens, "mask": mask}, ((tokens == 1) & mask).any(1)


TEXTS = federate(*texts(), num_classes=2)
READER = fh.models.from_flax(
  Reader(), {"tokens": (T,), "mask": (T,)}, 1, dtype={"tokens": jnp.int32, "mask": bool}
)


def train(client, data, mixing=None, **settings):
  return fh.run(fh.federated(client, mixing), data, **{**SETTINGS, **settings})


@pytest.mark.slow
@pytest.mark.parametrize(
  "method", [fh.fedavg, partial(fh.superfed, start_round=3, nu=0.1)], ids=["fedavg", "superfed"]
)
def test_a_tree_of_tokens_and_mask_is_trained(method):
  result = train(method(READER, lr=0.7, epochs=6, batch_size=4), TEXTS)
  falls(result)
  params = jax.tree.map(np.asarray, result.state.broadcast.params)
  for i in range(len(PARTS)):
    x, y = rows_of(TEXTS, i, "test")
    if not len(y):
      continue
    mask = x["mask"][..., None]
    words = (params["Embed_0"]["embedding"][x["tokens"]] * mask).sum(1) / mask.sum(1)
    z = (words @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])[:, 0]
    assert result.clients["global"]["top1"][i] == np.mean((z > 0) == y)
    assert result.clients["global"]["loss"][i] == pytest.approx(
      np.log1p(np.exp(np.where(y, -z, z))).mean(), rel=1e-4, abs=1e-6
    )


@pytest.mark.slow
def test_trees_are_streamed_and_swept_alike():
  client = partial(fh.fedavg, READER, epochs=1, batch_size=4)
  whole = train(client(lr=0.5), TEXTS)
  parts = train(client(lr=0.5), TEXTS, device_rows=90)
  for own, other in zip(*(jax.tree.leaves((each.state, each.clients)) for each in (whole, parts))):
    np.testing.assert_array_equal(
      *map(jax.random.key_data, (own, other))
      if jnp.issubdtype(own.dtype, jax.dtypes.prng_key)
      else (own, other)
    )
  swept = fh.sweep(
    lambda lr: fh.federated(client(lr=lr)), {"lr": [0.5]}, seeds=KEY[None], data=[TEXTS],
    rounds=6, cohort_size=3, devices=1,
  )  # fmt: skip
  np.testing.assert_allclose(swept.infos.clients.loss[0], whole.infos.clients.loss, rtol=1e-5)
  assert swept.metrics[0]["global"]["loss"]["mean"] == pytest.approx(
    whole.metrics["global"]["loss"]["mean"], rel=1e-5
  )


class Speaker(nn.Module):
  """The next token from this one."""

  @nn.compact
  def __call__(self, tokens):
    return nn.Dense(V)(nn.Embed(V, 4)(tokens))


@pytest.mark.slow
def test_next_tokens_are_learnt_and_those_to_ignore_do_not_count():
  """The next is always one higher; at a client's ignored positions it is said to be another."""
  x = RNG.integers(0, V - 1, (N, T))
  y = x + 1
  y[:, 2], y[PARTS[1]] = 0, 0  # and client 1 has nothing that counts
  task = tasks.next_token(ignore=(0,))
  data = federate(x, y, num_classes=V, task=task)
  model = fh.models.from_flax(Speaker(), (T,), V, dtype=jnp.int32, task=task)
  result = train(fh.fedavg(model, lr=1.0, epochs=5, batch_size=4), data, fh.mixing.qffl(q=1.0))
  assert np.isfinite(result.infos.clients.loss).all()
  known = result.clients["global"]
  assert next(iter(known)) == "top1" and np.isnan(known["perplexity"][1]) and np.isfinite(known["loss"][0])
  assert np.nanmin(known["top1"]) == 1.0 and np.nanmax(known["perplexity"]) < 1.5
  seen = result.infos.losses[result.infos.cohort == 1]
  assert len(seen) and not seen.any()  # its F_i is the mean of nothing


def test_outputs_are_judged_a_few_rows_at_a_time(monkeypatch):
  x = RNG.integers(0, V, (N, T))
  data = federate(x, np.roll(x, 1, axis=1), num_classes=V, task=tasks.next_token((2,)))
  model = fh.models.from_flax(Speaker(), (T,), V, dtype=jnp.int32, task=tasks.next_token((2,)))
  params, own = model.init(KEY), data.clients(jnp.int32(0))
  judged = jax.jit(lambda apply: evaluate.evaluate_model(model.task, apply, params, own), static_argnums=0)
  whole, sizes = judged(model.apply), []

  def apply(params, x):
    sizes.append(len(x))
    return model.apply(params, x)

  monkeypatch.setattr(evaluate, "OUTPUTS_AT_ONCE", 5 * T * V)
  for name, value in judged(apply).items():
    np.testing.assert_allclose(value, whole[name], rtol=1e-6)
  assert own.limit > 5 >= max(sizes)


@pytest.mark.slow
def test_many_labels_are_learnt():
  x = RNG.normal(size=(N, D)).astype(np.float32)
  y = (x[:, :3] > 0).astype(int)
  data = federate(x, y, num_classes=3, task=tasks.multilabel())
  model = fh.models.make("logistic_regression", (D,), 3, tasks.multilabel())
  result = train(fh.fedavg(model, lr=1.0, epochs=3, batch_size=4), data)
  falls(result)
  assert next(iter(result.metrics["global"])) == "auroc"
  assert (
    result.metrics["global"]["auroc"]["mean"] > 0.9 and result.metrics["global"]["accuracy"]["mean"] > 0.8
  )


def numbers():
  x = RNG.normal(size=(N, D)).astype(np.float32)
  return x, (x @ np.arange(D) + 0.1 * RNG.normal(size=N)).astype(np.float32)


NUMBERS = federate(*numbers(), num_classes=1, task=tasks.regression())
LINE = fh.models.make("logistic_regression", (D,), 1, tasks.regression())


def mse(params, x, y):
  (kernel,) = (leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
  (bias,) = (leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 1)
  return np.mean((np.asarray(x @ kernel + bias)[:, 0] - y) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("mixing", [fh.mixing.qffl(q=1.0), fh.mixing.aaggff_d()], ids=lambda m: m.name)
def test_a_mixing_is_driven_by_a_regression_s_loss(mixing):
  algorithm = fh.federated(fh.fedavg(LINE, lr=0.02, epochs=3, batch_size=4), mixing)
  result = fh.run(algorithm, NUMBERS, **SETTINGS)
  falls(result)
  start = fh.Engine(algorithm, NUMBERS, 3, devices=1).init(KEY).broadcast.params
  wanted = [mse(start, *rows_of(NUMBERS, i, "train")) for i in result.infos.cohort[0]]
  np.testing.assert_allclose(result.infos.losses[0], wanted, rtol=1e-4)
  for i in range(len(PARTS)):
    x, y = rows_of(NUMBERS, i, "test")
    if len(y):
      wanted = mse(result.state.broadcast.params, x, y)
      assert result.clients["global"]["rmse"][i] == pytest.approx(wanted**0.5, rel=1e-4)


@pytest.mark.slow
def test_lambda_is_picked_where_the_error_is_lowest():
  result = train(fh.superfed(LINE, lr=0.01, epochs=2, batch_size=4, start_round=0), NUMBERS)
  means = np.nanmean(result.validation.personalized["rmse"], axis=0)
  assert means.argmin() != means.argmax()
  assert result.picked == (means.argmin(), "validation", "rmse")
  assert next(iter(result.metrics["personalized"])) == "rmse"


# Labels and outputs that do not fit, where the data meet a model; classes that weigh more.


@pytest.mark.parametrize(
  ("model", "data", "says"),
  [
    (fh.models.make("logistic_regression", (D,), 3), NUMBERS, "y = .*float32, not a whole number"),
    (fh.models.make("logistic_regression", (D,), 2, tasks.regression()), NUMBERS, r"outputs \[B, 1\]"),
    (READER, NUMBERS, "model = .*it cannot be applied"),
    (LINE, TEXTS, "it cannot be applied to an example of this shape, {'mask': 'bool', 'tokens': 'int32'}"),
  ],
)  # fmt: skip
def test_what_does_not_fit_is_named_before_anything_is_compiled(model, data, says):
  if data is NUMBERS and model is READER:
    model = model._replace(task=tasks.regression())
  with pytest.raises(fh.SettingError, match=says):
    fh.Engine(fh.federated(fh.fedavg(model)), data, 2, devices=1)


def test_a_task_of_one_s_own_has_a_metric_of_its_own(monkeypatch):
  """Poisson counts: exp(z) - y·z, and the share of counts that are told to within one half."""

  def losses(z, y):
    return jnp.exp(z[:, 0]) - y * z[:, 0], None

  def metrics(scores, y, mask):
    return {name: jnp.sum(jnp.where(mask, own, 0.0)) / mask.sum() for name, own in scores.items()}

  counts = tasks.regression()._replace(
    name="counts", losses=losses, metrics=metrics, headline=("told",),
    scores=lambda z, y: {"told": abs(jnp.exp(z[:, 0]) - y) < 0.5, "loss": losses(z, y)[0]},
  )  # fmt: skip
  x = RNG.normal(size=(N, D)).astype(np.float32)
  data = federate(x, RNG.poisson(np.exp(x[:, 0] / 2)), num_classes=1, task=counts)
  model = fh.models.make("logistic_regression", (D,), 1, counts)
  with pytest.raises(fh.SettingError, match=r"task = 'counts': the catalogue .* 'told' .*METRICS\['told'\]"):
    train(fh.fedavg(model), data)
  monkeypatch.setitem(METRICS, "told", Metric("told", "told", "%"))
  silent = model._replace(task=counts._replace(headline=("top1",)))
  with pytest.raises(fh.SettingError, match=r"lack loss, or a headline of \('top1',\)"):
    train(fh.fedavg(silent), data)
  result = train(fh.fedavg(model, lr=0.01, epochs=3, batch_size=4), data)
  losses = result.infos.clients.loss.mean(axis=1)
  assert losses[-1] < losses[0] and next(iter(result.metrics["global"])) == "told"


def test_a_module_s_task_says_what_its_outputs_are():
  for task in (None, tasks.next_token()):
    with pytest.raises(fh.SettingError, match="num_classes = 7"):
      fh.models.from_flax(Speaker(), (T,), 7, dtype=jnp.int32, task=task)
  with pytest.raises(fh.SettingError, match=r"Speaker returns \(2, 4, 6\)"):
    fh.models.from_flax(Speaker(), (T,), V, dtype=jnp.int32)
  two = fh.models.make("logistic_regression", (D,), 2, tasks.classification())
  one = fh.models.make("logistic_regression", (D,), 2)
  assert (two.num_classes, one.num_classes) == (2, 1)
  assert (two.task.name, one.task.name) == ("classification", "binary")


def source(**changes):
  x = RNG.normal(size=(N, D)).astype(np.float32)
  y = (RNG.random(N) < 0.25).astype(np.int32)
  return Source(x, y, x[:0], y[:0], 2, "mine")._replace(**changes)


def test_a_configuration_s_task():
  binary, numbers = source(), source(task=tasks.regression(), num_classes=1)
  y = binary.y
  assert build_task({}, binary).name == "binary" and build_task({}, numbers) is numbers.task
  assert build_task({"name": "classification"}, binary).name == "classification"
  z = jnp.zeros((N, 2))
  weighted = build_task({"name": "classification", "class_weights": "balanced"}, binary, y)
  _, weight = weighted.losses(z, y)
  assert np.bincount(y, weight) == pytest.approx([N / 2, N / 2])
  total, _ = build_task({"positive_weight": "balanced"}, binary, y).losses(z[:, :1], y)
  assert np.bincount(y, total)[0] == pytest.approx(np.bincount(y, total)[1])
  for given, says in (
    ({"name": "binari"}, "Did you mean 'binary'"),
    ({"class_weight": "balanced"}, "Did you mean 'class_weights'"),
    ({"positive_weight": "balancd"}, "Did you mean 'balanced'"),
    ({"class_weights": "balanced"}, "task.class_weights = 'balanced': unknown to binary"),
    ({"name": "regression", "ignore": (0,)}, "task.ignore = "),
  ):
    config = get_config()
    config.task = given
    with pytest.raises(fh.SettingError, match=says):
      plan(config)
      build_task(given, binary)


def test_a_generator_has_no_task_to_set():
  config = get_config()
  config.task, config.model = {"class_weights": "balanced"}, {"name": "cvae_mlp"}
  with pytest.raises(fh.SettingError, match=r"task = .*balanced.*: a generator"):
    plan(config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_launched(kind, tmp_path, monkeypatch, capsys):
  x = RNG.normal(size=(N, D)).astype(np.float32)
  y = {"regression": x @ np.arange(D, dtype=np.float32), "multilabel": (x[:, :3] > 0).astype(np.int32)}[kind]
  mine = Source(
    x, y, x[:0], y[:0], {"regression": 1, "multilabel": 3}[kind], "mine", task=tasks.TASKS[kind]()
  )
  monkeypatch.setattr(build.datasets, "load", lambda *_, **__: mine)
  config = get_config()
  config.update(rounds=4, eval_every=2, num_clients=4, cohort_size=2, valid_fraction=0.2)
  config.model, config.partition = {"name": "logistic_regression"}, {"name": "iid"}
  config.local.update(lr=0.05, epochs=2)
  run = tmp_path / "run"
  summary = experiment.run_experiment(config, str(run), Where(devices=1))
  first = {"regression": "rmse", "multilabel": "auroc"}[kind]
  assert next(iter(summary["metrics"]["personalized"])) == summary["lambda"]["metric"] == first
  lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  assert lines[-1]["train_loss"] < lines[0]["train_loss"]
  drawn = {path.name for path in (run / "figures").iterdir()}
  assert {"learning_curve.png", "accuracy_over_clients.png", "lambda_curve.png"} <= drawn
  assert "partition.png" in drawn  # of sizes alone
  capsys.readouterr()
  Console().print(report(json.loads((run / "summary.json").read_text())))
  shown = capsys.readouterr().out
  assert all(
    text in shown for text in {"regression": ("RMSE", "R²"), "multilabel": ("AUROC", "exact (%)")}[kind]
  )
  config.partition = {"name": "dirichlet", "alpha": 0.5}
  with pytest.raises(fh.SettingError, match="partition by iid or natural"):
    build.build(plan(config))
