#!/usr/bin/env bash
# A SLURM job: one process a GPU, on as many nodes as asked.
#
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 launch/slurm.sh --workdir=/shared/runs/a [flags ...]
#
# As many tasks as GPUs on each node, and no --gpus-per-task: JAX gives the i-th process of a node the i-th of the
# GPUs that it sees, so all must see all.
#
# JAX finds the coordinator, the number of processes and each one's number in SLURM's own variables. The workdir
# must be on a file system that all nodes see; so should --config.data_dir. SLURM sends SIGTERM two minutes
# before the time is up (--signal below): the run writes a checkpoint, ends with 143, and is put back into the
# queue, where the same command goes on from it.
#
# Tested: the flags, and the processes' work and their stopping, by launch/local.sh. Not tested: on a SLURM cluster,
# on GPUs.
#SBATCH --job-name=fedjax_het
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fedjax_het-%j.log
set -uo pipefail

srun --kill-on-bad-exit=1 python3 -m fedjax_het.run --distributed "$@" &
step=$!
trap 'kill -TERM "$step"' TERM # srun hands it on to every process
wait "$step"
wait "$step" # the first one ends when the signal comes
status=$?
if [ "$status" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
