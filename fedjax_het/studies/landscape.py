r"""Loss landscape around the global model, on a plane of two random directions, or through two other models.

Li, Xu, Taylor, Studer, Goldstein, Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018; thesis, figure
2.4. The plane through three models is Garipov et al.'s, see `studies.plane`. It runs only if configured:
`"--config.landscape={'points': 21}"`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.text import Text

from fedjax_het.data.container import FederatedData
from fedjax_het.data.scale import as_read
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.engine.evaluate import rows_at_once
from fedjax_het.errors import (
  SettingError,
  check_choice,
  check_range,
  check_whole,
  reading,
)
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate
from fedjax_het.studies.plane import check_others, others_of, plane_through, squared_norms
from fedjax_het.studies.plots import GREY, save
from fedjax_het.studies.stored import arrays_of, short, write_arrays
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import number
from fedjax_het.tasks import Task
from fedjax_het.vectors import same_form

PyTree = Any
FILE = "landscape.npz"
LEVELS = 20


def check_surface(
  points: int = 3, span: float = 1.0, part: str = "test", examples: int | None = None, l2: float = 0.0,
  others: Any = (),
) -> None:  # fmt: skip
  """Raises `SettingError` for an invalid setting of `loss_surface`."""
  check_whole("landscape.points", points, 3)
  if points % 2 == 0:
    raise SettingError("landscape.points", points, "has no middle for the model", f"Use {points + 1}.")
  check_range("landscape.span", span, high=1e3, above=0.0)
  check_choice("landscape.part", part, ("train", "valid", "test"))
  check_range("landscape.l2", l2, 0.0, below=np.inf, on_host=True)
  check_others(others)
  if examples is not None:
    check_whole("landscape.examples", examples, 1)


def filter_normalised(key: jax.Array, params: PyTree) -> PyTree:
  """Draws a Gaussian direction d with each filter scaled to the model's norm, d_ij <- d_ij ‖θ_ij‖ / ‖d_ij‖.

  A filter holds all weights into one output: the slice of a kernel at one index of its last axis. Biases, and
  scales and shifts of normalisation layers, do not move: leaves of fewer than two axes are 0.

  Args:
    key: typed PRNG key.
    params: θ, float arrays.

  Source: Li et al., section 4.
  """
  leaves, structure = jax.tree.flatten(params)

  def one(key: jax.Array, leaf: jax.Array) -> jax.Array:
    if leaf.ndim < 2:
      return jnp.zeros_like(leaf)
    direction = jax.random.normal(key, leaf.shape, leaf.dtype)
    others = tuple(range(leaf.ndim - 1))
    wanted, found = (jnp.sqrt(jnp.sum(own**2, others, keepdims=True)) for own in (leaf, direction))
    return direction * (wanted / found)

  keys = jax.random.split(key, len(leaves))
  return jax.tree.unflatten(structure, [one(own, jnp.asarray(leaf)) for own, leaf in zip(keys, leaves)])


def loss_surface(
  key: jax.Array,
  task: Task,
  apply: Callable[[PyTree, jax.Array], jax.Array],
  params: PyTree,
  data: FederatedData,
  *,
  points: int = 21,
  span: float = 1.0,
  part: str = "test",
  examples: int | None = None,
  l2: float = 0.0,
  others: Sequence[Any] = (),
) -> tuple[np.ndarray, np.ndarray]:
  """Evaluates the loss F(θ + a·δ + b·η) on an even grid of (a, b) in [-span, span]² around the parameters θ.

  δ and η are directions by `filter_normalised`; or, with two `others`, the orthonormal basis of the plane
  through θ and these models, see `plane_through`, and [-span, span] is in units of the largest of their
  coordinates. F is the task's mean loss over all clients' examples of a
  part, with equal weight per example: Σ_i n_i F_i / n. The thesis does not say which examples its figure 2.4
  uses. Grid points are spread over this process's devices and evaluated one after another, examples a block
  at a time, so that memory grows with neither.

  Args:
    key: typed PRNG key of δ, η, and the choice of examples.
    task: the task, which defines the loss.
    apply: (params, x [B, ...]) -> outputs, with running statistics fixed.
    params: θ, a pytree of float arrays.
    data: the clients' data.
    points: number of grid points per axis, odd; the middle is θ.
    span: > 0, at most 1000; 1 is a step as long as the filters themselves.
    part: "train", "valid" or "test".
    examples: number of examples, drawn at random, in the loss; by default all.
    l2: c >= 0: the surface is of F + c/2 ‖θ‖², the loss that SGD with the weight decay c decreases; all
      parameters count, as in weight decay.
    others: two models' parameters, shaped like θ; in a configuration their files of weights, such as
      model.npz of two runs. () for random directions.

  Returns:
    (line [P], losses [P, P]): the values of a and of b, and the loss at (line[i], line[j]), float64.

  Raises:
    SettingError: a setting is out of range, or the three models are on one line.
  """
  check_surface(points, span, part, examples, l2, others)
  if len(others):
    directions, corners = plane_through(params, others)
    span = span * float(np.abs(corners).max())
  else:
    directions = [filter_normalised(jax.random.fold_in(key, i), params) for i in range(2)]
  rows = rows_of(data, part)
  if examples is not None:
    rows = np.asarray(jax.random.permutation(jax.random.fold_in(key, 2), rows))[:examples]
  x, y = jax.tree.map(np.asarray, (data.x, data.y))

  def taken(index: np.ndarray) -> tuple[PyTree, np.ndarray]:
    return jax.tree.map(lambda leaf: leaf[index], (x, y))

  def outputs(params: PyTree, x: PyTree) -> jax.Array:
    return apply(params, as_read(x, data.scale))

  def sums(shift: jax.Array, params: PyTree, directions: PyTree, x: PyTree, y: jax.Array, real: jax.Array):
    moved = jax.tree.map(lambda p, d, e: p + shift[0] * d + shift[1] * e, params, *directions)
    total, weight = task.losses(outputs(moved, x), y)
    weights = jnp.ones_like(total) if weight is None else weight
    return jnp.stack([jnp.sum(jnp.where(real, own, 0.0)) for own in (total, weights)])

  mesh = Mesh(np.asarray(jax.local_devices()), ("points",))
  line = np.linspace(-span, span, points)
  shifts = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2).astype(np.float32)
  padded = np.pad(shifts, ((0, -len(shifts) % mesh.size), (0, 0)))
  at_points = jax.jit(
    jax.shard_map(
      lambda shifts, *args: lax.map(lambda shift: sums(shift, *args), shifts),
      mesh=mesh, in_specs=(P("points"), P(), P(), P(), P(), P()), out_specs=P("points"), check_vma=False,
    )
  )  # fmt: skip
  one = jax.eval_shape(outputs, params, taken(rows[:1])[0]).size
  size, total = min(rows_at_once(one), len(rows)), np.zeros((len(padded), 2))
  for first in range(0, len(rows), size):
    block = rows[first : first + size]
    real = np.arange(size) < len(block)
    block = np.pad(block, (0, size - len(block)), mode="edge")
    total += np.asarray(at_points(padded, params, directions, *taken(block), real), np.float64)
  total = total[: len(shifts)]
  losses = total[:, 0] / total[:, 1]
  if l2:
    losses = losses + 0.5 * l2 * squared_norms(params, directions, shifts)
  return line, losses.reshape(points, points)


def rows_of(data: FederatedData, part: str) -> np.ndarray:
  """Returns the row numbers of all clients' examples of a part; raises `SettingError` if there are none."""
  rows = getattr(data, part).rows()
  if not len(rows):
    raise SettingError("landscape.part", part, "no client has examples of it", "Take another part, as train.")
  return rows


class Landscape(Study):
  """Study that adds `landscape` to the summary, landscape.npz and landscape.png, if configured."""

  name = "landscape"
  options = Options("landscape", loss_surface, on_request=True)

  @classmethod
  def check(cls, given: Mapping[str, Any], client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` for an invalid section, or one that does not apply to `client`."""
    if not given:
      return
    check_surface(**given)
    for file in given.get("others", ()):
      if not isinstance(file, str) or not Path(file).is_file():
        raise SettingError("landscape.others", file, "no such file", "Name the model.npz of another run.")
    if given.get("part") == "valid" and not validates:
      remedy = "Set valid_fraction, such as 0.1, or take test or train."
      raise SettingError("landscape.part", "valid", "no client has a validation part", remedy)
    if client.global_model is None or client.studies.synthesize is not None:
      raise SettingError(
        "landscape", dict(given), f"{client.name} has no global model that classifies", "Leave it out."
      )

  @classmethod
  def check_run(cls, given: Mapping[str, Any], run: Watched) -> None:
    """Raises `SettingError` if no client has examples of the part, or `others` are other models' weights."""
    if given:
      rows_of(run.data, given.get("part", "test"))
    if files := given.get("others"):
      assert isinstance(run.model, Model)
      client, key = run.algorithm.client, jax.random.key(0)
      own, wanted = jax.eval_shape(client.init_broadcast, key).params, jax.eval_shape(run.model.init, key)
      if not same_form(own, wanted):
        problem = f"what {client.name} broadcasts is no single model, through which a plane could go"
        raise SettingError("landscape.others", tuple(files), problem, "Leave it out.")
      others_of(run.model, files)

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the configuration has a section `landscape`."""
    return cls.name in run.config.studies

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"landscape": its settings, the global model's loss, and the largest loss on the plane}."""
    run, settings = self.run, self.settings
    broadcast = jax.tree.map(np.asarray, now.broadcast())
    if now.diverged or not run.writes:
      return {}
    print("Drawing the loss around the global model ...", flush=True)
    client = run.algorithm.client
    global_model = client.global_model
    assert global_model is not None

    def apply(params: PyTree, x: jax.Array) -> jax.Array:
      return client.apply(global_model(broadcast._replace(params=params)), x)

    key = jax.random.fold_in(run.key, 1_000_033)
    settings, corners = dict(settings), {}
    if settings["others"]:
      assert isinstance(run.model, Model)
      settings["others"] = others_of(run.model, settings["others"])
      corners = {"models": plane_through(broadcast.params, settings["others"])[1]}
    line, losses = loss_surface(key, client.task, apply, broadcast.params, run.data, **settings)
    write_arrays(run.folder / FILE, line=line, losses=losses, **corners)
    center, part = len(line) // 2, settings["part"]
    rows = len(rows_of(run.data, part))
    return {
      "landscape": {
        "points": len(line), "span": line[-1], "part": part,
        "examples": min(settings["examples"] or rows, rows),
        "center": losses[center, center], "most": losses.max(),
        **({"l2": settings["l2"]} if settings["l2"] else {}), **corners,
      }
    }  # fmt: skip

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> Text | None:
    """Returns a terminal line with the loss at the global model and the largest loss."""
    found = summary.get("landscape")
    if not found:
      return None
    center, most = (number(found[name], "loss") for name in ("center", "most"))
    return Text(f"\nloss of the global model {center}, at most {most} around it")

  @classmethod
  def on_page(cls, folder: Path) -> dict[str, Any]:
    """Returns {"landscape": the grid's `line`, `losses` on it, and `models`}, or None for a run without them.

    `models` are the coordinates of the three models that the plane goes through, [3, 2], first the global
    one; None for random directions.
    """
    found = arrays_of(folder / FILE)
    line, losses = found.get("line"), found.get("losses")
    if line is None or losses is None or line.ndim != 1 or losses.shape != 2 * line.shape or not len(line):
      return {"landscape": None}
    models = found.get("models")
    through = None if models is None or models.shape != (3, 2) else [short(own) for own in models]
    return {"landscape": {"line": short(line), "losses": [short(row) for row in losses], "models": through}}

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws the contours, landscape.png."""
    if summary.get("landscape"):
      path = self.run.figures / "landscape.png"
      plot_surfaces({self.run.title: self.run.folder / FILE}, path, title="Loss around the global model")


def plot_surfaces(
  surfaces: Mapping[str, str | os.PathLike[str]], path: str | os.PathLike[str], *, title: str = ""
) -> Path:
  """Draws stored loss surfaces next to each other, with one colour scale and common contour levels.

  Args:
    surfaces: name -> path of a run's landscape.npz.
    path: the PNG to write; its folder is created if missing.
    title: the figure's title.

  Returns:
    `path`.
  """
  found = {}
  for name, file in surfaces.items():
    stored = read_arrays(Path(file))
    with reading(file):
      losses = np.where(np.isfinite(stored["losses"]), stored["losses"], np.nan)
      found[name] = stored["line"], losses, stored.get("models", np.zeros((1, 2)))
  least = max(min(np.nanmin(losses) for _, losses, _ in found.values()), 1e-8)
  most = max(max(np.nanmax(losses) for _, losses, _ in found.values()), 1.001 * least)
  figure = Figure(figsize=(1.2 + 3.8 * len(found), 4.2), layout="constrained")
  axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
  levels = np.geomspace(least, most, LEVELS)
  for ax, (name, (line, losses, models)) in zip(axes, found.items()):
    drawn = np.clip(losses, least, most).T  # contourf takes rows as y
    filled = ax.contourf(line, line, drawn, levels, cmap="viridis", norm=LogNorm(least, most))
    lines = ax.contour(line, line, drawn, levels[::2], colors="white", linewidths=0.6)
    ax.clabel(lines, fmt="%.3g", fontsize=7)
    ax.plot(*models[1:].T, marker="o", color="#D55E00", markeredgecolor="white", linestyle="none")
    ax.plot(0, 0, marker="*", color="#D55E00", markeredgecolor="white", markersize=14)
    center = losses[len(line) // 2, len(line) // 2]
    ax.set(title=name, xlabel="a", aspect="equal")
    ax.text(0.02, 0.02, f"loss at the model: {center:.4g}", transform=ax.transAxes, fontsize=8, color=GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2}, zorder=5)  # fmt: skip
  axes[0].set_ylabel("b")
  figure.colorbar(filled, ax=axes, label="mean loss", ticks=levels[::4], format="%.3g", shrink=0.8)
  figure.suptitle(title, fontsize=12, fontweight="bold")
  return save(figure, path)
