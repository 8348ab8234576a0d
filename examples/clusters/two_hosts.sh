#!/bin/bash
# Two plain hosts by ssh, without a scheduler. Run it on any machine that may log in to both:
#
#     examples/clusters/two_hosts.sh node0 node1
#
# powerband is installed on both, and FOLDER is on a disk that they share. Ctrl-C ends the connections: the hosts
# receive SIGHUP, and the run saves and ends. Started again, the script continues the run.
set -u

HEAD="$1"
FOLDER="${FOLDER:-/shared}"
RUN="$FOLDER/runs/snakes"

read -r -d '' command <<END
cd '$FOLDER' || exit
words="run_dir='$RUN'"
[ ! -e '$RUN/checkpoints/last' ] || words="resume='$RUN'"
eval exec powerband train snakes algo=ddpg env_steps=50000000 nnodes=$# rdzv_endpoint='$HEAD:29500' gpus=all "\$words"
END

started=()
for host in "$@"; do
    ssh -tt "$host" "$command" </dev/null &
    started+=($!)
done
trap 'kill "${started[@]}"' INT TERM
status=0
for process in "${started[@]}"; do
    wait "$process" || status=$?
done
exit "$status"
