#!/usr/bin/env bash
# Starts several processes on this machine, as on several hosts; by default two with two CPU devices each.
#
#   launch/local.sh --workdir=runs/two_processes [any flag of fedjax_het.run]
#   PROCESSES=4 DEVICES=1 launch/local.sh ...
#
# The first process shows its output; the others' goes to WORKDIR/process_N.log, whose end is shown if one fails.
# Without --workdir=WORKDIR the logs are in a temporary folder, which is named at the start.
# Ctrl-C and SIGTERM reach all of them: a checkpoint is written, and the same command continues from it. SIGUSR1
# only writes a checkpoint.
#
# Tested: 2 processes x 2 CPU devices over gloo, JAX 0.10.2, by tests/experiment/test_processes.py.
# Not tested: several processes that share one machine's GPUs.
set -uo pipefail
processes=${PROCESSES:-2}
devices=${DEVICES:-2}
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
logs=$(mktemp -d)
for argument in "$@"; do
  case $argument in --workdir=*) logs=${argument#--workdir=} ;; esac
done
logs=${logs/#\~\//$HOME/}
mkdir -p "$logs" || exit 1
[[ $* == *--workdir=* ]] || echo "Output of the other processes: $logs/process_N.log"

started=()
trap 'kill -TERM "${started[@]}" 2>/dev/null' INT TERM
trap 'kill -USR1 "${started[@]}" 2>/dev/null' USR1
for ((i = 0; i < processes; i++)); do
  (
    trap '' USR1 # until the run handles it; by default the system ends the process
    if ((i)); then exec >"$logs/process_$i.log"; fi # the first process's output may be appended to a file
    JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} exec python3 -m fedjax_het.run "$@" \
      --mesh="clients:$((processes * devices))" \
      --distributed --coordinator="127.0.0.1:$port" --processes="$processes" --process="$i" 2>&1
  ) &
  started+=($!)
done

status=0
for ((i = 0; i < processes; i++)); do
  code=1
  while kill -0 "${started[i]}" 2>/dev/null; do wait "${started[i]}"; code=$?; done # a trapped signal ends `wait`
  wait "${started[i]}" 2>/dev/null
  last=$?
  ((last != 127)) && code=$last
  if ((code != 0 && status == 0)); then
    status=$code
    kill -TERM "${started[@]}" 2>/dev/null
    ((i)) && tail -n 20 "$logs/process_$i.log" >&2
  fi
done
exit "$status"
