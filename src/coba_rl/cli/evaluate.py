"""`coba-rl evaluate`: avg@k and pass@k of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coba_rl.cli.progress import counting
from coba_rl.cli.tables import format_estimate, print_json, print_table
from coba_rl.cli.tasks import load_problems
from coba_rl.errors import ConfigError, DatasetError
from coba_rl.evaluate import Evaluation, summarize
from coba_rl.files import append_jsonl
from coba_rl.sampling import sample_completions, score_completions
from coba_rl.tasks.base import Problem


@dataclass(frozen=True)
class EvaluateCommand:
    """Fields are the command's parameters."""

    model: str
    task: str
    num_samples: int
    temperature: float
    top_p: float
    max_new_tokens: int | None
    batch_size: int
    limit: int | None
    seed: int
    output: Path | None
    json: bool

    def run(self) -> int:
        self._check()
        task, problems = load_problems(self.task)
        problems = problems[: self.limit]
        if not problems:
            raise DatasetError(f"task {self.task!r} has no problems to evaluate.")
        completions = self._sample(problems, self.max_new_tokens or task.max_completion_length)
        scores_PK = score_completions(task, problems, completions)
        if self.output is not None:
            self._write(problems, completions, scores_PK)
        self._print(summarize(scores_PK, seed=self.seed))
        return 0

    def _check(self) -> None:
        for name, least in (("num_samples", 1), ("batch_size", 1), ("limit", 1), ("max_new_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}: expected at least {least}.")
        if not (self.temperature > 0 and 0 < self.top_p <= 1):
            raise ConfigError(
                f"--temperature is {self.temperature} and --top-p {self.top_p}: expected temperature > 0, 0 < top-p ≤ 1."
            )
        if self.output is not None and self.output.exists():
            raise ConfigError(f"{str(self.output)!r} exists already. Choose another --output.")

    def _sample(self, problems: list[Problem], max_new_tokens: int) -> list[list[str]]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                self.model, padding_side="left", trust_remote_code=False
            )
            model = AutoModelForCausalLM.from_pretrained(self.model, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model {self.model!r} cannot be loaded: {error}") from None
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        with counting("completions") as progress:
            return sample_completions(
                model,
                tokenizer,
                problems,
                num_samples=self.num_samples,
                temperature=self.temperature,
                top_p=self.top_p,
                max_new_tokens=max_new_tokens,
                batch_size=self.batch_size,
                seed=self.seed,
                progress=progress,
            )

    def _write(self, problems: list[Problem], completions: list[list[str]], scores_PK: np.ndarray) -> None:
        assert self.output is not None
        append_jsonl(
            self.output,
            [
                {"prompt_id": problem.prompt_id, "completions": group, "scores": scores.tolist()}
                for problem, group, scores in zip(problems, completions, scores_PK, strict=True)
            ],
        )

    def _print(self, result: Evaluation) -> None:
        if self.json:
            print_json({"model": self.model, "task": self.task, **result.as_dict()})
            return
        rows = [[f"avg@{result.num_samples}", format_estimate(result.avg.as_dict())]]
        rows += [[f"pass@{k}", format_estimate(value.as_dict())] for k, value in result.pass_at.items()]
        print_table(
            f"{self.model} on {self.task}, {result.num_prompts} problems", ["", "95 % interval"], rows
        )
