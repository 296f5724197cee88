r"""Synthetic examples as interacting particles: descent on the clients' energies, with mutual repulsion.

x_i <- x_i + β_t [ -G_i + τ r_i ] + √(δ² + 2 β_t T_t) ε,   r_i = (1/n) Σ_j ∇_{x_j} k(x_j, x_i)

G is FedEvg's mean gradient (equation 4.13 of the thesis). r is the repulsion of Stein variational gradient
descent (Liu and Wang, NeurIPS 2016; β here is β/τ there, so that it equals `sgld`'s for every τ), whose other
half, gradients averaged over neighbours by the kernel, is left out: every example follows its gradient alone.
j runs over the n examples of x_i's class, and the kernel is Gaussian,

    k(x_j, x_i) = exp(-|z_j - z_i|² / h_i),   h_i = median_{j ≠ i} |z_j - z_i|² / log n

(the median of an even number of distances is the mean of the middle two), h_i constant in gradients, z = φ(x)
the pixels or features in which examples are to differ. Through φ the repulsion is pulled back by its Jacobian
at x_i: r_i = (2 / (n h_i)) Σ_j k (∂z_i/∂x_i)ᵀ (z_i - z_j), which is the above if φ is linear. It does not
move a class of one example. Clients' classifiers are not uploaded, so learnt features are those of a network
that the server has, from public data.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, check_pixels, is_zero
from fedjax_het.parts import ClientUpdate, Mechanism, Message, Mixing, Needs, Sampling, ServerUpdate
from fedjax_het.server.sgld import check_fall, check_own_rounds, half_cosine, mean_gradient
from fedjax_het.settings import Choice, Count, NonNegative, Positive, Whole, checked
from fedjax_het.vectors import over

SPACES = ("pixels", "blocks", "convolutions")
CHANNELS = 32
SMALLEST = 1e-6  # lower bound of a median squared distance
Map = Callable[[jax.Array], jax.Array]


class Particles(NamedTuple):
  """State of the server part `particles`: steps taken, labels of the examples, latent pixels.

  Attributes:
    step: number of steps taken, int32 scalar.
    labels: labels of the examples, int32 [M].
    latent: u, whose sigmoid is the pixels, shaped like x̃; () if pixels are moved directly.
  """

  step: jax.Array
  labels: jax.Array
  latent: Any = ()


def repulsion(z: jax.Array, labels: jax.Array) -> jax.Array:
  """Computes particles' repulsion within classes, (2 / (n h_i)) Σ_j k(z_j, z_i)(z_i - z_j), float32 [M, d].

  Args:
    z: features of the examples, in which they repel, float32 [M, d].
    labels: int32 [M], in any order, with classes of any size.
  """
  same = labels[:, None] == labels
  product = functools.partial(jnp.matmul, precision="highest")
  means = product(same.astype(z.dtype), z) / same.sum(1).astype(z.dtype)[:, None]
  z = z - means  # for precision: a class may be narrow and far from the others
  square = (z**2).sum(1)
  square = jnp.maximum(square[:, None] + square - 2.0 * product(z, z.T), 0.0)
  others = same & ~jnp.eye(len(labels), dtype=bool)
  count = others.sum(1)[:, None]
  ranked = jnp.sort(jnp.where(others, square, jnp.inf), axis=1)
  middle = jnp.concatenate([(count - 1) // 2, count // 2], axis=1)
  median = jnp.take_along_axis(ranked, jnp.maximum(middle, 0), axis=1).mean(1, keepdims=True)
  alone = count == 0
  size = count.astype(z.dtype) + 1.0
  width = jnp.where(alone, 1.0, jnp.maximum(median, SMALLEST) / jnp.log(jnp.maximum(size, 2.0)))
  kernel = jnp.where(others, jnp.exp(-square / width), 0.0)
  return 2.0 / ((count + 1).astype(z.dtype) * width) * (kernel.sum(1, keepdims=True) * z - product(kernel, z))


def collapsed(x: jax.Array, labels: jax.Array, least: float | jax.Array) -> jax.Array:
  """Finds near-copies: in a class with less spread than `least`, all examples but the first, bool [M].

  The spread of a class is the root mean square difference of a pixel between two of its examples.

  Args:
    x: the examples, float32 [M, ...].
    labels: int32 [M].
    least: >= 0, the spread below which a class has collapsed.
  """
  flat = x.reshape(len(x), -1)
  same = labels[:, None] == labels
  count, rest = same.sum(1).astype(x.dtype), jnp.maximum(same.sum(1) - 1, 1).astype(x.dtype)
  product = functools.partial(jnp.matmul, same.astype(x.dtype), precision="highest")
  mean = product(flat) / count[:, None]
  variance = product(((flat - mean) ** 2).mean(1)) / count
  apart = 2.0 * variance * count / rest  # mean square over pairs of two
  first = ~jnp.tril(same, -1).any(1)
  return (apart < least**2) & ~first


def features(space: str | Map, shape: tuple[int, ...], seed: int) -> Map:
  """Returns the feature map φ of `particles`, [M, ...] -> [M, d].

  Raises:
    SettingError: `space` needs images of even sides, and examples of `shape` are not; or it does not return
      vectors.
  """
  if callable(space):
    given = jax.eval_shape(space, jax.ShapeDtypeStruct((2, *shape), jnp.float32)).shape
    if len(given) != 2 or given[0] != 2:
      raise SettingError(
        "server's space", space, f"makes {given} of two examples, which is no vector an example",
        "Return an array [examples, numbers].",
      )  # fmt: skip
    return space
  if space == "pixels":
    return lambda x: x.reshape(len(x), -1)
  if len(shape) != 3 or shape[0] % 2 or shape[1] % 2:
    raise SettingError(
      "server's space", space, f"needs images [H, W, channels] of even sides; examples have shape {shape}",
      "Use space='pixels'.",
    )  # fmt: skip
  kernel = jax.random.normal(jax.random.key(seed), (3, 3, shape[2], CHANNELS)) / jnp.sqrt(9.0 * shape[2])

  def of(x: jax.Array) -> jax.Array:
    if space == "convolutions":
      x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
      x = jax.nn.swish(x)
    m, height, width, channels = x.shape
    return x.reshape(m, height // 2, 2, width // 2, 2, channels).mean((2, 4)).reshape(m, -1)

  return of


DRAWN: dict[str, Map] = {
  "bounded": lambda x: jnp.clip(x, 0.0, 1.0),
  "free": lambda x: x,
  "sigmoid": jax.nn.sigmoid,
}


@checked(whose="server's ")
def particles(
  rounds: Count,
  step_size: Positive = 10.0,
  last_step_size: Positive = 0.01,
  temperature: NonNegative = 0.3,
  space: Annotated[str, Choice(SPACES)] | Map = "pixels",
  space_seed: Annotated[int, Whole(0)] = 0,
  heat: NonNegative = 0.0,
  last_heat: NonNegative = 0.0,
  noise: NonNegative = 0.01,
  rms: Positive | None = None,
  signal_noise: NonNegative = 0.0,
  renew_below: NonNegative = 0.0,
  pixels: Annotated[str, Choice(DRAWN)] = "bounded",
) -> ServerUpdate:
  """Server part of interacting particles, one step per round, for clients that synthesise labelled examples.

  With `temperature=0` and other settings at their defaults it is `sgld`; with all at their defaults it adds
  repulsion to `sgld`'s steps, which on digits and MNIST gave examples as diverse as real ones that were worth
  as much as `sgld`'s (docs/results/fedevg_digits.md, fedevg_mnist.md). From a smaller β examples are more
  diverse, and need more rounds to be of their class; with β from 1 and `heat=0.001` in addition to the
  repulsion they were worth most on digits.

  Args:
    rounds: T of the run, over which β and the heat fall along half a cosine each, see `sgld.half_cosine`.
    step_size: β_0 > 0.
    last_step_size: 0 < β_T <= β_0.
    temperature: τ >= 0, weight of the repulsion relative to the gradient; 0 for none.
    space: features in which examples of a class differ: "pixels"; "blocks", means of 2 x 2 pixels;
      "convolutions", 32 random 3 x 3 convolutions, Swish, means of 2 x 2; or φ itself, a differentiable
      function of examples [M, ...] that gives [M, d], such as the features of a pretrained network.
    space_seed: seed of the random convolutions; 0 for other spaces.
    heat: T_0 >= 0; with T = 1 and τ = 0 a step is a Langevin step for the density proportional to exp(-E).
    last_heat: T_T >= 0.
    noise: δ >= 0, noise scale independent of the step size.
    rms: if given, G is scaled to this root mean square over the whole set, so that β is in pixels.
    signal_noise: standard deviation of Gaussian noise on Σ w e ∇E, for privacy. It requires a client part
      whose uploads have L2 norm at most C = `upload_norm`, and uniform mixing: S clients per round have
      weight 1/S each, and z·C/S is a Gaussian mechanism of noise multiplier z, between a client's upload and
      none at the same S.
    renew_below: in the first T/2 rounds, a class whose examples differ by less than this root mean square per
      pixel keeps one of them, and the others are drawn afresh from the initial distribution, see `collapsed`;
      0 for never.
    pixels: "bounded", clipped to [0, 1], where examples must lie; "free"; or "sigmoid", bounded likewise, the
      sigmoid of numbers u that are moved instead, by the chain rule; u begins as the set that the clients
      receive first, which is no sigmoid: the first round's gradients and repulsion are taken at u itself.

  Raises:
    SettingError: a setting is out of range, has no effect, or does not go with the client part; from
      `check_rounds`, the run has another T; from `check_examples`, examples lie outside [0, 1].
  """
  check_fall(step_size, last_step_size)
  if space != "convolutions" and not is_zero(space_seed):
    raise SettingError("server's space_seed", space_seed, f"is not used in {space}", "Leave it out.")
  if space != "pixels" and is_zero(temperature):
    raise SettingError("server's space", space, "has no effect without repulsion", "Leave it out.")

  def adapt_to(client: ClientUpdate, mixing: Mixing) -> ServerUpdate:
    """Returns the server part for this client part, whose labels it uses."""
    synthesize = client.studies.synthesize
    if not is_zero(signal_noise) and (client.needs.upload_norm is None or not mixing.even):
      raise SettingError(
        "server's signal_noise", signal_noise,
        "hides a client's upload only where that is bounded and counts 1/S",
        "Set the client's upload_norm, with energy='even', and uniform mixing; or take noise or heat.",
      )  # fmt: skip
    if synthesize is None:
      raise SettingError(
        "server", "particles", f"keeps examples of a class apart, and {client.name} synthesises none",
        "Use sgld.",
      )  # fmt: skip
    first = client.init_broadcast(jax.random.key(0))
    shape, kinds = first.params.shape[1:], synthesize(jax.random.key(0), first)[1]
    known = not isinstance(kinds, jax.core.Tracer)
    lonely_kinds = known and len(np.unique(kinds)) == len(kinds)
    for name, value in (("temperature", temperature), ("renew_below", renew_below)):
      if lonely_kinds and not is_zero(value):
        raise SettingError(
          f"server's {name}", value, "has no effect on classes of one example",
          f"Set the client's per_class to 2 or more, or {name}=0.",
        )  # fmt: skip
    phi = features(space, shape, space_seed)

    def init(broadcast: Message) -> Particles:
      labels = synthesize(jax.random.key(0), broadcast)[1].astype(jnp.int32)
      return Particles(jnp.int32(0), labels, broadcast.params if pixels == "sigmoid" else ())

    def update(key, state: Particles, broadcast: Message, aggregate: Message):
      blur = signal_noise * jax.random.normal(jax.random.fold_in(key, 1), broadcast.params.shape)
      gradient, extra = mean_gradient(broadcast, aggregate._replace(params=aggregate.params + blur))
      if rms is not None:
        gradient = gradient * (rms / jnp.maximum(jnp.sqrt((gradient**2).mean()), 1e-12))
      x, pull = broadcast.params, lambda force: force
      if pixels == "sigmoid":
        x = state.latent
        slope = jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)
        pull = lambda force: slope * force  # noqa: E731
      z, back = jax.vjp(phi, broadcast.params)
      apart = back(repulsion(z, state.labels))[0]
      beta = half_cosine(state.step, rounds, step_size, last_step_size)
      deviation = jnp.sqrt(noise**2 + 2.0 * beta * half_cosine(state.step, rounds, heat, last_heat))
      x = x + beta * pull(temperature * apart - gradient)
      x = x + deviation * jax.random.normal(key, x.shape)
      copies = collapsed(DRAWN[pixels](x), state.labels, renew_below) & (2 * state.step < rounds)
      fresh = client.init_broadcast(jax.random.fold_in(key, 2)).params
      x = jnp.where(over(copies, x), fresh, x)
      latent = x if pixels == "sigmoid" else ()
      return aggregate._replace(params=DRAWN[pixels](x), extra=extra), Particles(
        state.step + 1, state.labels, latent
      )

    def multiplier(sampling: Sampling):
      """Returns z, as 1/m is the weight of each of the m clients that arrive, m = S or unknown."""
      least = sampling.cohort_size if sampling.all_arrive else 1
      return signal_noise * least / (client.needs.upload_norm or 0.0)

    mechanism = None if is_zero(signal_noise) else Mechanism(multiplier, amplified=False)
    return part._replace(init=init, update=update, adapt_to=None, mechanism=mechanism)

  def lonely(*_):
    raise SettingError(
      "server", "particles", "asks the client part for the examples' labels", "Give it to fh.federated."
    )

  def check_examples(least, largest):
    check_pixels("server's pixels", pixels, least, largest, "Scale them, or set the server's pixels='free'.")

  part = ServerUpdate(
    lonely, lonely, "particles", takes_models=False, adapt_to=adapt_to,
    needs=Needs(
      check_rounds=lambda own: check_own_rounds("particles", rounds, own),
      check_examples=None if pixels == "free" else check_examples,
    ),
  )  # fmt: skip
  return part
