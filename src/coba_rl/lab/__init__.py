"""A small, deterministic GRPO on the embedded task, for comparing strategies in minutes."""
