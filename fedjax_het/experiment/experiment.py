"""A launched run, from its configuration to its table: resumable, watched, recorded."""

import json
import os
import time
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_het.analysis.mixing_plot import plot_mixture
from fedjax_het.analysis.partition_plot import plot_partition
from fedjax_het.analysis.regret import entropy
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.run import chunks, common_lambda, per_client, summarize
from fedjax_het.errors import NonFiniteLoss, check_range
from fedjax_het.experiment import figures
from fedjax_het.experiment.build import Experiment, build, check_config
from fedjax_het.experiment.checkpoint import Checkpoints
from fedjax_het.experiment.progress import Progress
from fedjax_het.experiment.report import print_report
from fedjax_het.experiment.stopping import Stopped, StopRequest
from fedjax_het.experiment.tracking import Tracker, to_json
from fedjax_het.experiment.workdir import Workdir, prepare, write_atomic

MANY = 100  # clients of a cohort up to which each one's coefficient is recorded
WHERE = ("data_dir", "devices", "client_batch")  # where a run computes, not what: may change on resume


def run_experiment(config: ConfigDict, workdir: str, checkpoint_seconds: float = 600.0) -> dict[str, Any]:
  """Runs a configuration in `workdir`, continues it, or shows its result where it is complete.

  Checkpoints are written at every evaluation, at the latest after `checkpoint_seconds`, and on SIGTERM, to
  which a run otherwise listens between two chunks of rounds, a second or two apart.

  Returns:
    The summary, as in summary.json.

  Raises:
    SettingError, DataError: found before anything is compiled.
    NonFiniteLoss: names the round, the client and the last good checkpoint.
    Stopped: SIGTERM came; a checkpoint is written.
  """
  check_config(config)
  check_range("checkpoint_seconds", checkpoint_seconds, 0.0)
  run = prepare(workdir, config.to_dict(), free=WHERE)
  if run.summary_path.exists():
    summary = json.loads(run.summary_path.read_text())
    print_report(summary)
    print(f"This run is complete; its files are in {os.fspath(run)}.")
    return summary
  experiment = build(config)
  plot_partition(
    experiment.parts, experiment.labels, run.figures / "partition.png", experiment.data.num_classes
  )
  engine = Engine(
    experiment.algorithm,
    experiment.data,
    config.cohort_size,
    client_batch=config.client_batch,
    devices=config.devices,
  )
  checkpoints = Checkpoints(run.checkpoints)
  try:
    summary = _train(config, experiment, engine, run, checkpoints, checkpoint_seconds)
  except NonFiniteLoss as error:
    raise NonFiniteLoss(f"{error} Last good checkpoint: {checkpoints.path()}.") from error
  finally:
    checkpoints.close()
  print_report(summary)
  print(f"Table, figures, metrics and checkpoints are in {os.fspath(run)}.")
  return summary


def _train(
  config: ConfigDict,
  experiment: Experiment,
  engine: Engine,
  run: Workdir,
  checkpoints: Checkpoints,
  checkpoint_seconds: float,
) -> dict[str, Any]:
  state = engine.init(experiment.key)
  books: dict[str, Any] = {
    "client_steps": 0, "seconds": dict(compile=0.0, train=0.0, eval=0.0), "losses": [],
  }  # fmt: skip
  state, books = checkpoints.restore(state) or (state, books)
  earlier = books["seconds"]
  steps = books["client_steps"]
  losses: list[float] = books["losses"]  # of the rounds since the last evaluation
  saved = time.monotonic()
  evaluation = None
  first = int(state.round)
  with Tracker(run) as tracker, Progress(config.rounds, first) as progress, StopRequest() as stop:
    tracker.truncate(first if first else -1)
    for chunk in chunks(engine, state, config.rounds, config.eval_every):
      state, done = chunk.state, int(chunk.state.round)
      losses.extend(float(loss) for loss in chunk.infos.clients.loss.mean(axis=1))
      steps += int(chunk.infos.clients.steps.sum())
      latest = {"loss": losses[-1]}
      seconds = {name: earlier[name] + more for name, more in engine.seconds._asdict().items()}
      if chunk.evaluation is not None:
        evaluation = chunk.evaluation
        metrics = summarize(evaluation)
        headline = headline_of(metrics)
        latest[headline] = metrics["personalized"][headline]["mean"]
        tracker.log(
          {
            "round": done, "train_loss": float(np.mean(losses)), "metrics": metrics, "seconds": seconds,
            "mixing": mixing_report(chunk.infos),
          }
        )  # fmt: skip
        losses = []
      if chunk.evaluation is not None or stop.made or time.monotonic() - saved > checkpoint_seconds:
        checkpoints.save(state, {"client_steps": steps, "seconds": seconds, "losses": losses})
        saved = time.monotonic()
      if stop.made and done < config.rounds:
        raise Stopped(f"Stopped by SIGTERM after round {done}; the same command goes on from there.")
      progress.update(done, **latest)
  if evaluation is None:  # stopped between the last checkpoint and the summary
    evaluation = engine.evaluate(state)
  validation = engine.evaluate(state, "valid") if experiment.data.limits[1] else None
  seconds = {name: earlier[name] + more for name, more in engine.seconds._asdict().items()}
  summary = {
    "algorithm": experiment.algorithm.client.name,
    "mixing": experiment.algorithm.mixing.name,
    "server": experiment.algorithm.server.name,
    "dataset": config.dataset,
    "rounds": config.rounds,
    "num_clients": experiment.data.num_clients,
    "cohort_size": config.cohort_size,
    "client_steps": steps,
    "seconds": seconds,
    "bytes": traffic(engine, state, config.rounds),
    "metrics": summarize(evaluation),
  }
  if len(experiment.algorithm.client.lambdas) > 1:
    summary["lambda"] = lambda_report(experiment.algorithm.client.lambdas, evaluation, validation)
  _draw(run, summary, evaluation)
  write_atomic(run.summary_path, to_json(summary, indent=2))
  return summary


def headline_of(metrics: dict[str, dict[str, Any]]) -> str:
  """The metric that pictures and progress show: AUROC for binary tasks, else top-1."""
  return "auroc" if "auroc" in metrics["personalized"] else "top1"


def mixing_report(infos: RoundInfo) -> dict[str, Any]:
  """The coefficients of the last of some rounds: their entropy (nats), Σ_i p_i F_i, and who had which.

  `objective` is null where the mixing asks for no losses (`record_losses=True` in the configuration asks),
  and the single coefficients are left out for cohorts of more than a hundred.
  """
  cohort, p, losses = infos.cohort[-1], infos.coefficients[-1], infos.losses[-1]
  report: dict[str, Any] = {"entropy": float(entropy(p)), "objective": float((p * losses).sum())}
  if len(cohort) <= MANY:
    order = np.argsort(cohort)
    report |= {"cohort": cohort[order].tolist(), "coefficients": p[order].tolist()}
  return report


def traffic(engine: Engine, state: Any, rounds: int) -> dict[str, int]:
  """Bytes sent to (down) and by (up) all clients over the run, as the algorithm would send them."""
  client = engine.algorithm.client
  own = engine.data.clients(np.int32(0))
  own_state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.clients)
  upload = jax.eval_shape(client.update, state.key, state.broadcast, own_state, own, state.round)[0]

  def size(message: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))

  visits = rounds * engine.cohort_size
  return {"up": visits * size(upload), "down": visits * size(state.broadcast)}


def lambda_report(
  grid: tuple[float, ...], evaluation: Evaluation, validation: Evaluation | None
) -> dict[str, Any]:
  """The curve of top-1 over λ, and what each way of choosing λ gives.

  `common` is the λ of the headline: one for all clients, with the best mean. `validation` picks each
  client's λ on its validation part; `per_client_test_optimistic` on the very test part that it is then
  reported on, as the authors' code does.
  """
  top1 = evaluation.personalized["top1"]

  def spread(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(np.nanmean(values)), "std": float(np.nanstd(values))}

  report: dict[str, Any] = {
    "grid": list(grid),
    "mean": np.nanmean(top1, axis=0).tolist(),
    "std": np.nanstd(top1, axis=0).tolist(),
    "common": grid[common_lambda(evaluation)],
    "per_client_test_optimistic": spread(top1.max(axis=1)),
  }
  if validation is not None:
    chosen = best_lambda(validation)
    report["validation"] = spread(np.take_along_axis(top1, chosen[:, None], axis=1)[:, 0])
  return report


def best_lambda(validation: Evaluation) -> np.ndarray:
  """Each client's best column by top-1, ties by the lower loss, int [K]; the common one without examples."""
  top1, loss = validation.personalized["top1"], validation.personalized["loss"]
  best = np.where(top1 == top1.max(axis=1, keepdims=True), loss, np.inf).argmin(axis=1)
  return np.where(np.isnan(top1).any(axis=1), common_lambda(validation), best)


def _draw(run: Workdir, summary: dict[str, Any], evaluation: Evaluation) -> None:
  records = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
  title = f"{summary['algorithm']} on {summary['dataset']}, {summary['num_clients']} clients"
  headline = headline_of(summary["metrics"])
  figures.learning_curve(records, run.figures / "learning_curve.png", metric=headline, title=title)
  values = {kind: metrics[headline] for kind, metrics in per_client(evaluation).items()}
  figures.accuracy_over_clients(
    values, run.figures / "accuracy_over_clients.png", metric=headline, title=title
  )
  mixed = [(r["round"], r["mixing"]) for r in records if "coefficients" in r.get("mixing", {})]
  if mixed and summary["cohort_size"] > 1:
    plot_mixture(
      [mixing["coefficients"] for _, mixing in mixed],
      run.figures / "mixing.png",
      rounds=[number for number, _ in mixed],
      same_clients=summary["cohort_size"] == summary["num_clients"],
      title=f"{summary['mixing']} mixing, {title}",
    )
  if "lambda" in summary:
    curve = summary["lambda"]
    figures.lambda_curve(
      curve["grid"], curve["mean"], curve["std"], run.figures / "lambda_curve.png", title=title
    )
