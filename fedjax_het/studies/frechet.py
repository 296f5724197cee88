"""Fréchet and kernel distances between two sets of examples, computed on their features."""

import numpy as np

from fedjax_het.errors import SettingError

BLOCK = 2000  # rows of a kernel matrix computed at once


def _checked(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
    problem = "not at least two rows each, of equally many features"
    raise SettingError("features", (a.shape, b.shape), problem, "Give [n, d] and [m, d].")
  return a, b


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
  """Fréchet distance between Gaussian fits, |m_a - m_b|² + tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½).

  With A and B the centred rows over √(n - 1), the covariances are AᵀA and BᵀB, and the trace of the last term
  is the sum of the singular values of A Bᵀ, which is well defined for singular covariances. But n examples
  span n - 1 directions only: a hundred in 2048 dimensions are far from many of the same distribution (Heusel
  et al., NeurIPS 2017, use 50,000). Compare sets of equal size, or use `kernel_distance`.

  Args:
    a: features, [n, d], n > 1.
    b: features, [m, d], m > 1.
  """
  a, b = _checked(a, b)
  difference = a.mean(0) - b.mean(0)
  a, b = ((own - own.mean(0)) / np.sqrt(len(own) - 1) for own in (a, b))
  if min(len(a), len(b)) > a.shape[1]:
    a, b = (np.asarray(np.linalg.qr(own, mode="r")) for own in (a, b))
  cross = np.linalg.svd(a @ b.T, compute_uv=False).sum()
  return float(max(difference @ difference + (a**2).sum() + (b**2).sum() - 2.0 * cross, 0.0))


def kernel_distance(a: np.ndarray, b: np.ndarray) -> float:
  """KID: the unbiased squared maximum mean discrepancy for the kernel (x·y/d + 1)³; may be below 0.

  Its expectation does not depend on the number of examples (Bińkowski et al., ICLR 2018), so that it suits
  small synthetic sets. All pairs are used, not subsets.

  Args:
    a: features, [n, d], n > 1.
    b: features, [m, d], m > 1.
  """
  a, b = _checked(a, b)

  def total(x: np.ndarray, y: np.ndarray) -> float:
    blocks = (x[i : i + BLOCK] for i in range(0, len(x), BLOCK))
    return sum(float(((block @ y.T / x.shape[1] + 1.0) ** 3).sum()) for block in blocks)

  def within(x: np.ndarray) -> float:
    own = (((x**2).sum(1) / x.shape[1] + 1.0) ** 3).sum()
    return (total(x, x) - float(own)) / (len(x) * (len(x) - 1))

  return within(a) + within(b) - 2.0 * total(a, b) / (len(a) * len(b))
