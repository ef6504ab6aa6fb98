"""`coba-rl evaluate`: avg@k and pass@k of a model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from coba_rl.cli.arguments import Count, Seed
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


def evaluate(
    model: str,
    *,
    task: str = "prefix-scan",
    num_samples: Count = 16,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: Count | None = None,
    batch_size: Count = 512,
    limit: Count | None = None,
    seed: Seed = 0,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Measure avg@k and unbiased pass@k of a model, with 95 % intervals over problems.

    Parameters
    ----------
    model
        Folder or hub name of a transformers causal language model.
    task
        prefix-scan, string-transform, a benchmark (aime24, aime25, amc23, math500, olympiadbench), NAME=FILE for a local copy
        of a benchmark, or a data file.
    num_samples
        Completions of each problem: k of avg@k, and the largest k of pass@k.
    temperature
        Of sampling.
    top_p
        Of sampling. The paper evaluates with 0.9.
    max_new_tokens
        Most tokens of a completion. Default: the task's.
    batch_size
        Completions generated at a time.
    limit
        Evaluate only the first so many problems.
    seed
        Of sampling and of the intervals.
    output
        Write the completions and their scores to this JSON-lines file.
    json
        Print JSON instead of a table.
    """
    need(["torch", "transformers"], "evaluate")
    _check_arguments(temperature, top_p, output)
    judge, problems = load_problems(task)
    problems = problems[:limit]
    _check_problems(task, judge, problems)
    completions = _sample(
        model,
        problems,
        num_samples=num_samples,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens or judge.max_completion_length,
        batch_size=batch_size,
        seed=seed,
    )
    scores_PK = score_completions(judge, problems, completions)
    try:
        if output is not None:
            _write(output, problems, completions, scores_PK)
    finally:  # the figures are shown even where the file cannot be written
        result = summarize(scores_PK, seed=seed)
        if json:
            print_json({"model": model, "task": task, **result.as_dict()})
        else:
            _print(f"{model} on {task}", result)


def _check_arguments(temperature: float, top_p: float, output: Path | None) -> None:
    if not (0 < temperature < math.inf and 0 < top_p <= 1):
        raise ConfigError(
            f"--temperature is {temperature} and --top-p {top_p}: expected temperature > 0, 0 < top-p ≤ 1."
        )
    if output is not None:
        check_file(output)
        if output.exists():
            raise ConfigError(f"{str(output)!r} exists already. Choose another --output.")


def _check_problems(name: str, task: Task, problems: list[Problem]) -> None:
    """Before any completion is paid for: there is something to judge."""
    if not problems:
        raise DatasetError(f"task {name!r} has no problems to evaluate.")
    if all(task.score("", problem.answer) is None for problem in problems):
        raise DatasetError(
            f"task {name!r}: none of the answers of {len(problems)} problems can be judged, the first is "
            f"{problems[0].answer!r}. Expected final answers, as LaTeX or plain text."
        )


def _sample(model: str, problems: list[Problem], **settings: Any) -> list[list[str]]:
    try:
        loaded, tokenizer = _load(model)
        with counting("completions") as progress:
            return sample_completions(loaded, tokenizer, problems, progress=progress, **settings)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "Nothing was kept: an evaluation starts anew. It is shorter with --limit or fewer --num-samples."
        ) from None


def _load(model: str) -> tuple[Any, Any]:
    """Model and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    be_quiet()
    check_model(model)
    over_all_gpus = "auto" if torch.cuda.is_available() else None  # one may be too small
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", trust_remote_code=False)
        loaded = AutoModelForCausalLM.from_pretrained(
            model, trust_remote_code=False, device_map=over_all_gpus
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model {model!r} cannot be loaded: {error}") from None
    return loaded, tokenizer


def _write(
    output: Path, problems: list[Problem], completions: list[list[str]], scores_PK: np.ndarray
) -> None:
    groups = zip(problems, completions, scores_PK.tolist(), strict=True)
    write_jsonl(
        output,
        [{"prompt_id": p.prompt_id, "completions": texts, "scores": scores} for p, texts, scores in groups],
    )


def _print(title: str, result: Evaluation) -> None:
    rows = [[f"avg@{result.num_samples}", format_estimate(result.avg)]]
    rows += [[f"pass@{k}", format_estimate(value)] for k, value in result.pass_at.items()]
    details = f"{result.num_prompts} problems, {result.num_unjudged} attempts not judged"
    print_table(f"{title}, {details}", ["", "95 % interval"], rows)
