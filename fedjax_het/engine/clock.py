"""How long clients work in a round, in simulated seconds, see `System`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.balance import sized
from fedjax_het.engine.border import checked_speeds
from fedjax_het.engine.cohort import participation_key, system_key
from fedjax_het.engine.message_bytes import message_bytes
from fedjax_het.parts import Algorithm, LocalTraining


class Work(NamedTuple):
  """What each client's whole part in a round is made of.

  Attributes:
    transfer: seconds in which the client receives the broadcast and sends its upload, float32 [K].
    step: seconds of one local step, float32 [K].
    steps: its local steps, int32 [K].
  """

  transfer: jax.Array
  step: jax.Array
  steps: jax.Array


def work_seconds(algorithm: Algorithm, key: jax.Array, data: FederatedData, cohort_size: int) -> jax.Array:
  """Returns the seconds of each client's whole part in a round, float32 [K]; pure, and the same every round.

  A part is receiving the broadcast, all local steps of the client's examples, and sending the upload, see
  `System`. The bits are the same in every program.

  Args:
    algorithm: the parts, whose system part has speeds.
    key: the run's key.
    data: the clients' data.
    cohort_size: S.

  Raises:
    SettingError: the number of a client's steps is known only after its training, or the speeds have other
      shapes than [K].
  """
  own = work(algorithm, participation_key(key), jnp.asarray(data.train.size), data, cohort_size)
  return done_after(own.transfer, own.step, own.steps)


def done_after(transfer: jax.Array, step: jax.Array, steps: jax.Array) -> jax.Array:
  """Computes when clients are done, transfer + steps · step in seconds, rounded alike in all programs."""
  return transfer + lax.optimization_barrier(step * steps.astype(jnp.float32))


def work(
  algorithm: Algorithm, key: jax.Array, sizes: jax.Array, data: FederatedData, cohort_size: int
) -> Work:
  """Returns what each client's whole part in a round is made of.

  Args:
    algorithm: the parts, whose system part has speeds.
    key: the key of the participation part, see `participation_key`.
    sizes: the clients' numbers of training examples, int32 [K].
    data: the clients' data, or their shapes.
    cohort_size: S.

  Raises:
    SettingError: see `work_seconds`.
  """
  system, training = algorithm.system, algorithm.training_in_steps()
  assert system.speeds is not None
  speeds = checked_speeds(system.speeds(system_key(key), sizes), len(sizes))
  each = message_bytes(algorithm, data, cohort_size)
  transfer = jnp.float32(each.up + each.down) / speeds.bytes_per_second
  step = speeds.step_seconds * jnp.float32(training.gradients)
  transfer, step = lax.optimization_barrier((transfer, step))
  return Work(transfer, step, steps_of(training, sizes, data))


def steps_of(training: LocalTraining, sizes: jax.Array, data: FederatedData) -> jax.Array:
  """Returns the local steps that clients with so many examples take in a round, int32 [K]."""
  view = jax.eval_shape(lambda own: own.clients(0), data)
  return jax.vmap(lambda n: jnp.int32(training.steps(sized(view, n))))(sizes)
