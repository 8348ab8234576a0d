#!/bin/bash
# Two machines with four GPUs each under torchrun. Run it on both, with the name of the first one:
#
#     HEAD=node0 examples/clusters/torchrun.sh
#
# The run folder is on a disk that both machines share. Started again, the script continues the run.
set -eu

RUN="${RUN:-/shared/runs/snakes}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120  # seconds in which the ranks save after a signal

words=("run_dir=$RUN")
[ ! -e "$RUN/checkpoints/last" ] || words=("resume=$RUN")

exec torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id=snakes --rdzv-endpoint="$HEAD:29500" \
    -m powerband train snakes algo=ddpg env_steps=50000000 "${words[@]}"
