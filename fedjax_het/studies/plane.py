r"""Plane through three models in the space of their parameters.

Garipov, Izmailov, Podoprikhin, Vetrov, Wilson, Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs,
NeurIPS 2018, appendix A.1; SuPerFed's figure A1.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError
from fedjax_het.models import Model, with_weights

PyTree = Any
COLLINEAR = 1e-6  # sine of the angle at w₁ below which three models are on one line


def plane_through(first: PyTree, others: Sequence[PyTree]) -> tuple[list[PyTree], np.ndarray]:
  """Computes an orthonormal basis of the plane through w₁, w₂, w₃, and the three models' coordinates in it.

      û = u / ‖u‖,  u = w₂ - w₁;      v̂ = v / ‖v‖,  v = w₃ - w₁ - ⟨w₃ - w₁, û⟩ û.

  A point of the plane is w₁ + a û + b v̂. Norms and products are over all parameters, in float64.

  Args:
    first: w₁, a pytree of float arrays.
    others: w₂ and w₃, shaped like w₁.

  Returns:
    ([û, v̂], shaped like w₁ in float32; the coordinates (a, b) of w₁ = (0, 0), w₂ and w₃, float64 [3, 2]).

  Raises:
    SettingError: the models are on one line.
  """
  start, *ends = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), own) for own in (first, *others))
  u, w = (jax.tree.map(np.subtract, own, start) for own in ends)
  length, far = np.sqrt(_inner(u, u)), np.sqrt(_inner(w, w))
  if not min(length, far) > 0:
    raise SettingError(
      "others", f"{length:.3g} and {far:.3g} away", "equal to the model", "Use other models."
    )
  along = _inner(w, u) / length
  v = jax.tree.map(lambda w, u: w - along / length * u, w, u)
  height = np.sqrt(_inner(v, v))
  if not height > COLLINEAR * far:
    problem = "on one line with the model, which spans no plane"
    raise SettingError("others", f"{length:.3g} and {far:.3g} away", problem, "Use other models.")
  basis = [
    jax.tree.map(lambda leaf, by=by: jnp.asarray(leaf / by, jnp.float32), own)
    for own, by in ((u, length), (v, height))
  ]
  return basis, np.array([[0.0, 0.0], [length, 0.0], [along, height]])


def squared_norms(params: PyTree, directions: Sequence[PyTree], shifts: np.ndarray) -> np.ndarray:
  """Returns ‖θ + a δ + b η‖² at each shift (a, b), float64 [N], from the inner products of θ, δ and η.

  Args:
    params: θ.
    directions: δ and η, shaped like θ.
    shifts: (a, b), [N, 2].
  """
  trees = [jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), own) for own in (params, *directions)]
  gram = np.array([[_inner(one, other) for other in trees] for one in trees])
  weights = np.concatenate([np.ones((len(shifts), 1)), np.asarray(shifts, np.float64)], axis=1)
  return np.einsum("ni,ij,nj->n", weights, gram, weights)


def others_of(model: Model, files: Sequence[str]) -> list[PyTree]:
  """Reads the parameters of two models from files of weights, such as model.npz of two runs.

  Raises:
    SettingError: the files are not two, or one is missing or has another model's weights.
    DataError: a file is damaged.
  """
  check_others(files)
  return [with_weights(model, file).init(jax.random.key(0)) for file in files]


def check_others(others: Any) -> None:
  """Raises `SettingError` unless there are no other models, or two."""
  if not isinstance(others, list | tuple) or len(others) not in (0, 2):
    remedy = "Name two files of weights: ('runs/b/model.npz', 'runs/c/model.npz')."
    raise SettingError("landscape.others", others, "not the two other models of a plane", remedy)


def _inner(one: PyTree, other: PyTree) -> float:
  return float(sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), one, other))))
