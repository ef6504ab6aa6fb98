"""`coba-rl evaluate`: avg@k and pass@k of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coba_rl.cli.outputs import check_file
from coba_rl.cli.progress import counting
from coba_rl.cli.tables import format_estimate, print_json, print_table
from coba_rl.errors import ConfigError, DatasetError
from coba_rl.evaluate import Evaluation, summarize
from coba_rl.files import write_jsonl
from coba_rl.packages import need
from coba_rl.runs.models import be_quiet, check_model
from coba_rl.runs.tasks import load_problems
from coba_rl.sampling import sample_completions, score_completions
from coba_rl.tasks.base import Problem, Task


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
        self._check_problems(task, problems)
        try:
            completions = self._sample(problems, self.max_new_tokens or task.max_completion_length)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                "Nothing was kept: an evaluation starts anew. It is shorter with --limit or fewer --num-samples."
            ) from None
        scores_PK = score_completions(task, problems, completions)
        try:
            if self.output is not None:
                self._write(self.output, problems, completions, scores_PK)
        finally:  # the figures are shown even where the file cannot be written
            self._print(summarize(scores_PK, seed=self.seed))
        return 0

    def _check(self) -> None:
        need(["torch", "transformers"], "evaluate")
        if not (0 < self.temperature < math.inf and 0 < self.top_p <= 1):
            raise ConfigError(
                f"--temperature is {self.temperature} and --top-p {self.top_p}: expected temperature > 0, 0 < top-p ≤ 1."
            )
        if self.output is not None:
            check_file(self.output)
            if self.output.exists():
                raise ConfigError(f"{str(self.output)!r} exists already. Choose another --output.")

    def _check_problems(self, task: Task, problems: list[Problem]) -> None:
        """Before any completion is paid for: there is something to judge."""
        if not problems:
            raise DatasetError(f"task {self.task!r} has no problems to evaluate.")
        if all(task.score("", problem.answer) is None for problem in problems):
            raise DatasetError(
                f"task {self.task!r}: none of the answers of {len(problems)} problems can be judged, the first is "
                f"{problems[0].answer!r}. Expected final answers, as LaTeX or plain text."
            )

    def _sample(self, problems: list[Problem], max_new_tokens: int) -> list[list[str]]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        be_quiet()
        check_model(self.model)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                self.model, padding_side="left", trust_remote_code=False
            )
            model = AutoModelForCausalLM.from_pretrained(
                self.model,
                trust_remote_code=False,
                device_map="auto" if torch.cuda.is_available() else None,  # all GPUs, if one is too small
            )
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"model {self.model!r} cannot be loaded: {error}") from None
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

    @staticmethod
    def _write(
        output: Path, problems: list[Problem], completions: list[list[str]], scores_PK: np.ndarray
    ) -> None:
        records = [
            {
                "prompt_id": problem.prompt_id,
                "completions": group,
                "scores": scores.tolist(),
            }
            for problem, group, scores in zip(problems, completions, scores_PK, strict=True)
        ]
        write_jsonl(output, records)

    def _print(self, result: Evaluation) -> None:
        if self.json:
            print_json({"model": self.model, "task": self.task, **result.as_dict()})
            return
        rows = [[f"avg@{result.num_samples}", format_estimate(result.avg)]]
        rows += [[f"pass@{k}", format_estimate(value)] for k, value in result.pass_at.items()]
        title = f"{self.model} on {self.task}, {result.num_prompts} problems"
        print_table(f"{title}, {result.num_unjudged} attempts not judged", ["", "95 % interval"], rows)
