r"""Study of gradient inversion: images that an attacker makes of one upload of a client.

The attacker knows the model θ that was broadcast, the labels and how many images there are, and sees the
update Δ = upload - θ. It seeks images x in [0, 1] whose gradient points where the update came from,

    min_x 1 - <∇_θ L(θ; x, y), -Δ> / (‖∇_θ L‖ ‖Δ‖) + τ TV(x),

by Adam on the sign of the gradient with a rate that falls to a tenth at 3/8, 5/8 and 7/8 of the steps, from
Gaussian noise. TV is the mean absolute difference of neighbouring pixels. Source: Geiping, Bauermeister,
Dröge, Moeller, Inverting Gradients, NeurIPS 2020, equation 4.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.parts import Algorithm, ClientUpdate, Context
from fedjax_het.settings import Count, NonNegative, Positive, Whole, checked
from fedjax_het.studies.plots import save
from fedjax_het.studies.stored import write_arrays
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import rounded
from fedjax_het.tasks.task import mean_loss

PyTree = Any
FILE = "inversion.npz"
UPLOAD, START = 0, 1  # folded into the study's key: the client's work, and the attacker's first images


class Found(NamedTuple):
  """What an attacker makes of an upload.

  Attributes:
    images: the client's, float32 [B, H, W, C] in [0, 1].
    made: the attacker's, in the same order.
    objective: the last value of the objective, float.
  """

  images: np.ndarray
  made: np.ndarray
  objective: float

  @property
  def mse(self) -> float:
    """The mean squared error of the attacker's images."""
    return float(np.mean((self.images - self.made) ** 2))

  @property
  def psnr(self) -> float:
    """The mean over the images of 10 log₁₀(1 / squared error), in dB."""
    each = ((self.images - self.made) ** 2).mean(axis=(1, 2, 3))
    return float(np.mean(-10.0 * np.log10(np.maximum(each, 1e-12))))


@checked
def invert(
  key: jax.Array,
  gradient: Callable[[jax.Array], PyTree],
  update: PyTree,
  shape: Sequence[int],
  *,
  steps: Count = 1000,
  rate: Positive = 0.1,
  tv: NonNegative = 1e-2,
) -> tuple[jax.Array, jax.Array]:
  """Seeks images whose gradient points against an update, see the module.

  Args:
    key: typed PRNG key of the first images.
    gradient: (images [B, H, W, C]) -> ∇_θ L, a tree like the update.
    update: Δ.
    shape: [B, H, W, C].
    steps: the attacker's steps.
    rate: Adam's learning rate at first, > 0.
    tv: τ >= 0, weight of the total variation.

  Returns:
    (images in [0, 1], the last value of the objective).
  """
  length = optax.tree.norm(update)

  def objective(x: jax.Array) -> jax.Array:
    found = gradient(x)
    along = -optax.tree.vdot(found, update) / (optax.tree.norm(found) * length + 1e-20)
    rough = jnp.abs(jnp.diff(x, axis=1)).mean() + jnp.abs(jnp.diff(x, axis=2)).mean()
    return 1.0 - along + tv * rough

  falls = {int(steps * share): 0.1 for share in (3 / 8, 5 / 8, 7 / 8)}
  adam = optax.adam(optax.piecewise_constant_schedule(rate, falls))

  def step(_: jax.Array, carry: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
    x, state = carry
    moves, state = adam.update(jnp.sign(jax.grad(objective)(x)), state)
    return jnp.clip(x + moves, 0.0, 1.0), state

  first = jnp.clip(0.5 + 0.25 * jax.random.normal(key, tuple(shape)), 0.0, 1.0)
  made, _ = lax.fori_loop(0, steps, step, (first, adam.init(first)))
  return made, objective(made)


def of_section(
  *, examples: Annotated[int, Whole(1)] = 1, client: Annotated[int, Whole(0)] = 0, steps: Count = 1000,
  rate: Positive = 0.1, tv: NonNegative = 1e-2,
) -> dict[str, Any]:  # fmt: skip
  """Returns the settings of `Inversion`.

  Args:
    examples: how many images the attacked upload is of.
    client: the attacked client's number.
    steps: the attacker's steps.
    rate: Adam's learning rate at first, > 0.
    tv: τ >= 0, weight of the total variation.
  """
  return {"examples": examples, "client": client, "steps": steps, "rate": rate, "tv": tv}


class Inversion(Study):
  """Study that adds `inversion` to the summary, inversion.npz and inversion.png: an inverted upload.

  The client trains as in a round, from the last broadcast, on its first `examples` training images alone:
  with one epoch and a mini-batch that holds them, its update is one gradient. What the method does to it,
  such as the noise of `dp_clip` or an upload transform, is in the upload. It runs only if configured:
  `"--config.inversion={'examples': 1}"`.
  """

  name = "inversion"
  options: ClassVar[Options | None] = Options("inversion", of_section, on_request=True, silent=True)

  @classmethod
  def check(cls, given: Mapping[str, Any], client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` for a method whose upload is no update of its one model."""
    if given and not (client.needs.uploads_model and client.task.classes):
      problem = f"{client.name} uploads no update of a classifier"
      raise SettingError("inversion", dict(given), problem, "Leave it out.")

  @classmethod
  def check_run(cls, given: Mapping[str, Any], run: Watched) -> None:
    """Raises `SettingError` if the examples are no images, or the client is not there or has too few."""
    if not given:
      return
    own, model, sizes = of_section(**given), run.model, np.asarray(run.data.train.size)
    if not isinstance(model, Model) or len(jax.tree.leaves(run.data.x)) > 1 or run.data.x.ndim != 4:
      raise SettingError("inversion", dict(given), "the examples are no images", "Leave it out.")
    sent = jax.eval_shape(run.algorithm.client.init_broadcast, jax.random.key(0)).params
    whole: Any = jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)))
    if jax.tree.structure(sent) != whole:
      problem = f"{run.algorithm.client.name} does not send the whole model alone"
      raise SettingError("inversion", dict(given), problem, "Leave it out.")
    if own["client"] >= len(sizes) or sizes[own["client"]] < own["examples"]:
      has = int(sizes[own["client"]]) if own["client"] < len(sizes) else 0
      problem = f"client {own['client']} has {has} training images"
      raise SettingError("inversion.examples", own["examples"], problem, "Name another, or fewer.")

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the configuration asks for it."""
    return bool(run.config.studies.get("inversion"))

  def section(self, now: Moment) -> dict[str, Any]:
    """Writes inversion.npz, and returns {"inversion": {"examples", "objective", "mse", "psnr"}}."""
    if now.diverged:
      return {}
    run, own = self.run, self.settings
    assert isinstance(run.model, Model)
    key = jax.random.fold_in(run.key, 54)
    found = attacked(key, run.algorithm, run.model, run.data, now.state(), **own)
    if run.writes:
      write_arrays(run.folder / FILE, **found._asdict())
    figures = {"objective": found.objective, "mse": found.mse, "psnr": found.psnr}
    return {"inversion": {"examples": own["examples"], **figures}}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with how near the attacker came."""
    found = summary.get("inversion")
    if not found:
      return None
    psnr = rounded(found["psnr"], ".1f")
    return Text(f"gradient inversion: {psnr} dB, {found['examples']} images of one upload")

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Draws inversion.png from inversion.npz."""
    path = self.run.folder / FILE
    if "inversion" in summary and path.exists():
      with np.load(path) as file:
        found = Found(file["images"], file["made"], float(file["objective"]))
      plot_inversion(found, self.run.figures / "inversion.png", title=self.run.title)


def attacked(
  key: jax.Array, algorithm: Algorithm, model: Model, data: FederatedData, state: State, **settings: Any
) -> Found:
  """Lets a client train on its first images alone, and inverts its upload.

  Args:
    key: typed PRNG key.
    algorithm: the parts.
    model: the model that clients train, whose parameters a broadcast's params are.
    data: all clients' data.
    state: the state, whose broadcast the client receives.
    **settings: those of `of_section`.
  """
  own = of_section(**settings)
  i, count = jnp.int32(own["client"]), own["examples"]
  data = jax.tree.map(jnp.asarray, data)
  client, server = algorithm.client, algorithm.server
  view = dataclasses.replace(data.clients(own["client"]), size=jnp.int32(count), limit=count, uniform=True)
  context = Context(i, state.round, 1, data.num_clients)
  broadcast = server.received(server.sent(state.broadcast, state.server), i)
  kept = jax.tree.map(lambda leaf: leaf[own["client"]], state.clients)
  upload, _, _ = jax.jit(client.update)(jax.random.fold_in(key, UPLOAD), broadcast, kept, view, context)
  update = jax.tree.map(jnp.subtract, upload.params, broadcast.params)
  x, y = view.take(jnp.arange(count))

  def gradient(images: jax.Array) -> PyTree:
    def loss(params: PyTree) -> jax.Array:
      outputs = model.logits(model.joined(params, broadcast.stats), images)
      return mean_loss(model.task, outputs, y, jnp.ones(count))

    return jax.grad(loss)(broadcast.params)

  given = {name: own[name] for name in ("steps", "rate", "tv")}
  seek = jax.jit(lambda key: invert(key, gradient, update, x.shape, **given))
  made, value = seek(jax.random.fold_in(key, START))
  return Found(np.asarray(x, np.float32), np.asarray(made), float(value))


def plot_inversion(found: Found, path: Path, *, title: str = "") -> Path:
  """Draws up to eight of a client's images above the attacker's.

  Args:
    found: the images.
    path: the PNG to write, which is returned.
    title: the figure's title.
  """
  count = min(len(found.images), 8)
  figure = Figure(figsize=(max(1.3 * count, 3.2), 3.4), layout="constrained")
  figure.suptitle(f"{title}\ngradient inversion, {found.psnr:.1f} dB", fontsize=9)
  for row, (name, images) in enumerate((("client's", found.images), ("attacker's", found.made))):
    for n in range(count):
      axes = figure.add_subplot(2, count, row * count + n + 1)
      axes.imshow(images[n].squeeze(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
      axes.set(xticks=[], yticks=[], ylabel=name if n == 0 else "")
  return save(figure, path)
