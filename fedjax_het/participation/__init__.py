"""Participation parts: who takes part in a round, who arrives, and how much of the work each does."""

from fedjax_het.participation.available import available, cyclic, uniform
from fedjax_het.participation.independent import importance, poisson
from fedjax_het.participation.trace import trace

__all__ = ["available", "cyclic", "importance", "poisson", "trace", "uniform"]
