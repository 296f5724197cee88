"""Flags that select devices and processes, and the preparation of JAX before it uses a device."""

import os

import jax
from absl import flags

from fedjax_het.engine.compile_cache import default_cache, keep_programs
from fedjax_het.engine.cpu import prepare_cpu
from fedjax_het.errors import SettingError, check_whole, near
from fedjax_het.program.coordinator import bind_address, parse_coordinator
from fedjax_het.program.where import Where, parse_mesh

PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu")  # names that JAX_PLATFORMS may contain


def define_machine_flags() -> None:
  """Defines the flags for devices, memory and processes, which do not affect what is computed."""
  flags.DEFINE_string(
    "mesh", "", "clients:N spreads the work over N devices; all by default. CPUs are cut to N."
  )
  flags.DEFINE_integer(
    "client_batch",
    None,
    "Clients that a device trains at once; by default 1 on a CPU, else all. "
    "Numbers differ with it by rounding.",
  )
  flags.DEFINE_integer(
    "device_rows",
    None,
    "Examples that a device holds at once, the others staying on the host; by default all.",
  )
  flags.DEFINE_integer(
    "device_states",
    None,
    "Clients' states (such as their own models) that the devices hold at once, all staying on the host; "
    "by default all are on the devices.",
  )
  flags.DEFINE_string(
    "states_folder", None, "A folder on a disk for the states that --device_states keeps on the host."
  )
  flags.DEFINE_bool(
    "distributed", False, "Join the processes of a SLURM, Kubernetes or TPU job, or those of --coordinator."
  )
  flags.DEFINE_string("coordinator", None, "HOST:PORT of the first process, where no cluster says so.")
  flags.DEFINE_integer("processes", None, "Number of processes, where no cluster says so.")
  flags.DEFINE_integer("process", None, "This process's number from 0, where no cluster says so.")
  flags.DEFINE_float(
    "checkpoint_seconds", 600.0, "A checkpoint at the latest after so long; also at every evaluation."
  )
  flags.DEFINE_string(
    "compile_cache",
    default_cache(),
    "Folder of JAX's persistent compilation cache; empty for none. By default ~/.cache/fedjax_het.",
  )


def prepare_jax() -> None:
  """Sets up processes, CPU devices and the compilation cache; must precede the first use of a device."""
  given, processes = flags.FLAGS, 1
  devices = parse_mesh(given.mesh)
  if given.distributed:
    # Otherwise JAX would swallow SIGTERM until the run handles it.
    jax.config.update("jax_enable_preemption_service", False)
    if given.processes is not None:
      check_whole("processes", given.processes, 1)
    if given.process is not None:
      check_whole("process", given.process, 0, given.processes and given.processes - 1)
    coordinator = given.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    address = None
    if coordinator:
      parse_coordinator(coordinator)
      if not given.process:  # the first process, or not yet known
        address = bind_address(coordinator, tells=given.process == 0)
    try:
      jax.distributed.initialize(
        coordinator, given.processes, given.process, coordinator_bind_address=address
      )
    except (ValueError, RuntimeError) as error:
      raise SettingError(
        "distributed", True, f"found no cluster ({error})",
        "Give --coordinator=HOST:PORT --processes=N --process=i, or see launch/.",
      ) from error  # fmt: skip
    processes = processes_told()
    if devices is not None and devices % processes:
      raise SettingError("mesh", given.mesh, f"not the same for {processes} processes", "Use a multiple.")
  else:
    for name in ("coordinator", "processes", "process"):
      if given[name].value is not None:
        raise SettingError(name, given[name].value, "needs --distributed", "Add --distributed.")
  prepare_cpu(devices and devices // processes)
  start_devices()
  if given.compile_cache:
    keep_programs(given.compile_cache)


def start_devices() -> None:
  """Starts JAX's devices; raises `SettingError` for a platform that cannot be started."""
  asked = jax.config.jax_platforms  # type: ignore[attr-defined]
  try:
    jax.devices()
  except (AssertionError, RuntimeError) as error:
    problem = "JAX cannot start this platform"
    if about := " ".join(str(error).split()).rstrip("."):
      problem += f" ({about})"
    unknown = [name for name in (asked or "").split(",") if name.lower() not in PLATFORMS]
    remedy = near(unknown[0], PLATFORMS) if asked and unknown else "Set JAX_PLATFORMS=cpu, or leave it unset."
    raise SettingError("JAX_PLATFORMS", asked, problem, remedy) from error


def processes_told() -> int:
  """Returns the number of processes that the flag, or else the cluster, states.

  JAX has no public name for it before devices start, which `jax.process_count` does.
  """
  from jax._src import distributed

  return flags.FLAGS.processes or distributed.global_state.num_processes or 1


def where_of_flags() -> Where:
  """Returns the `Where` that the flags describe."""
  given = flags.FLAGS
  numbers = given.client_batch, given.device_rows, given.device_states
  return Where(parse_mesh(given.mesh), *numbers, given.states_folder)
