"""Evaluates a run's last global model with three kinds of batch-normalisation statistics.

    python benchmarks/papers/statistics_judged.py RUN [RUN ...]

RUN is the workdir of a finished run whose model has running statistics; its last checkpoint is evaluated on
each client's test part with
running  the averaged statistics that the model was sent with, as in the run's own evaluation
own      the client's own statistics, from its training examples in batches of B (clients/statistics.py)
test     the statistics of the client's test part in one batch, as SuPerFed's authors evaluate
Figures are top-1 and top-5 in percent, as means over the clients that have test examples. They are written to
docs/results/raw/statistics_judged.json.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_het as fh
from benchmarks.papers.ended import ended
from benchmarks.provenance import RAW, provenance
from fedjax_het.clients.statistics import own_statistics
from fedjax_het.models.layers.real_rows import only

KINDS = ("running", "own", "test")


def judged(folder: Path) -> dict[str, float]:
  """Mean top-1 and top-5 over the clients, by kind."""
  config, experiment, _, state = ended(folder)
  model, data = experiment.model, experiment.data
  params, stats = state.broadcast.params, state.broadcast.stats
  data = jax.tree.map(jnp.asarray, data)
  rows = jnp.arange(max(int(np.max(data.test.size)), 1))

  @jax.jit
  def client(i):
    test = data.clients(i, "test")
    real = (rows < test.length).astype(jnp.float32)
    x, y = test.take(jnp.where(real > 0, rows, 0))
    own = own_statistics(model, params, stats, data.clients(i), config.local.batch_size)
    with only(real):
      batch = model.train(params, stats, x, real, jax.random.key(0))[0]
    logits = jnp.stack([model.apply(params, x, stats), model.apply(params, x, own), batch])
    place = (logits > jnp.take_along_axis(logits, y[None, :, None], 2)).sum(2)
    return [(real * (place < k)).sum(1) / real.sum() for k in (1, 5)]

  found = [client(i) for i in range(data.num_clients) if data.test.size[i]]
  means = 100 * np.mean(np.asarray(found), axis=0)
  return {
    f"{top}, {kind}": float(means[j, k])
    for j, top in enumerate(("top1", "top5"))
    for k, kind in enumerate(KINDS)
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, default=RAW / "statistics_judged.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  results = []
  for folder in args.runs:
    config = json.loads((folder / "config.json").read_text())
    about = {name: config[name] for name in ("dataset", "partition", "rounds", "seed")}
    about |= {"model": config["model"]["name"], "algorithm": config["algorithm"]["name"]}
    results.append(about | judged(folder))
    print(json.dumps(results[-1]), flush=True)
  made = {"command": "python benchmarks/papers/statistics_judged.py RUN ...", **provenance()}
  args.out.write_text(json.dumps(made | {"results": results}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
  main()
