#!/usr/bin/env bash
# Does `coba-rl train` work on this GPU? Five minutes, no downloads: the embedded policy is trained with vLLM in the same
# process, stopped half-way, resumed, and, where there are two GPUs, trained on both. Every line of the verdict is read
# from the run folders (gpu_check.py says how), and one FAIL makes the exit code 1.
#
#   pip install "coba-rl[trl]" "trl[vllm]"
#   bash recipes/trl/gpu_check.sh
#
# Variables:
#   DEVICE=cpu                 everything but vLLM, on the CPU; what is skipped is named
#   PYTHON=.venv/bin/python    the interpreter
#   OUT=folder                 where runs and logs go; default: a new temporary folder
set -uo pipefail

DEVICE=${DEVICE:-gpu}
PYTHON=${PYTHON:-python}
OUT=${OUT:-$(mktemp -d)}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
failed=0

fail() {
    echo "FAIL  $*"
    failed=1
}

# train NAME DEVICES COMMAND…: its output goes to a log, the end of which is shown when it fails.
train() {
    local name=$1 devices=$2 start=$SECONDS
    shift 2
    if CUDA_VISIBLE_DEVICES=$devices "$@" > "$OUT/$name.log" 2>&1; then
        echo "      $name trained in $((SECONDS - start)) s"
    else
        fail "$name: exit code $?; the end of its log $OUT/$name.log:"
        tail -n 15 "$OUT/$name.log"
    fi
}

check() {
    "$PYTHON" "$HERE/gpu_check.py" "$@" || failed=1
}

# Four steps an epoch: from the fifth on, prompts come back and budgets follow their histories.
SETTINGS=(
    --seed 1 --training.learning_rate 1e-6 --training.save_every 1
    --training.prompts_per_step 256 --training.rollouts_per_prompt 4
    --allocation.min_budget 1 --allocation.max_budget 32
    --evaluation.num_samples 4 --evaluation.every 2
)
case "$DEVICE" in
gpu)
    VISIBLE=${CUDA_VISIBLE_DEVICES-0,1}
    num_gpus=$(CUDA_VISIBLE_DEVICES=$VISIBLE "$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
    if [ "${num_gpus:-0}" -lt 1 ]; then
        fail "torch sees no GPU (DEVICE=cpu checks the rest of the path)"
        exit 1
    fi
    SETTINGS+=(--trl.use_vllm true --trl.vllm_mode colocate --trl.vllm_gpu_memory_utilization 0.3)
    ENGINE="vllm colocate"
    ;;
cpu)
    VISIBLE="" num_gpus=0 ENGINE=transformers  # also where there is a GPU
    ;;
*)
    fail "DEVICE=$DEVICE: expected gpu or cpu"
    exit 2
    ;;
esac
expected=(--device "$DEVICE" --engine "$ENGINE" --steps 6)
coba_train=("$PYTHON" -m coba_rl.cli train)

train first-half "${VISIBLE%%,*}" "${coba_train[@]}" --output-dir "$OUT/one" --steps 3 "${SETTINGS[@]}"
cp -r "$OUT/one" "$OUT/half"
train second-half "${VISIBLE%%,*}" "${coba_train[@]}" --output-dir "$OUT/one" --resume --steps 6
check "$OUT/one" "${expected[@]}" --processes 1 --first-half "$OUT/half"

if [ "$DEVICE" = cpu ]; then
    echo "SKIP  vLLM: DEVICE=cpu"
    echo "SKIP  two GPUs: DEVICE=cpu, so two processes of the CPU"
elif [ "$num_gpus" -lt 2 ]; then
    echo "SKIP  two GPUs: there is one"
fi
if [ "$DEVICE" = cpu ] || [ "$num_gpus" -ge 2 ]; then
    train two-processes "$VISIBLE" "$PYTHON" -m torch.distributed.run --standalone --nproc_per_node 2 \
        -m coba_rl.cli train --output-dir "$OUT/two" --steps 6 "${SETTINGS[@]}"
    check "$OUT/two" "${expected[@]}" --processes 2
fi

if [ "$failed" = 0 ]; then
    echo "PASS  all of it, in $SECONDS s"
else
    echo "FAIL  see above; runs and logs are in $OUT"
fi
exit "$failed"
