"""byzfl's aggregations and attacks, in float64 NumPy, on the cohorts of a file.

Runs inside `benchmarks/.envs/byzfl` (see `envs.py`); `benchmarks/checks/byzfl_oracle.py` starts it.

    benchmarks/.envs/byzfl/bin/python benchmarks/peers/byzfl_rules.py IN.npz OUT.npz

IN has an array of updates [S, D] for each cohort, its first `honest` ones honest, and the settings by name.
OUT has a vector [D] for each "COHORT/RULE".
"""

import sys

import byzfl
import numpy as np


def results(updates, honest, trim, smoothing, steps, radius, f, scale, z):
  """Returns what byzfl makes of a cohort's updates, float64 [S, D], by the name of the rule."""
  center = updates.mean(axis=0)
  clipping = byzfl.CenteredClipping(L=2, tau=radius)
  truthful = updates[:honest]
  # ALIE of byzfl is μ + τσ with the sample's standard deviation; ours is μ - zσ with the population's.
  tau = -z * float(np.sqrt((honest - 1) / honest))
  return {
    "median": byzfl.Median()(updates),
    "trimmed_mean": byzfl.TrMean(f=trim)(updates),
    # It starts at 0, and ours at the mean: moving the mean to 0 makes both the same.
    "geometric_median": center + byzfl.GeometricMedian(nu=smoothing, T=steps)(updates - center),
    "centered_clipping": clipping(updates),
    "centered_clipping, next round": clipping(updates[::-1].copy()),
    "krum": byzfl.Krum(f=f + 1)(updates),
    "ipm": byzfl.InnerProductManipulation(tau=scale)(truthful),
    "mimic": byzfl.Mimic(epsilon=0)(truthful),
    "alie": byzfl.ALittleIsEnough(tau=tau)(truthful),
  }


def main():
  given = dict(np.load(sys.argv[1]))
  found = {}
  for name in sorted({key.partition("/")[0] for key in given}):
    updates = given.pop(f"{name}/updates").astype(np.float64)
    settings = {key.partition("/")[2]: given[key].item() for key in given if key.startswith(f"{name}/")}
    found |= {f"{name}/{rule}": vector for rule, vector in results(updates, **settings).items()}
  np.savez(sys.argv[2], **found)


if __name__ == "__main__":
  main()
