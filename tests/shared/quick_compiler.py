"""How the tests' programs are compiled: quickly, or with FEDJAX_HET_TEST_COMPILER=own as users' are."""

import os

import jax

QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # a later XLA ends the process over it, without a word
  QUICK += (
    " --xla_cpu_use_fusion_emitters=false"  # of some two thousand small programs, which halves their time
  )
FLAGS = QUICK if os.environ.get("FEDJAX_HET_TEST_COMPILER", "quick") == "quick" else ""


def environment(**more: str) -> dict[str, str]:
  """Of a program that a test starts on the CPU."""
  flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
  return {**os.environ, "JAX_PLATFORMS": "cpu", **({"XLA_FLAGS": flags} if flags else {}), **more}
