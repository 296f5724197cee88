"""Pictures of mixing: who counts how much over the rounds, and regret beside its bound."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedjax_het.yardsticks.regret import entropy

MANY = 12  # clients up to which each gets a line of its own


def plot_mixture(
  coefficients: ArrayLike,
  path: str | os.PathLike[str],
  *,
  rounds: ArrayLike | None = None,
  names: Sequence[str] | None = None,
  same_clients: bool = True,
  title: str = "Mixing coefficients",
) -> Path:
  """Draws p over the rounds above its entropy.

  Args:
    coefficients: [T, S], one row a round.
    path: the PNG to write; its folder is made where missing.
    rounds: the rows' rounds, [T]; by default 1, ..., T.
    names: of the clients, [S]. Up to 12 clients get a line each, more are shown by their quantiles.
    same_clients: whether a column is one client in all rows; where not, quantiles are shown.
    title: the figure's title.

  Returns:
    `path`.
  """
  p = np.asarray(coefficients, np.float64)
  rounds = np.arange(1, len(p) + 1) if rounds is None else np.asarray(rounds)
  figure = Figure(figsize=(7.0, 5.0), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
  if p.shape[1] <= MANY and same_clients:
    for i, line in enumerate(p.T):
      above.plot(rounds, line, label=names[i] if names else f"client {i}")
    above.legend(frameon=False, ncols=2, fontsize="small")
  else:
    for low, high, shade in ((0, 100, 0.12), (10, 90, 0.25)):
      above.fill_between(
        rounds, *np.percentile(p, (low, high), axis=1), alpha=shade, color="#0072B2", linewidth=0,
        label=f"{low} to {high} % of clients",
      )  # fmt: skip
    above.plot(rounds, np.median(p, axis=1), color="#0072B2", label="median client")
    above.legend(frameon=False)
  above.axhline(1.0 / p.shape[1], color="#555555", linestyle=":", linewidth=1)
  above.annotate("1/S", (1.0, 1.0 / p.shape[1]), xycoords=("axes fraction", "data"), color="#555555")
  above.set_ylabel("coefficient p")
  below.plot(rounds, entropy(p), color="#D55E00")
  below.axhline(np.log(p.shape[1]), color="#555555", linestyle=":", linewidth=1)
  below.set(xlabel="round", ylabel="entropy (nats)")
  return _save(figure, path)


def plot_regret(
  rounds: ArrayLike,
  curves: dict[str, tuple[ArrayLike, ArrayLike]],
  path: str | os.PathLike[str],
  *,
  title: str = "Regret against the best fixed mixture",
) -> Path:
  """Draws regret over rounds, the median and the range of its sequences, beside the theorem's bound.

  Args:
    rounds: t, [N].
    curves: panel title -> (regret [M, N] of M sequences, bound [N]).
    path: the PNG to write; its folder is made where missing.
    title: the figure's title.

  Returns:
    `path`.
  """
  t = np.asarray(rounds)
  figure = Figure(figsize=(3.2 * len(curves) + 1.0, 3.4), layout="constrained")
  figure.suptitle(title, fontsize=12, fontweight="bold")
  for axes, (name, (values, bound)) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items()):
    values = np.atleast_2d(values)
    axes.fill_between(t, values.min(axis=0), values.max(axis=0), alpha=0.25, color="#0072B2", linewidth=0)
    axes.plot(t, np.median(values, axis=0), color="#0072B2", label="measured: median, range")
    axes.plot(t, bound, color="#D55E00", linestyle="--", label="bound")
    axes.set(title=name, xlabel="round", ylabel="regret", xscale="log")
    axes.axhline(0.0, color="#555555", linewidth=0.5)
    axes.legend(frameon=False, fontsize="small", loc="upper left")
  return _save(figure, path)


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
  path = Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=150)
  return path
