#!/usr/bin/env bash
# A SLURM job with one process per GPU, on any number of nodes.
#
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 launch/slurm.sh --workdir=/shared/runs/a [flags ...]
#
# A paper's table by a job array, whose jobs each take the cells that no other job works on:
#
#   sbatch --array=0-3 launch/slurm.sh reproduce --table=configs/table_2_3.py --workdir=/shared/runs/table [flags ...]
#
# Request as many tasks as GPUs on each node, without --gpus-per-task: JAX assigns the i-th GPU that it sees to the
# i-th process of a node, so every process must see all GPUs. Without GPUs: --gpus-per-node=0.
#
# JAX finds the coordinator, the number of processes and each one's number in SLURM's own variables. The workdir
# must be on a file system that all nodes see; so should --config.data_dir. SLURM sends SIGTERM two minutes
# before the time is up (--signal below): the run writes a checkpoint, ends with 143, and is requeued, and the
# same command continues from the checkpoint. A cancelled run writes a checkpoint too; neither cancelled nor failed
# runs are requeued. With --no-requeue, submit the same command again.
#
# Tested: on one node of SLURM 22.05 two CPU tasks, stopped and requeued, by benchmarks/checks/slurm.py, and an array of
# two jobs whose node dies, by benchmarks/checks/slurm_array.py (both before srun's --cpus-per-task,
# with which two jobs ran); this script's decisions by tests/experiment/test_slurm.py
# (docs/results/resume.md). Not tested: several nodes, GPUs.
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
job=$SLURM_JOB_ID # in an array, one job has the number of the whole array
[ -n "${SLURM_ARRAY_JOB_ID-}" ] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

again=
# Sent to the processes directly: srun would kill them instead of forwarding it. It fails if SLURM already ends the job.
trap 'again=1; scancel --quiet --signal=TERM "$job.0" || again=' TERM
# To write a checkpoint and continue: scancel --batch --signal=USR1 JOB, or --signal=B:USR1@600 above in place of TERM's.
trap 'scancel --quiet --signal=USR1 "$job.0"' USR1
what=run
case ${1-} in run | reproduce) what=$1 && shift ;; esac
# Since SLURM 22.05 a step does not inherit the job's --cpus-per-task.
srun ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} --kill-on-bad-exit=1 python3 -m "fedjax_het.$what" --distributed "$@" &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; done # a trapped signal ends `wait`
wait "$step"
status=$?
# If one process fails, srun stops the others, which also ends with 143.
[ "$status" -eq 143 ] && [ -n "$again" ] && scontrol requeue "$job"
exit "$status"
