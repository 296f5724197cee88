"""The command line of `python -m fedjax_het.tune`."""

from absl import flags
from ml_collections import ConfigDict

from fedjax_het import launcher
from fedjax_het.output.terminal import say
from fedjax_het.program.where import Where
from fedjax_het.tune.rungs import BATCH
from fedjax_het.tune.space import Dimension, take_space


def define_flags() -> None:
  """Defines the flags of a study; those of a run are defined before."""
  flags.FLAGS.set_default("workdir", "runs/tuning")
  flags.DEFINE_integer("trials", 16, "Number of trials.")
  flags.DEFINE_integer(
    "batch", BATCH, "Trials that begin together as one program; later ones learn from them."
  )


def tune(config: ConfigDict, space: dict[str, Dimension], where: Where) -> None:
  """Tunes a configuration as the flags say."""
  from fedjax_het.tune.checks import about_study
  from fedjax_het.tune.study import run_tune

  given = flags.FLAGS
  if given.dry_run:
    for line in about_study(config, space or None, given.trials, given.batch):
      say(line)
    return
  run_tune(
    config, space or None, given.workdir, where, trials=given.trials, batch=given.batch,
    member_batch=given.member_batch, checkpoint_seconds=given.checkpoint_seconds,
  )  # fmt: skip


def launch() -> None:
  """Runs the program of the command line and exits with its status."""
  launcher.launch(take_space, tune, define_flags)
