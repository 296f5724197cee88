"""System parts: how fast clients compute and transmit, for runs that simulate time."""

from fedjax_het.system.speeds import constant, lognormal
from fedjax_het.system.trace import trace

__all__ = ["constant", "lognormal", "trace"]
