"""The content of a comparison page as one JSON document: groups, runs, and data of each run's pictures."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_het.compare.conditions import unequal_conditions
from fedjax_het.compare.curves import AXES, for_page
from fedjax_het.compare.groups import Group, budget_of, late_of
from fedjax_het.compare.plain import headline
from fedjax_het.compare.runs import Run
from fedjax_het.metrics.budget import unequal
from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.seeds import quantile
from fedjax_het.studies import STUDIES, client_metrics, partition
from fedjax_het.studies.late import WHAT
from fedjax_het.studies.samples import sample_files, sample_grid
from fedjax_het.studies.stored import arrays_of, short
from fedjax_het.studies.study import series
from fedjax_het.workdir.tracking import scalars

MOST_CLIENTS = 200  # up to this many, each client is a point of the sorted curve; else quantiles are drawn
MOST_CELLS = 20_000  # up to this many clients times classes, a partition is drawn in the page
MOST_LINES = 12  # up to this many clients, each has a line of mixing coefficients
QUANTILES = (0, 10, 50, 90, 100)  # percentiles of the cohort's coefficients, shown for more clients
MOST_CLASSES = 1000  # classes of synthetic images that are drawn at most, one row each
FRAMES = 10  # pictures of a run's synthetic examples over the rounds, at most


def content(groups: Sequence[Group], baseline: int = 0) -> dict[str, Any]:
  """Returns the content of a page as a JSON-compatible dictionary.

  Args:
    groups: the groups of runs to show.
    baseline: the index of the group that the others are compared with at first.

  Returns:
    A dictionary with baseline, metric, fields, late (the note on the mark of means that have not settled),
    over and axes (what the learning curves are drawn over), budgets and conditions (notes on unequal ones),
    groups (label, fields, data, state, late, budget, runs, counted), runs,
    partitions (without repetitions), metrics (labels and units), and quantiles (t_{0.975} of 1, 2, ...
    degrees of freedom). Values that are missing or not finite are None.
  """
  places = {id(run): place for place, run in enumerate(run for group in groups for run in group.runs)}
  partitions: dict[str, dict[str, Any]] = {}
  runs = []
  for place, group in enumerate(groups):
    for run in group.runs:
      first = run is (group.counted or group.runs)[0]
      shared = _partition(run, partitions)
      runs.append(_run(run, group, first) | {"group": place, "partition": shared})
  names = {metric for run in runs for model in run["metrics"].values() for metric in model}
  names |= {run[part]["metric"] for run in runs for part in ("lambda", "simplex") if run.get(part)}
  fields = list(dict.fromkeys(name for group in groups for name in group.fields))
  return {
    "baseline": baseline,
    "metric": next(filter(None, map(headline, groups)), ""),
    "fields": fields,
    "late": WHAT,
    "over": "round",
    "axes": AXES,
    "budgets": unequal({group.label: budget_of(group) for group in groups}),
    "conditions": unequal_conditions(groups),
    "groups": [
      {
        "label": group.label, "fields": dict(group.fields), "data": dict(group.data),
        "state": group.state, "late": late(group), "budget": budget_of(group),
        "runs": [places[id(run)] for run in group.runs],
        "counted": [places[id(run)] for run in group.counted],
      }
      for group in groups
    ],
    "runs": runs,
    "partitions": list(partitions.values()),
    "metrics": {name: shown(name)._asdict() | {"factor": shown(name).factor} for name in sorted(names)},
    "quantiles": [quantile(n) for n in range(1, max(len(group.runs) for group in groups))],
  }  # fmt: skip


def late(group: Group) -> dict[str, dict[str, tuple[float, float]]]:
  """Returns model -> metric -> the range of the late means, for those that have not settled."""
  names = {
    (model, name) for run in group.counted for model, own in group.metrics(run).items() for name in own
  }
  found: dict[str, dict[str, tuple[float, float]]] = {}
  for model, name in sorted(names):
    if ends := late_of(group, model, name):
      found.setdefault(model, {})[name] = ends
  return found


def _run(run: Run, group: Group, first: bool) -> dict[str, Any]:
  """Returns the content of a run; larger pictures are included for the first run of a group only."""
  along = run.summary.get("lambda")
  return {
    "name": run.name,
    "folder": str(run.folder),
    "seed": run.seed,
    "state": run.state,
    "diverged": run.diverged,
    "metrics": group.metrics(run),
    "curves": curves(run),
    "axes": for_page(run),
    "clients": clients(run),
    "named_clients": named_clients(run),
    "lambda": along and {"metric": "top1", **along},  # earlier commits knew this metric only
    "mixture": mixture(run),
    "simplex": run.summary.get("simplex"),
    **{name: shown for study in STUDIES for name, shown in study.on_page(run.folder).items()},
    "samples": samples(run) if first else [],
    "pictures": {"simplex": picture(run.folder / "figures" / "simplex_clients.png")} if first else {},
  }


def curves(run: Run) -> dict[str, Any]:
  """Returns all numbers of a run's metrics.jsonl by "part/part/name", [R] each, and `round`, [R]."""
  names = dict.fromkeys(name for line in run.lines for name, _ in scalars(line) if name != "round")
  found = {name: short(series(run.lines, *name.split("/"))) for name in names}
  return {"round": [line["round"] for line in run.lines], **found}


def clients(run: Run) -> dict[str, Any]:
  """Returns the clients' values of each metric, worst first, under "MODEL/METRIC", and `count`.

  Values of more than 200 clients are reduced to 200 quantiles.
  """
  found: dict[str, Any] = {}
  for name, values in arrays_of(run.folder / client_metrics.FILE).items():
    if values.ndim != 1:
      continue
    x = np.sort(values[np.isfinite(values)])
    if not len(x):
      continue
    if not shown(name.rpartition("/")[2]).higher_is_better:
      x = x[::-1]
    at = np.linspace(0, len(x) - 1, min(len(x), MOST_CLIENTS))
    found[name] = {"count": len(x), "values": short(np.interp(at, np.arange(len(x)), x))}
  return found


def named_clients(run: Run) -> dict[str, dict[str, float | None]]:
  """Returns named clients' values, "MODEL/METRIC" -> name -> value; {} without names or above 200 clients."""
  names, values = client_metrics.read_clients(run.folder)
  if names is None or len(names) > MOST_CLIENTS:
    return {}
  return {
    name: dict(zip(map(str, names), short(own))) for name, own in values.items() if own.shape == names.shape
  }


def mixture(run: Run) -> dict[str, Any] | None:
  """Returns mixing coefficients over rounds: of each client, or quantiles for large or varying cohorts."""
  lines = [line for line in run.lines if (line.get("mixing") or {}).get("coefficients")]
  lines = [own for own in lines if len(_coefficients(own)) == len(_coefficients(lines[0]))]
  if not lines or len(_coefficients(lines[0])) < 2:
    return None
  cohorts = [line["mixing"].get("cohort") for line in lines]
  p = np.array([*map(_coefficients, lines)], np.float64)
  each = p.shape[1] <= MOST_LINES and all(own == cohorts[0] for own in cohorts)
  if each:
    named = {f"client {client}": short(own) for client, own in zip(cohorts[0] or [], p.T)}
  else:
    with np.errstate(invalid="ignore"):
      named = {f"{q} %": short(np.percentile(p, q, axis=1)) for q in QUANTILES}
  return {"round": [line["round"] for line in lines], "each": each, "even": 1 / p.shape[1], "lines": named}


def _coefficients(line: Mapping[str, Any]) -> list[float | None]:
  return line["mixing"]["coefficients"]


def _partition(run: Run, known: dict[str, dict[str, Any]]) -> int | None:
  """Returns the index of a run's partition in `known`, to which it is added if it is new."""
  arrays = arrays_of(run.folder / partition.FILE, "biufU")
  counts = arrays.get("counts")
  own: dict[str, Any]
  if (
    counts is not None and counts.dtype.kind in "biuf" and counts.ndim == 2 and 0 < counts.size <= MOST_CELLS
  ):
    key, own = f"{counts.shape}{counts.tobytes().hex()}", {"counts": counts.tolist()}
    for name, count in zip(("names", "classes"), counts.shape):
      if name in arrays and arrays[name].shape == (count,):
        own[name] = [*map(str, arrays[name])]
        key += str(own[name])
  elif image := picture(run.folder / "figures" / "partition.png"):
    key, own = image, {"picture": image}
  else:
    return None
  known.setdefault(key, own | {"runs": []})["runs"].append(run.name)
  return [*known].index(key)


def samples(run: Run) -> list[dict[str, Any]]:
  """Returns up to ten grids of a run's synthetic images, evenly spaced over the rounds: round and picture."""
  paths = sample_files(run.folder / "samples")
  chosen = np.unique(np.linspace(0, len(paths) - 1, min(len(paths), FRAMES)).round().astype(int))
  found = []
  for path in (paths[place] for place in chosen):
    arrays = arrays_of(path)
    if {*arrays} == {"x", "y"} and _are_images(arrays["x"], arrays["y"]):
      grid = sample_grid(arrays["x"], arrays["y"], int(arrays["y"].max()) + 1)
      found.append({"round": int(path.stem), "picture": _png(grid, grey=arrays["x"].shape[-1] == 1)})
  return found


def picture(path: Path) -> str | None:
  """Reads a PNG file as a data URL for the page; None where there is none."""
  try:
    return _uri(path.read_bytes())
  except OSError:
    return None


def _png(grid: np.ndarray, grey: bool) -> str:
  pixels = (255 * grid).round().astype(np.uint8)
  file = io.BytesIO()
  Image.fromarray(pixels[..., 0] if grey else pixels).save(file, "PNG", optimize=True)
  return _uri(file.getvalue())


def _uri(content: bytes) -> str:
  return "data:image/png;base64," + base64.b64encode(content).decode()


def _are_images(x: np.ndarray, y: np.ndarray) -> bool:
  """Returns whether x, [N, height, width, 1 or 3], and y, [N], are images labelled by few classes."""
  alike = x.ndim == 4 and x.shape[-1] in (1, 3) and y.ndim == 1 and len(y) == len(x) and x.size > 0
  return alike and y.dtype.kind in "iu" and y.min() >= 0 and y.max() < MOST_CLASSES
