r"""Energies E(x, y) = -f(x)[y] of synthetic data, and FedEvg's uploads made of them: weights e and gradients.

The weight is e = exp(v), where v depends on the client's logit f = f(x̃)[ỹ]:

signed     v = sgn f: e is one of 1/e, 1, e; the thesis's own choice.
raw        v = f - r, r = log Σ w e of the rounds before: equation 4.13 as it stands, the gradient of 4.11.
centred    v = f - mean f(x)[y] over the client's training examples: about 0 where x̃ is as likely to the
           client as these are.
absolute   v = f.
even       v = 0.

If `cap` is given, v is clipped to ±`cap`, so that no client's weight exceeds e^{2 cap} times another's of the
same w; for raw weights the clipping interval is centred at the whole cohort's estimate r of the rounds
before. A cap centred at the present cohort is not offered: a client does not see the others' energies of the
same round, and the server sees only sums of e.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_het.clients.objective import training_loss
from fedjax_het.data.container import ClientData
from fedjax_het.errors import SettingError
from fedjax_het.models import Model
from fedjax_het.models.tried import mistakes_in_training
from fedjax_het.parts import Message
from fedjax_het.settings import Choice, Range

PyTree = Any
ENERGIES = ("signed", "raw", "centred", "absolute", "even")
LARGEST = 60.0  # bound on a weight's exponent, so that sums over clients neither overflow nor vanish
Energy = Annotated[str, Choice(ENERGIES)]
Cap = Annotated[float, Range(above=0.0, high=LARGEST)]


def of_class(logits: jax.Array, y: jax.Array) -> jax.Array:
  """Selects each row's logit of its label, [B, C] and [B] -> [B]."""
  return jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]


def of_any_class(logits: jax.Array, y: jax.Array) -> jax.Array:
  """Returns log Σ_y exp f(x)[y] of each row, -E(x) of the marginal energy (equation 4.8), [B, C] -> [B]."""
  return jax.scipy.special.logsumexp(logits, axis=1)


DENSITIES = {"joint": of_class, "marginal": of_any_class}
Density = Annotated[str, Choice(DENSITIES)]


def energy_gradient(
  model: Model, params: PyTree, x: jax.Array, y: jax.Array,
  score: Callable[[jax.Array, jax.Array], jax.Array] = of_class,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
  """Returns (∇_x E per row, shaped like x; -E, float32 [B]), by default of E(x, y) = -f(x)[y].

  Args:
    model: the classifier.
    params: its parameters.
    x: examples, float32 [B, ...].
    y: their labels, int32 [B].
    score: (logits, y) -> -E, one of `DENSITIES`.
  """

  def energy(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value = score(model.apply(params, x), y)
    return -value.sum(), value

  with mistakes_in_training(model):
    return jax.grad(energy, has_aux=True)(x)


def mean_logit(model: Model, params: PyTree, data: ClientData) -> jax.Array:
  """Returns the mean of f(x)[y] over a client's training examples, float32 scalar, in one forward pass."""
  energies = model.task._replace(losses=lambda logits, y: (-of_class(logits, y), None))
  return -training_loss(model._replace(task=energies), params, data)


def clipped(gradient: jax.Array, clip: float | None) -> jax.Array:
  """Clips every entry of the gradient to ±clip; None leaves it unchanged."""
  return gradient if clip is None else jnp.clip(gradient, -clip, clip)


def shortened(gradient: jax.Array, norm: float | None) -> jax.Array:
  """Scales u to at most the given L2 norm, u·min(1, norm/‖u‖), ‖u‖ over all entries; None for no bound."""
  if norm is None:
    return gradient
  return gradient * jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt((gradient**2).sum()), 1e-12))


def check_energy(energy: str, cap: float | None, upload_norm: float | None = None) -> None:
  """Raises `SettingError` for bounds that do not apply to a kind of weight."""
  if upload_norm is not None and energy != "even":
    raise SettingError(
      "upload_norm", upload_norm, f"bounds e·∇E, but {energy} weights e would still depend on the data",
      "Use energy='even', or leave it out.",
    )  # fmt: skip
  if cap is not None and energy in ("signed", "even"):
    raise SettingError(
      "cap", cap, f"does not apply to {energy} weights", "Use energy='raw', or leave it out."
    )


def log_weight(
  model: Model, params: PyTree, broadcast: Message, value: jax.Array, data: ClientData, energy: str,
  cap: float | None = None,
) -> jax.Array:  # fmt: skip
  """Returns the log-weights v of a FedEvg upload, float32 [M], from the synthetic set's logits `value`."""
  if energy == "signed":
    return jnp.sign(value)
  if energy == "even":
    return jnp.zeros_like(value)
  if energy == "raw":
    value = value - broadcast.extra
  if energy == "centred":
    value = value - mean_logit(model, params, data)
  largest = LARGEST if cap is None else cap
  return jnp.clip(value, -largest, largest)


def signals(
  model: Model, params: PyTree, broadcast: Message, labels: jax.Array, data: ClientData, energy: str,
  cap: float | None = None, clip: float | None = None, upload_norm: float | None = None,
) -> Message:  # fmt: skip
  """Builds a client's upload (e·∇E(x̃), e), shaped (like x̃, [M]).

  Args:
    model: the classifier.
    params: the client's parameters.
    broadcast: x̃ as received, and r if energies are raw.
    labels: ỹ, int32 [M].
    data: the client's training examples, to which centred energies are relative.
    energy: kind of weight, one of `ENERGIES`, see the module's docstring.
    cap: bound on |v|, see the module's docstring; None for the bound `LARGEST`.
    clip: bound on every entry of ∇E, applied before weighting.
    upload_norm: bound on the L2 norm of all of e·∇E, see `shortened`.
  """
  x = broadcast.params
  gradient, value = energy_gradient(model, params, x, labels)
  gradient = clipped(gradient, clip)
  weight = jnp.exp(log_weight(model, params, broadcast, value, data, energy, cap))
  return Message(shortened(weight.reshape(-1, *[1] * (x.ndim - 1)) * gradient, upload_norm), weight)
