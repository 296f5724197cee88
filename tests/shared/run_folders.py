"""Folders as runs leave them, written by hand, for tests of what reads them."""

import json

import numpy as np

CONFIG = {
  "dataset": "digits", "data_dir": "", "rounds": 30, "seed": 0, "cohort_size": 5, "eval_every": 10,
  "algorithm": {"name": "fedavg"}, "local": {"lr": 0.05}, "mixing": {"name": "static"},
}  # fmt: skip
FIGURES = ("mean", "std", "worst10", "best10", "gini", "gap")


def figures(mean):
  """All figures over the clients, each its own number; null of null."""
  return {name: None if mean is None else mean - i / 100 for i, name in enumerate(FIGURES)}


def both(mean):
  """Of both models and two metrics; the global model is 0.1 worse."""
  return {
    model: {"top1": figures(mean and mean - less), "loss": figures(mean and 2 - mean + less)}
    for model, less in (("personalized", 0.0), ("global", 0.1))
  }


def write_run(folder, means=(0.5, 0.6, 0.7), ended=True, summary=None, arrays=None, line=None, **changes):
  """A run with an evaluation every ten rounds.

  Args:
    folder: where.
    means: of the personalised top-1 at the evaluations; None of one that has diverged.
    ended: whether there is a summary.
    summary: fields of it beside `metrics`.
    arrays: file -> what the .npz holds.
    line: fields of each line of metrics.jsonl.
    changes: fields of the configuration; "a__b" is b in section a.
  """
  config = json.loads(json.dumps(CONFIG))
  for name, value in changes.items():
    *sections, field = name.split("__")
    place = config
    for section in sections:
      place = place.setdefault(section, {})
    place[field] = value
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(config))
  lines = [
    {"round": 10 * i, "train_loss": mean and 1 - mean, "metrics": both(mean), **(line or {})}
    for i, mean in enumerate(means, 1)
  ]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(own) + "\n" for own in lines))
  if ended:
    (folder / "summary.json").write_text(json.dumps({"metrics": both(means[-1]), **(summary or {})}))
  for name, own in (arrays or {}).items():
    (folder / name).parent.mkdir(exist_ok=True)
    np.savez_compressed(folder / name, **own)
  return folder


def read_page(path):
  """The content of a page of `fedjax_het.compare`, as `content.content` made it."""
  text = path.read_text(encoding="utf-8")
  own = text.partition('<script type="application/json" id="content">')[2].partition("</script>")[0]
  return json.loads(own)
