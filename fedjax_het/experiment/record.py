"""The record of one run: its books, its metrics as they come, its summary and its pictures."""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.divergence import Divergence, divergence, unknown
from fedjax_het.engine.engine import Seconds
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.pick import Evaluations, Pick, headline, pick
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.run import per_client, summarize
from fedjax_het.experiment import figures
from fedjax_het.experiment.build import Experiment
from fedjax_het.experiment.synthetic import Samples, yardsticks
from fedjax_het.experiment.tracking import Tracker, to_json
from fedjax_het.experiment.workdir import Workdir, free_name, write_atomic
from fedjax_het.federated import Algorithm, Message, State
from fedjax_het.metrics.fairness import left_out
from fedjax_het.metrics.fairness import summarize as over_clients
from fedjax_het.yardsticks.mixture import plot_mixture
from fedjax_het.yardsticks.partition import plot_partition
from fedjax_het.yardsticks.regret import entropy

MANY = 100  # clients of a cohort up to which each one's coefficient is recorded


class Record:
  """What a run leaves in its workdir; in a `with`.

  Args:
    config: its configuration.
    experiment: what that names.
    run: its workdir.
    writes: whether this process writes the files; the others keep the books only.
  """

  def __init__(self, config: ConfigDict, experiment: Experiment, run: Workdir, writes: bool = True):
    """See the class."""
    self.run, self._config, self._experiment = run, config, experiment
    self._steps = 0
    self._losses: list[float] = []  # of the rounds since the last evaluation
    self._earlier = Seconds()  # of the starts before this one
    self.diverged: Divergence | None = None
    self._tracker = Tracker(run) if writes else None
    synthesize = experiment.algorithm.client.synthesize
    self.synthesizes = synthesize is not None
    self._samples = Samples(run.samples, synthesize, experiment.key) if writes and synthesize else None

  def __enter__(self) -> "Record":
    """Itself."""
    return self

  def __exit__(self, *exc: object) -> None:
    """Closes the files."""
    if self._tracker:
      self._tracker.close()

  def keep_metrics(self) -> None:
    """Copies metrics.jsonl before a start from round 0, for want of a whole checkpoint, empties it."""
    if self._tracker and (text := self.run.metrics_path.read_text(encoding="utf-8", errors="replace")):
      kept = free_name(self.run.root / "metrics.before_damage.jsonl")
      write_atomic(kept, text)
      logging.warning("No checkpoint is whole: the run starts at round 0, and %s keeps its metrics.", kept)

  def begin(self, rounds_done: int, books: Mapping[str, Any] | None) -> None:
    """Takes up a checkpoint's books after `rounds_done` rounds, and forgets what was written past it."""
    if books is not None:
      self._steps, self._losses = books["client_steps"], list(books["losses"])
      self._earlier = Seconds(**books["seconds"])
      self.diverged = Divergence(**books["diverged"]) if books.get("diverged") else None
    if self._tracker:
      self._tracker.truncate(rounds_done if rounds_done else -1)
      if self._samples:
        self._samples.truncate(rounds_done)
      plot_partition(
        self._experiment.parts, self._experiment.source.y, self.run.figures / "partition.png",
        self._experiment.data.num_classes,
      )  # fmt: skip

  def books(self, seconds: Seconds) -> dict[str, Any]:
    """What a checkpoint keeps beside the state."""
    return {
      "client_steps": self._steps, "seconds": self._total(seconds), "losses": self._losses,
      "diverged": self.diverged and self.diverged._asdict(),
    }  # fmt: skip

  def add(
    self,
    done: int,
    infos: RoundInfo,
    evaluations: Evaluations | None,
    seconds: Seconds,
    broadcast: Message | None = None,
  ) -> dict[str, float]:
    """Books a chunk of rounds that ends with round `done`: the figures that progress shows.

    Of a `broadcast` the synthetic examples are kept. Of a run that has diverged nothing is shown or kept, and
    its metrics are NaN.
    """
    if not self.diverged and (found := divergence(done - len(infos.cohort), infos)):
      self.diverged = found
      logging.warning("%s of %s; the other members go on.", found, self.run.root.name)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite losses of opposite signs
      self._losses.extend(float(loss) for loss in infos.clients.loss.mean(axis=1))
      train_loss = float(np.mean(self._losses))
    self._steps += int(infos.clients.steps.sum())
    latest = {"loss": self._losses[-1]}
    if evaluations is not None:
      metrics = summarize(self._known(evaluations))
      metric = headline_of(metrics)
      latest[metric] = metrics["personalized"][metric]["mean"]
      if self._samples and broadcast is not None and not self.diverged:
        self._samples.add(done, broadcast)
      if self._tracker:
        self._tracker.log(
          {
            "round": done, "train_loss": train_loss, "metrics": metrics,
            "seconds": self._total(seconds), "mixing": mixing_report(infos),
          }
        )  # fmt: skip
      self._losses = []
    return {} if self.diverged else latest

  def finish(self, state: State, evaluations: Evaluations, seconds: Seconds) -> dict[str, Any]:
    """Writes the summary and the pictures; only the shapes of the state are asked."""
    config, algorithm = self._config, self._experiment.algorithm
    evaluations = self._known(evaluations)
    summary = {
      "algorithm": algorithm.client.name,
      "mixing": algorithm.mixing.name,
      "server": algorithm.server.name,
      "dataset": config.dataset,
      "rounds": config.rounds,
      "num_clients": self._experiment.data.num_clients,
      "cohort_size": config.cohort_size,
      "client_steps": self._steps,
      "seconds": self._total(seconds),
      "bytes": traffic(algorithm, self._experiment.data, state, config.rounds * config.cohort_size),
      "metrics": summarize(evaluations),
    }
    if self.diverged:
      summary["diverged"] = self.diverged._asdict()
    missing = {kind: left_out(values) for kind, values in per_client(evaluations).items()}
    if any(missing.values()) and not self.diverged:
      summary["left_out"] = {kind: counts for kind, counts in missing.items() if counts}
    if len(algorithm.client.lambdas) > 1:
      summary["lambda"] = lambda_report(algorithm.client.lambdas, evaluations)
    if self._samples and not self.diverged:
      print("Judging the synthetic examples, by a classifier that learns from them alone ...", flush=True)
      summary["synthetic"] = yardsticks(config, self._experiment, *self._samples.last())
    if self._samples:
      self._samples.draw(self.run.figures, self._experiment.data.num_classes)
    if self._tracker:
      draw(self.run, summary, evaluations)
      write_atomic(self.run.summary_path, to_json(summary, indent=2))
    return summary

  def _known(self, evaluations: Evaluations) -> Evaluations:
    return unknown(evaluations) if self.diverged else evaluations

  def _total(self, seconds: Seconds) -> dict[str, float]:
    return {kind: getattr(self._earlier, kind) + now for kind, now in seconds._asdict().items()}


def headline_of(metrics: Mapping[str, Mapping[str, Any]]) -> str:
  """The metric that pictures and progress show: AUROC for binary tasks, else top-1."""
  return headline(metrics["personalized"])


def mixing_report(infos: RoundInfo) -> dict[str, Any]:
  """The coefficients of the last of some rounds: their entropy (nats), Σ_i p_i F_i, and who had which.

  `objective` is null where the mixing asks for no losses (`record_losses=True` in the configuration asks),
  and the single coefficients are left out for cohorts of more than a hundred.
  """
  cohort, p, losses = infos.cohort[-1], infos.coefficients[-1], infos.losses[-1]
  with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity
    objective = float((p * losses).sum())
  report: dict[str, Any] = {"entropy": float(entropy(p)), "objective": objective}
  if len(cohort) <= MANY:
    order = np.argsort(cohort)
    report |= {"cohort": cohort[order].tolist(), "coefficients": p[order].tolist()}
  return report


def traffic(algorithm: Algorithm, data: FederatedData, state: State, visits: int) -> dict[str, int]:
  """Bytes sent to (down) and by (up) clients in so many visits, as the algorithm would send them."""

  def update(state, data):
    own_state = jax.tree.map(lambda leaf: leaf[0], state.clients)
    return algorithm.client.update(state.key, state.broadcast, own_state, data.clients(0), state.round)[0]

  def size(message: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))

  return {"up": visits * size(jax.eval_shape(update, state, data)), "down": visits * size(state.broadcast)}


def lambda_report(grid: tuple[float, ...], evaluations: Evaluations) -> dict[str, Any]:
  """The curve of the headline's metric over λ on the test parts, and what each way of choosing λ gives.

  `common` is the λ of the headline: one for all clients, see `pick`; `picked_on` and `picked_by` say what
  picked it. `validation` picks each client's λ on its validation part; `per_client_test_optimistic` on the
  very test part that it is then reported on, as the authors' code does.
  """
  test, valid = evaluations
  picked, metric = pick(evaluations), headline(test.personalized)
  values = test.personalized[metric]
  curve = [over_clients(column) for column in values.T]

  def spread(values: np.ndarray) -> dict[str, float]:
    return {name: over_clients(values)[name] for name in ("mean", "std")}

  report: dict[str, Any] = {
    "grid": list(grid),
    "metric": metric,
    "mean": [own["mean"] for own in curve],
    "std": [own["std"] for own in curve],
    "common": None if np.isnan(values).all() else grid[picked.column],
    "picked_on": picked.on,
    "picked_by": picked.by,
    "per_client_test_optimistic": spread(values.max(axis=1)),
  }
  if valid is not None:
    chosen = best_lambda(valid, picked)
    report["validation"] = spread(np.take_along_axis(values, chosen[:, None], axis=1)[:, 0])
  return report


def best_lambda(valid: Evaluation, picked: Pick) -> np.ndarray:
  """Each client's best column by the same metric, ties by the lower loss, int [K]; else the common one."""
  values, loss = valid.personalized[picked.by], valid.personalized["loss"]
  best = np.lexsort((loss, -values), axis=-1)[:, 0]
  return np.where(np.isnan(values).any(axis=1), picked.column, best)


def draw(run: Workdir, summary: dict[str, Any], evaluations: Evaluations) -> None:
  """The pictures of a finished run."""
  records = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
  title = f"{summary['algorithm']} on {summary['dataset']}, {summary['num_clients']} clients"
  metric = headline_of(summary["metrics"])
  figures.learning_curve(records, run.figures / "learning_curve.png", metric=metric, title=title)
  values = {kind: metrics[metric] for kind, metrics in per_client(evaluations).items()}
  figures.accuracy_over_clients(values, run.figures / "accuracy_over_clients.png", metric=metric, title=title)
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
      curve["grid"], curve["mean"], curve["std"], run.figures / "lambda_curve.png", metric=curve["metric"],
      common=curve["common"], picked_on=curve["picked_on"], title=title,
    )  # fmt: skip
