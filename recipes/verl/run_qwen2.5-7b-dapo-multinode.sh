#!/usr/bin/env bash
# CoBA-RL on several nodes: the same job over a Ray cluster. Models, data and the output folder must lie on a disk that
# every node sees under the same path, and coba-rl must be installed on every node.
#
#   on the first node:   NODES=4 bash recipes/verl/run_qwen2.5-7b-dapo-multinode.sh head
#   on each other node:  HEAD=10.0.0.1 bash recipes/verl/run_qwen2.5-7b-dapo-multinode.sh worker
#
# Under Slurm, one task a node does both:
#   export NODES=$SLURM_NNODES HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#   srun --ntasks-per-node 1 bash -c \
#     'bash recipes/verl/run_qwen2.5-7b-dapo-multinode.sh $([ "$SLURM_PROCID" = 0 ] && echo head || echo worker)'
#
# The variables of run_qwen2.5-7b-dapo.sh hold here as well.
set -euo pipefail

ROLE=${1:?"say what this node is: head or worker"}
shift
export NODES=${NODES:-2} GPUS=${GPUS:-8}
PORT=${PORT:-6379}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case "$ROLE" in
worker)
    : "${HEAD:?"set HEAD to the address of the first node"}"
    until (exec 3<>"/dev/tcp/$HEAD/$PORT") 2>/dev/null; do
        echo "waiting for $HEAD:$PORT" >&2
        sleep 5
    done
    exec ray start --address "$HEAD:$PORT" --num-gpus "$GPUS" --block  # ends when the first node stops Ray
    ;;
head)
    ray start --head --port "$PORT" --num-gpus "$GPUS" --disable-usage-stats
    trap 'ray stop' EXIT
    until [ "$(python -c 'import ray; ray.init(address="auto", logging_level="error")
print(int(ray.cluster_resources().get("GPU", 0)))' | tail -n 1)" -ge $((NODES * GPUS)) ]; do
        echo "waiting for $NODES nodes of $GPUS GPUs" >&2
        sleep 5
    done
    bash "$HERE/run_qwen2.5-7b-dapo.sh" "$@"
    ;;
*)
    echo "$ROLE is no role of a node: expected head or worker" >&2
    exit 2
    ;;
esac
