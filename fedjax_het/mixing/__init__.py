"""Mixing parts: rules for the mixing coefficients of the cohort's clients."""

from fedjax_het.mixing.aaggff import aaggff_d, aaggff_s
from fedjax_het.mixing.afl import afl
from fedjax_het.mixing.feddisco import feddisco
from fedjax_het.mixing.fedexp import fedexp
from fedjax_het.mixing.fedmgda import fedmgda
from fedjax_het.mixing.fednova import fednova
from fedjax_het.mixing.krum import krum, multi_krum
from fedjax_het.mixing.norm_bound import norm_bound
from fedjax_het.mixing.static import observed, static, uniform
from fedjax_het.mixing.tilted import propfair, qffl, term, tilted
from fedjax_het.mixing.variance import with_variance

__all__ = [
  "aaggff_d", "aaggff_s", "afl", "feddisco", "fedexp", "fedmgda", "fednova", "krum", "multi_krum",
  "norm_bound", "observed", "propfair", "qffl", "static", "term", "tilted", "uniform", "with_variance",
]  # fmt: skip
