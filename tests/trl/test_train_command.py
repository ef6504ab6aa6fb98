"""`coba-rl train` and its trainer: weights that move, held-out accuracy along the way, nothing left behind."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coba_rl.cli import main
from coba_rl.cli.progress import TrainingProgress
from coba_rl.evaluate import summarize
from coba_rl.files import read_jsonl
from coba_rl.records import EvaluationRecord, HeldoutSummary, read_records
from coba_rl.runs import heldout, trl_config
from coba_rl.runs.folder import RunFolder
from coba_rl.tasks.policy import policy_path
from coba_rl.tasks.prefix_scan import PrefixScan

pytestmark = [pytest.mark.trl, pytest.mark.timeout(600)]

STEP = (
    "--training.prompts_per_step",
    "8",
    "--training.rollouts_per_prompt",
    "4",
    "--training.save_every",
    "1",
)
SMALL = (*STEP, "--evaluation.num_samples", "1")


def train(folder: Path, *arguments: str) -> RunFolder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, while training
        assert main(["train", "--output-dir", str(folder), "--json", *arguments]) == 0
    return RunFolder(folder)


def accuracies(folder: RunFolder) -> dict[int, dict[str, float | None]]:
    """Step → accuracy after it on each held-out problem."""
    return {record.step: record.accuracy for record in read_records(folder.heldout_file, EvaluationRecord)}


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.policy / "model.safetensors")


# --- Weights and devices ---


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a device with CUDA, or without; the model stays on the CPU, which computes them all."""
    settings = trl_config._device

    def reported() -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr("torch.cuda.is_available", lambda: request.param == "cuda")
            return {**settings(), "use_cpu": True}

    monkeypatch.setattr(trl_config, "_device", reported)


def moved(folder: RunFolder) -> float:
    """Share of the weights that are not what they were."""
    before, after = load_file(policy_path("hard") / "model.safetensors"), weights(folder)
    changed = sum(
        int((after[name].float() != value.to(after[name].dtype).float()).sum())
        for name, value in before.items()
    )
    return changed / sum(value.numel() for value in before.values())


SMALL_STEPS = ("--steps", "5", "--training.learning_rate", "1e-6", *SMALL)


@pytest.mark.parametrize("device", ["cuda", "cpu"], indirect=True)
def test_at_1e_6_nearly_every_weight_moves_whatever_the_device_reports(device: None, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *SMALL_STEPS)
    assert {value.dtype for value in weights(folder).values()} == {torch.float32}
    assert moved(folder) > 0.98


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_model_init_kwargs_reach_the_model_and_bfloat16_weights_would_stand_still(
    device: None, tmp_path: Path
) -> None:
    with pytest.warns(
        UserWarning, match=r"hardly learn: at learning_rate=1e-06, a step leaves \d+% of the weights"
    ):
        code = main(
            ["train", "--output-dir", str(tmp_path / "run"), "--trl.model_init_kwargs", '{dtype = "bfloat16"}', *SMALL_STEPS]
        )  # fmt: skip
    assert code == 0
    folder = RunFolder(tmp_path / "run")
    assert {value.dtype for value in weights(folder).values()} == {torch.bfloat16}
    assert moved(folder) < 0.05


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_with_cuda_compute_is_bfloat16_and_the_trainer_places_the_model(
    device: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    trainer_class = heldout.CobaGRPOTrainer

    class Seen(trainer_class):
        def __init__(self, model: Any, *arguments: Any, **keywords: Any) -> None:
            made.append((model, keywords["args"]))
            super().__init__(model, *arguments, **keywords)

    monkeypatch.setattr("coba_rl.runs.trl_run.CobaGRPOTrainer", Seen)
    train(tmp_path / "run", "--steps", "1", *SMALL)
    ((model, args),) = made
    assert model == str(policy_path("hard"))  # a name: launchers with ZeRO-3 or FSDP shard while loading
    assert args.bf16
    assert args.gradient_checkpointing
    assert args.model_init_kwargs is None


# --- Held-out accuracy ---


def test_measuring_along_the_way_is_written_and_changes_no_weight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight = train(tmp_path / "straight", "--steps", "5", *SMALL)
    capsys.readouterr()
    measured = train(tmp_path / "measured", "--steps", "5", "--evaluation.every", "2", *SMALL)
    assert list(accuracies(straight)) == [0, 5]
    assert list(accuracies(measured)) == [0, 2, 4, 5]
    assert accuracies(straight) == {step: accuracies(measured)[step] for step in (0, 5)}
    assert straight.allocations_file.read_bytes() == measured.allocations_file.read_bytes()
    assert all(torch.equal(value, weights(straight)[name]) for name, value in weights(measured).items())

    logged = {
        r["step"]: r["heldout/accuracy"] for r in read_jsonl(measured.metrics_file) if "heldout/accuracy" in r
    }
    assert logged == {
        step: pytest.approx(np.mean(list(accuracy.values())))
        for step, accuracy in accuracies(measured).items()
    }
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    shown = [line.partition("held-out ")[2].split()[0] for line in lines]
    assert shown == [f"{logged[step]:.3g}" for step in (0, 2, 2, 4, 5)]


def test_resume_measures_what_an_uninterrupted_run_does(tmp_path: Path) -> None:
    every = ("--evaluation.every", "1", *SMALL)
    whole = train(tmp_path / "whole", "--steps", "4", *every)
    parts = train(tmp_path / "parts", "--steps", "2", *every)
    train(parts.path, "--resume", "--steps", "4")
    assert parts.heldout_file.read_bytes() == whole.heldout_file.read_bytes()
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(parts).items())
    first, second = (replace(folder.read_summary(), seconds=0) for folder in (parts, whole))
    assert first == second


def test_completions_that_cannot_be_judged_count_as_in_evaluate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as successes nor as attempts; a problem without a judged one is left out."""
    score, seen = PrefixScan.score, []

    def picky(self: PrefixScan, completion: str, answer: str) -> float | None:
        return None if answer[0] in "0123" or completion[:1] in "456" else score(self, completion, answer)

    def watched(*arguments: Any, **keywords: Any) -> np.ndarray:
        seen.append(measure(*arguments, **keywords))
        return seen[-1]

    measure: Callable[..., np.ndarray] = heldout.heldout_successes
    monkeypatch.setattr(PrefixScan, "score", picky)
    monkeypatch.setattr(heldout, "heldout_successes", watched)
    folder = train(tmp_path / "run", "--steps", "1", *STEP, "--evaluation.num_samples", "3")
    first, last = (summarize(successes_PK) for successes_PK in seen)
    assert 0 < first.num_unjudged < seen[0].size
    assert first.num_prompts < len(seen[0])
    records = [record for record in read_jsonl(folder.metrics_file) if "heldout/accuracy" in record]
    assert [record["heldout/accuracy"] for record in records] == [
        pytest.approx(e.avg.value) for e in (first, last)
    ]
    assert [record["heldout/unjudged"] for record in records] == [first.num_unjudged, last.num_unjudged]


def test_nothing_that_can_be_judged_is_no_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixScan, "score", lambda *_: None)
    folder = train(tmp_path / "run", "--steps", "1", *SMALL)
    summary = folder.read_summary()
    assert summary is not None
    assert summary.heldout == HeldoutSummary(1, 0, before=None, after=None, gain=None)
    assert [r["heldout/unjudged"] for r in read_jsonl(folder.metrics_file) if "heldout/unjudged" in r] == [
        512,
        512,
    ]


def test_a_measurement_is_shown_with_the_steps_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TrainingProgress()
    progress.begin(1, 0, 8)
    progress.measured(0.25)
    progress.update(1, {})
    progress.end()
    assert capsys.readouterr().err.splitlines() == ["step 1/1    held-out 0.25  rollouts 8  0 s left"]


# --- Nothing left behind ---


def test_a_model_without_weights_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(policy_path("hard"), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    arguments = ["--output-dir", str(tmp_path / "runs" / "a"), "--model", str(tmp_path / "model"), *SMALL]
    assert main(["train", *arguments]) == 2
    assert "the folder has no weights" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_making_a_run_writes_nothing(tmp_path: Path) -> None:
    from coba_rl.runs.config import load_config
    from coba_rl.runs.trl_run import TrlRun

    TrlRun(load_config(None, {}), RunFolder(tmp_path / "run"))
    RunFolder(tmp_path / "run").check_new()
    assert list(tmp_path.iterdir()) == []
