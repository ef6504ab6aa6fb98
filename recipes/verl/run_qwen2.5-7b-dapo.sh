#!/usr/bin/env bash
# CoBA-RL on one node: Qwen2.5-7B on DAPO-Math-17K with the settings of the paper (arXiv 2602.03048):
# batches of 256 prompts, 16 rollouts a prompt on average, 2 to 128 each, clip 0.2/0.28, AdamW 1e-6, no KL,
# mini-batches of 128 prompts, 2048 + 4096 tokens, evaluation avg@16 at temperature 1.0 and top-p 0.9.
#
#   python recipes/verl/prepare_data.py
#   bash recipes/verl/run_qwen2.5-7b-dapo.sh
#
# Variants, by variable:
#   MODEL=Qwen/Qwen2.5-7B                                    the base model
#   MODEL=Qwen/Qwen3-4B-Base   PROMPTS=512 STEPS=500         the smaller models of the paper
#   MODEL=Qwen/Qwen3-1.7B-Base PROMPTS=512 STEPS=500 TP=1
#   STRATEGY=uniform | knapsack | …                          what to compare with
# Further settings of verl go behind the command: bash run_….sh trainer.logger='[console,wandb]'
set -euo pipefail

MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
DATA=${DATA:-$HOME/data/coba-rl}
STRATEGY=${STRATEGY:-coba}
GPUS=${GPUS:-8}
NODES=${NODES:-1}
TP=${TP:-2}
PROMPTS=${PROMPTS:-256}
STEPS=${STEPS:-1000}
NAME=${NAME:-$(basename "$MODEL")-$STRATEGY}
OUT=${OUT:-$HOME/runs/coba-rl/$NAME}

MODULES=coba_rl.hosts.verl
export VERL_USE_EXTERNAL_MODULES=$MODULES

python -m verl.trainer.main_ppo \
    trainer.v1.trainer_mode=coba_sync \
    +algorithm.coba.strategy="$STRATEGY" \
    +algorithm.coba.min_budget=2 \
    +algorithm.coba.max_budget=128 \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files="$DATA/train.parquet" \
    data.val_files="[$DATA/aime24.parquet,$DATA/aime25.parquet,$DATA/amc23.parquet,$DATA/math500.parquet,$DATA/olympiadbench.parquet]" \
    data.train_batch_size="$PROMPTS" \
    data.max_prompt_length=2048 \
    data.max_response_length=4096 \
    data.filter_overlong_prompts=True \
    reward.custom_reward_function.path=pkg://coba_rl.hosts.verl.rewards \
    reward.custom_reward_function.name=math \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.rollout.name="${ENGINE:-vllm}" \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.tensor_model_parallel_size="$TP" \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.7 \
    actor_rollout_ref.rollout.val_kwargs.n=16 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.9 \
    trainer.nnodes="$NODES" \
    trainer.n_gpus_per_node="$GPUS" \
    trainer.total_training_steps="$STEPS" \
    trainer.total_epochs=100 \
    trainer.save_freq=50 \
    trainer.test_freq=50 \
    trainer.logger='[console]' \
    trainer.project_name=coba-rl \
    trainer.experiment_name="$NAME" \
    trainer.default_local_dir="$OUT" \
    +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES="$MODULES" \
    "$@"
