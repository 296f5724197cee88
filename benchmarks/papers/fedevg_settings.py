"""FedEvg's settings beyond the thesis that its benchmarks compare, by name.

A value is the client part's settings and the server part's settings with its name. β starts at the thesis's
10 where the name says "β from 10", and at 1 otherwise unless the name has another start. τ is the temperature
of the repulsion. The setting that renews examples uses the thesis's β, with which examples come nearest to
one another; its threshold of 0.1 is a third of the difference of a pixel between two real digits of a class.
"""

SGLD = {"name": "sgld", "step_size": 1.0}


def repulsive(tau: float, **others) -> dict:
  """Particles whose gradient step is that of "β from 1"."""
  return {"name": "particles", "step_size": 1.0, "temperature": tau, **others}


def quiet(**others) -> dict:
  """Particles without repulsion."""
  return {"name": "particles", "step_size": 1.0, "temperature": 0.0, **others}


BEYOND = {
  "the plain step, β from 1": ({}, SGLD),
  "repulsion, τ = 0.1, β from 1": ({}, repulsive(0.1)),
  "repulsion, τ = 0.3, β from 1": ({}, repulsive(0.3)),
  "repulsion, τ = 1, β from 1": ({}, repulsive(1.0)),
  "repulsion, τ = 0.1, β from 10": ({}, repulsive(0.1, step_size=10.0)),
  "repulsion, τ = 0.3, β from 10": ({}, repulsive(0.3, step_size=10.0)),
  "repulsion between blocks, τ = 1, β from 1": ({}, repulsive(1.0, space="blocks")),
  "repulsion between convolutions, τ = 1, β from 1": ({}, repulsive(1.0, space="convolutions")),
  "raw energies, cap 2": ({"energy": "raw", "cap": 2.0}, SGLD),
  "raw energies, cap 2, β from 10": ({"energy": "raw", "cap": 2.0}, {"name": "sgld"}),
  "raw energies, cap 3": ({"energy": "raw", "cap": 3.0}, SGLD),
  "centred energies, cap 2": ({"energy": "centred", "cap": 2.0}, SGLD),
  "centred energies": ({"energy": "centred"}, SGLD),
  "centred energies, β from 10": ({"energy": "centred"}, {"name": "sgld"}),
  "absolute energies, cap 2": ({"energy": "absolute", "cap": 2.0}, SGLD),
  "even weights": ({"energy": "even"}, SGLD),
  "sigmoid pixels, β from 4": ({}, quiet(pixels="sigmoid", step_size=4.0, last_step_size=0.04)),
  "G of RMS 1, β from 0.05": ({}, quiet(rms=1.0, step_size=0.05, last_step_size=0.0005)),
  "Langevin noise, T from 0.001 to 0": ({}, quiet(heat=0.001)),
  "Langevin noise, T from 0.001 to 0, β from 10": ({}, quiet(heat=0.001, step_size=10.0)),
  "Langevin noise, T from 0.001 to 0, repulsion, τ = 0.3": ({}, repulsive(0.3, heat=0.001)),
  "λ = 1, β from 1": ({"lam": 1.0}, SGLD),
  "λ = 1, repulsion, τ = 1, β from 1": ({"lam": 1.0}, repulsive(1.0)),
  "λ = 1, repulsion, τ = 0.3, β from 1": ({"lam": 1.0}, repulsive(0.3)),
  "β from 10, renewed below 0.1": ({}, quiet(step_size=10.0, renew_below=0.1)),
  "20 a class": ({"per_class": 20}, SGLD),
  "20 a class, β from 10": ({"per_class": 20}, {"name": "sgld"}),
  "50 a class": ({"per_class": 50}, SGLD),
  "20 a class, repulsion, τ = 0.3, β from 1": ({"per_class": 20}, repulsive(0.3)),
  "50 a class, repulsion, τ = 0.3, β from 1": ({"per_class": 50}, repulsive(0.3)),
}
