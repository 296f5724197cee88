"""Estimates what a run needs, without running it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from fedjax_het.config.grid import check_sweep, in_order
from fedjax_het.config.own_epochs import passes
from fedjax_het.config.plan import plan
from fedjax_het.data.scale import as_read
from fedjax_het.engine.balance import sized
from fedjax_het.engine.capacity import in_words, memory_of_devices, peak_memory, size
from fedjax_het.engine.elapsed import Clock
from fedjax_het.engine.flops import flops
from fedjax_het.experiment.build import Experiment, build, engine_of, notes_of
from fedjax_het.experiment.members import experiments_of, notes_of_members
from fedjax_het.experiment.traffic import traffic
from fedjax_het.models import Generative, Model, count_parameters, merged
from fedjax_het.modes import in_float32
from fedjax_het.output.terminal import console
from fedjax_het.program.display import TERMINAL
from fedjax_het.program.where import EVERYWHERE, Where
from fedjax_het.tasks import mean_loss


@in_words()
@in_float32()
def dry_run(
  config: Any, where: Where = EVERYWHERE, grid: Mapping[str, Sequence[Any]] | None = None
) -> dict[str, Any]:
  """Compiles a configuration's rounds without training, and prints what they need.

  Args:
    config: see `run_experiment`.
    where: devices.
    grid: what a sweep of the configuration varies, dotted field -> values. The figures are of the single
      run; the notes are those of the members of the first seed.

  Returns:
    parameters: number of broadcast values, of a model or a synthetic set. trained: parameters of the model
    that a client trains. whole: those and the model's frozen ones. data_bytes, client_state_bytes: bytes of
    all clients' data, on every device, and of their states. states: where the clients' states are kept.
    pool_bytes: bytes of the uploads that are on their way in an asynchronous run, on every device.
    memory_there: bytes of memory of this process's devices; 2^63 - 1 if unknown. memory_bytes: bytes on one
    device during a chunk of rounds: arguments, results that reuse no argument, temporaries. host_bytes:
    memory of the process, see `host_memory`; None if unknown. bytes: {"up", "down"}, bytes sent per round.
    simulated_seconds: expected ones of a round, see `Clock.expected`; None without a system part, or if the
    number of a client's steps is known only after its training. passes: a client's passes through its data
    in a round, in words, including a method's additional ones. client_steps: expected number over the run.
    flops_a_client_step: FLOPs of a forward and backward pass of the model on one batch, see `flops`.
    seconds_at_least: FLOPs divided by the rate of a matrix product on this machine, measured for half a
    second.

  Raises:
    SettingError, DataError: the run would raise them.
  """
  if grid:
    check_sweep(config, grid)
  planned = plan(config)
  where.check()
  experiment = build(planned)
  engine = engine_of(experiment, where)
  shapes, compiled = engine.compile()
  memory = compiled.memory_analysis()
  batch = int(min(planned.client.settings["batch_size"], np.max(experiment.data.train.size)))
  cohort = experiment.algorithm.clients_in_a_round(planned.cohort_size)
  steps = steps_of_clients(experiment).mean() * cohort * planned.rounds
  each = step_flops(experiment, batch)
  on_host = "on the host" if where.states_folder is None else f"on the disk of {where.states_folder}"
  found = {
    "parameters": count_parameters(shapes.broadcast.params),
    "trained": count_parameters(params := jax.eval_shape(experiment.model.init, jax.random.key(0))),
    "whole": count_parameters(of_whole(experiment.model, params)),
    "data_bytes": size(engine.examples.shapes()),
    "states": "over the devices" if engine.states.held is None else on_host,
    "client_state_bytes": size(shapes.clients),
    "pool_bytes": size(shapes.pool),
    "memory_bytes": memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes,
    "bytes": traffic(experiment.algorithm, experiment.data, cohort),
    "simulated_seconds": simulated(experiment),
    "passes": passes(planned),
    "client_steps": round(float(steps)),
    "flops_a_client_step": each,
    "seconds_at_least": float(steps) * each / matmul_peak(),
    "compile_seconds": engine.seconds.compile,
    "devices": engine.mesh.size,
    "memory_there": memory_of_devices(),
  }
  found["host_bytes"] = host_memory(found, len(engine.mesh.local_devices))
  print_plan(found)
  if grid:
    of_one_seed = {name: own[:1] if name == "seed" else own for name, own in in_order(grid).items()}
    members, plans = check_sweep(config, of_one_seed)
    TERMINAL.show(*notes_of_members(members, experiments_of(plans, of_one_seed)))
  else:
    TERMINAL.show(*notes_of(experiment))
  return found


def simulated(experiment: Experiment) -> float | None:
  """Returns the simulated seconds that a round is expected to take; None where that is unknown."""
  algorithm, data = experiment.algorithm, experiment.data
  if not algorithm.system.there:
    return None
  return Clock(algorithm, data, experiment.plan.cohort_size, experiment.key).expected()


def of_whole(model: Model | Generative, params: Any) -> Any:
  """Returns the shapes of a model's parameters, those that are frozen included."""
  return jax.eval_shape(lambda own: merged(model, own), params) if isinstance(model, Model) else params


def host_memory(found: Mapping[str, Any], devices: int) -> int | None:
  """Estimates the peak memory of a process of the run, in bytes; None where the system does not report it.

  It is what this process has needed for libraries, data and compiling, and of the run the memory of its CPU
  devices, the clients' states where the host keeps them, and their copy in a checkpoint. On a disk states
  take no memory.

  Args:
    found: `client_state_bytes`, `memory_bytes` and `states` of `dry_run`.
    devices: number of this process's devices.
  """
  if (now := peak_memory()) is None:
    return None
  states = found["client_state_bytes"] // jax.process_count()
  on_cpu = devices * found["memory_bytes"] if jax.default_backend() == "cpu" else 0
  kept = {"over the devices": 0, "on the host": states}.get(found["states"], 0)
  return now + on_cpu + kept + states


def steps_of_clients(experiment: Experiment) -> np.ndarray:
  """Returns the local steps that each client takes in a round, [K], over all passes of the method."""
  training, view = experiment.algorithm.client.training, experiment.data.clients(jnp.arange(0))
  sizes, given = np.asarray(experiment.data.train.size), experiment.plan.client.settings
  if training is not None:
    return training.gradients * np.array([int(training.steps(sized(view, size))) for size in sizes])
  each = given["epochs"] * np.ceil(sizes / given["batch_size"])
  return np.minimum(each, given.get("steps") or np.inf)


def step_flops(experiment: Any, batch: int) -> float:
  """Returns `flops` of the gradient of one batch's loss."""
  data, model = experiment.data, experiment.model

  def rows(leaf):
    return jnp.zeros((batch, *leaf.shape[1:]), leaf.dtype)

  x, y = jax.eval_shape(lambda: (as_read(jax.tree.map(rows, data.x), data.scale), rows(data.y)))
  params = jax.eval_shape(model.init, jax.random.key(0))

  def loss(params, x, y):
    if isinstance(model, Generative):
      return sum(part(params, x, y, jnp.ones(batch), jax.random.key(0)) for part in model.losses.values())
    return mean_loss(model.task, model.logits(model.joined(params, model.stats), x), y, jnp.ones(batch))

  return flops(jax.grad(loss), params, x, y)


def matmul_peak(size: int = 2048, seconds: float = 0.5) -> float:
  """Measures the FLOPs per second of a float32 matrix product on all local devices together."""
  products = [jax.device_put(jnp.ones((size, size), jnp.float32), device) for device in jax.local_devices()]
  product = jax.jit(jnp.dot)
  jax.block_until_ready([product(a, a) for a in products])
  started, count = time.perf_counter(), 0
  while time.perf_counter() - started < seconds:
    jax.block_until_ready([product(a, a) for a in products])
    count += len(products)
  return 2.0 * size**3 * count / (time.perf_counter() - started)


def print_plan(plan: dict[str, Any]) -> None:
  """Prints the plan as a table."""
  table = Table("what", "how much", box=None, padding=(0, 2, 0, 0))
  mega = lambda count: f"{count / 1e6:,.1f} MB"  # noqa: E731
  for what, value in (
    ("parameters of a client's model", f"{plan['whole']:,}"),
    *(
      [("of these trained, or adapters of them", f"{plan['trained']:,}")]
      if plan["whole"] != plan["trained"]
      else []
    ),
    ("numbers that are broadcast", f"{plan['parameters']:,}"),
    ("data, on every device", mega(plan["data_bytes"])),
    (f"client states, {plan['states']}", mega(plan["client_state_bytes"])),
    *([("uploads on their way, on every device", mega(pool))] if (pool := plan["pool_bytes"]) else []),
    (f"memory of each of {plan['devices']} devices", mega(plan["memory_bytes"])),
    *([("memory of the process, about", mega(host))] if (host := plan["host_bytes"]) is not None else []),
    *(
      [("memory there is, of all devices", mega(there))]
      if (there := plan["memory_there"]) < 2**63 - 1
      else []
    ),
    ("a round, up", mega(plan["bytes"]["up"])),
    ("a round, down", mega(plan["bytes"]["down"])),
    *([("a round, simulated", f"{each:,.1f} s")] if (each := plan["simulated_seconds"]) is not None else []),
    ("a client's passes a round", plan["passes"]),
    ("client steps, about", f"{plan['client_steps']:,}"),
    ("a client step", f"{plan['flops_a_client_step'] / 1e6:,.1f} MFLOP"),
    ("compilation", f"{plan['compile_seconds']:.1f} s"),
    ("training, at the matrix product's speed", at_least(plan["seconds_at_least"])),
  ):
    table.add_row(what, value)
  console().print(table)


def at_least(seconds: float) -> str:
  """Formats a lower bound of a duration; one below a tenth of a second is replaced by a remark."""
  if seconds < 0.1:
    return "under 0.1 s; compilation and evaluation take longer"
  return f"{seconds:,.1f} s or more" if seconds < 10 else f"{seconds:,.0f} s or more"
