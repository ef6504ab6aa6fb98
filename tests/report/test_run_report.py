"""The report of a run: what is on the page, and that it says what the records say."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from coba_rl.allocation import BudgetAllocator
from coba_rl.errors import ConfigError, StateError
from coba_rl.files import append_jsonl, read_jsonl
from coba_rl.hosts.session import BudgetSession
from coba_rl.records import (
    ALLOCATIONS_FILE,
    METRICS_FILE,
    AllocationRecord,
    Estimate,
    EvaluationRecord,
    HeldoutSummary,
    append_records,
    read_records,
    read_summary,
    write_summary,
)
from coba_rl.report import figures, write_run_report
from coba_rl.report.records import read_run
from coba_rl.report.run_sections import learning_section, preference_section
from coba_rl.report.verdict import heldout_verdict
from coba_rl.testing import FakeTrainer

SECTIONS = [
    "verdict",
    "learning",
    "budgets",
    "preference",
    "dead-groups",
    "transitions",
    "numbers",
    "configuration",
]
ALWAYS = [
    "figure-learning",
    "figure-cost",
    "figure-budget-shares",
    "figure-mean-budget",
    "figure-dead-groups",
]
WITH_ALPHA = ["figure-capability", "figure-value"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and collects ids, attributes, table rows and text."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def fact(self, label: str) -> str:
        return next(row[1] for row in self.rows if row[0] == label)


def parse(file: Path) -> tuple[str, Page]:
    source = file.read_text(encoding="utf-8")
    return source, Page(source)


def report(folder: Path, tmp_path: Path) -> tuple[str, Page]:
    return parse(write_run_report(folder, tmp_path / "page.html"))


def drawings(source: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL)]


@pytest.mark.parametrize("strategy", ["coba", "coba-paper"])
def test_every_section_and_figure_is_there(pages, strategy: str) -> None:
    source, page = parse(pages[strategy])
    assert [id_ for id_ in page.ids if id_ in SECTIONS] == SECTIONS
    assert {root.attrib["id"] for root in drawings(source)} == {*ALWAYS, *WITH_ALPHA}


def test_a_strategy_without_alpha_or_value_says_what_is_left_out(pages) -> None:
    source, page = parse(pages["uniform"])
    assert {root.attrib["id"] for root in drawings(source)} == set(ALWAYS)
    assert "The strategy uniform logged no α and no value" in page.text


def test_any_strategy_that_has_a_value_has_its_figure(pages) -> None:
    source, _ = parse(pages["knapsack"])
    assert {root.attrib["id"] for root in drawings(source)} == {*ALWAYS, "figure-value"}


def test_the_page_stands_alone(pages) -> None:
    source, page = parse(pages["coba"])
    assert len(source.encode()) < 1_500_000
    assert len(page.ids) == len(set(page.ids))
    tags = {tag for tag, _, _ in page.attributes}
    assert not tags & {"script", "link", "img", "iframe", "object", "image"}
    targets = [value for _, key, value in page.attributes if key in ("href", "src", "xlink:href")]
    targets += re.findall(r"url\(([^)]*)\)", source)
    assert targets
    assert all(target.startswith("#") and target[1:] in page.ids for target in targets)
    assert "@import" not in source


def test_a_long_run_still_makes_a_small_page(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    rng = np.random.default_rng(1)
    metrics, allocations = [], []
    for step in range(1, 2001):
        shape = {"coba/alpha": 3.0, "coba/beta": 8.0, "coba/tau": 1.0, "coba/budget_mean": 8.0}
        budgets = {"coba/budget_min": 2.0, "coba/budget_max": 9.0, "coba/failure_rate": rng.random()}
        outcomes = {f"coba/dead_groups_all_{end}": rng.random() / 2 for end in ("wrong", "right")}
        metrics.append(
            {"step": step, **shape, **budgets, **outcomes, "coba/success_per_prompt": rng.random()}
        )
        for prompt in range(700 if step in (1, 1000, 2000) else 2):
            allocations.append(AllocationRecord(step, f"{prompt}", rng.random(), rng.random(), 8, 4.0, 8))
    append_jsonl(folder / "metrics.jsonl", metrics)
    append_records(folder / "allocations.jsonl", allocations)
    source, page = report(folder, tmp_path)
    assert len(drawings(source)) == 7
    assert len(source.encode()) < 1_000_000
    assert "Show 50 of 2,000 steps" in page.text


def test_nothing_heavy_is_imported_before_a_page_is_drawn() -> None:
    code = "import sys, coba_rl.report; print({'matplotlib', 'jinja2', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"


def test_figures_can_be_read_without_seeing_them(pages) -> None:
    source, _ = parse(pages["coba"])
    for root in drawings(source):
        assert root.attrib["role"] == "img"
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert root.attrib["aria-label"] == title.text
        assert len(title.text or "") > 15
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", source, flags=re.DOTALL)
    assert len(captions) == len(drawings(source))
    assert min(map(len, captions)) > 80


def test_the_same_records_give_the_same_bytes(pages, runs, tmp_path: Path) -> None:
    again = write_run_report(runs["coba"], tmp_path / "again.html")
    assert again.read_bytes() == pages["coba"].read_bytes()


def test_the_tables_hold_the_numbers_of_the_records(pages, runs) -> None:
    _, page = parse(pages["coba-paper"])
    allocations = list(read_jsonl(runs["coba-paper"] / "allocations.jsonl"))
    metrics = [m for m in read_jsonl(runs["coba-paper"] / "metrics.jsonl") if "coba/alpha" in m]
    budgets = [a["budget"] for a in allocations]
    assert page.fact("rollouts") == f"{sum(budgets):,}"
    tokens = sum(a["budget"] * (4.0 + 0.5 * a["step"]) for a in allocations)
    assert page.fact("generated tokens") == f"{tokens:,.0f}"
    assert page.fact("rollouts of a prompt") == f"{min(budgets)} to {max(budgets)}"
    gain = json.loads((runs["coba-paper"] / "summary.json").read_text(encoding="utf-8"))["heldout"]["gain"]
    shown = f"{gain['value']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}]"
    assert page.fact("gain (95 % interval)") == shown

    middle = [a for a in allocations if a["pass_rate"] is not None and 0.2 <= a["pass_rate"] < 0.5]
    spent = sum(a["budget"] for a in middle)
    success = sum(a["successes"] for a in middle) / sum(a["attempts"] for a in middle)
    assert next(row for row in page.rows if row[0] == "0.2–0.5") == [
        "0.2–0.5",
        f"{len(middle) / len(allocations):.1%}",
        f"{spent / sum(budgets):.1%}",
        f"{spent / len(middle):.1f}",
        f"{success:.3f}",
    ]
    head = next(i for i, row in enumerate(page.rows) if row[0] == "step")
    assert page.rows[head][:5] == ["step", "success per prompt", "F̄", "F̃", "α"]
    for row, record in zip(page.rows[head + 1 : head + 1 + len(metrics)], metrics, strict=True):
        assert int(row[0]) == record["step"]
        keys = ("coba/success_per_prompt", "coba/failure_rate", "coba/transformed_failure_rate", "coba/alpha")
        np.testing.assert_allclose(
            [float(cell) for cell in row[1:5]], [record[key] for key in keys], atol=5e-4
        )


def test_the_transitions_count_every_prompt_once(pages) -> None:
    _, page = parse(pages["coba"])
    head = next(i for i, row in enumerate(page.rows) if row[0] == "first visit")
    counts = np.array([[int(cell) for cell in row[1:]] for row in page.rows[head + 1 : head + 6]])
    assert counts.shape == (5, 5)
    assert counts.sum() == 24
    assert "noisy" in page.text


def test_what_the_user_wrote_is_not_markup(pages) -> None:
    source, page = parse(pages["coba"])
    assert "<script>" not in source
    assert '<script>alert("not markup")</script>' in page.text


@pytest.mark.parametrize(("logged", "unit"), [(True, "tokens"), (False, "rollouts")])
def test_cost_is_in_tokens_where_their_number_is_known(
    make_run, tmp_path: Path, logged: bool, unit: str
) -> None:
    folder = make_run()
    metrics = folder / "metrics.jsonl"
    if not logged:
        text = metrics.read_text(encoding="utf-8").replace("completions/mean_length", "other")
        metrics.write_text(text, encoding="utf-8")
    source, page = report(folder, tmp_path)
    assert f"{unit} so far" in source
    assert f"against all {unit} generated so far" in page.text


def test_an_unfinished_run_is_reported_as_far_as_it_got(make_run, tmp_path: Path) -> None:
    folder = make_run(finished=False)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 7, "coba/al')  # cut off by a crash
    source, page = report(folder, tmp_path)
    assert "not finished: the records end at step 6 of 6" in page.text
    assert "cannot say whether the policy improved" in page.text
    assert "held-out, 95 %" in source
    assert {*ALWAYS, *WITH_ALPHA} == {root.attrib["id"] for root in drawings(source)}


def test_a_run_that_was_only_measured_before_training_is_reported(tmp_path: Path) -> None:
    append_records(tmp_path / "heldout.jsonl", [EvaluationRecord(0, "transformers", {"a": 0.3})])
    _, page = report(tmp_path, tmp_path)
    assert "No step has logged its success" in page.text


def test_held_out_accuracy_is_drawn_where_it_was_measured(runs, monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(figures, "curve_figure", lambda *arguments: drawn.append(arguments[2]) or "")
    learning_section(read_run(runs["coba"]))
    values = [0.3, 0.4, 0.5, 0.6]
    tokens = [sum(64 * (4.0 + 0.5 * step) for step in range(1, last + 1)) for last in (0, 6, 12, 18)]
    for curve, places in zip(drawn, ([0, 6, 12, 18], tokens), strict=True):
        assert [x for x, _ in curve.heldout] == places
        np.testing.assert_allclose([estimate.value for _, estimate in curve.heldout], values)
        # The mean of 40 values 0.1 from their mean has a standard error of 0.1 / √40, and the interval is ± 1.96 of it.
        widths = [estimate.high - estimate.low for _, estimate in curve.heldout]
        np.testing.assert_allclose(widths, 2 * 1.96 * 0.1 / 40**0.5, rtol=0.1)
        assert len(curve.x) == 18  # steps of training only


def test_values_are_drawn_as_they_were_recorded(runs, monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(figures, "value_figure", lambda _, stages: drawn.extend(stages) or "")
    preference_section(read_run(runs["coba"]))
    records = read_records(runs["coba"] / "allocations.jsonl", AllocationRecord)
    uneven = [
        step
        for step in range(1, 19)
        if len({r.budget for r in records if r.step == step and r.value is not None}) > 1
    ]
    assert [stage.step for stage in drawn] == [uneven[0], (uneven[0] + 18) // 2, 18]
    for stage in drawn:
        here = [r for r in records if r.step == stage.step and r.value is not None]
        assert stage.values.tolist() == [r.value for r in here]
        assert stage.pass_rates.tolist() == [r.pass_rate for r in here]
        assert stage.budgets.tolist() == [r.budget for r in here]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_job_of_verl_that_knows_nothing_of_run_folders_is_reported(
    make_run, tmp_path: Path, steps: int
) -> None:
    """Its `default_local_dir` holds records and checkpoints, and verl has names of its own."""
    folder = make_run(steps=steps, finished=False)
    for name in ("config.toml", "heldout.jsonl"):
        (folder / name).unlink()
    (folder / "global_step_1").mkdir()
    metrics = folder / "metrics.jsonl"
    text = metrics.read_text(encoding="utf-8").replace("completions/mean_length", "response_length/mean")
    metrics.write_text(text, encoding="utf-8")
    source, page = report(folder, tmp_path)
    assert "<h1>Training run</h1>" in source
    assert page.fact("generated tokens") == f"{sum(64 * (4.0 + 0.5 * s) for s in range(1, steps + 1)):,.0f}"
    assert "tokens so far" in source
    assert f"the records end at step {steps}." in page.text


def test_a_weighted_loss_is_said(make_run, tmp_path: Path) -> None:
    trainer = FakeTrainer(BudgetSession(BudgetAllocator("coba", mode="weights")))
    weights: list[float] = []
    for step in range(1, 13):
        records, metrics = trainer.step()
        weights += [metrics["coba/weight_min"], metrics["coba/weight_max"]]
        append_records(tmp_path / ALLOCATIONS_FILE, records)
        append_jsonl(tmp_path / METRICS_FILE, [{"step": step, **metrics}])
    _, page = report(tmp_path, tmp_path)
    assert min(weights) < 0.8 < 1.2 < max(weights)
    said = "The loss was weighted: advantages were multiplied by"
    assert f"{said} {min(weights):.2f} to {max(weights):.2f}" in page.text
    assert said not in report(make_run(), tmp_path)[1].text


def test_a_single_step_is_enough(make_run, tmp_path: Path) -> None:
    source, page = report(make_run(steps=1, finished=False), tmp_path)
    assert len(drawings(source)) == 7
    assert "No prompt was tried at two visits" in page.text


def test_a_run_in_which_no_pass_rate_was_ever_known_is_reported(make_run) -> None:
    assert "<svg" in write_run_report(make_run("coba-paper", steps=2)).read_text(encoding="utf-8")


def test_metrics_alone_and_allocations_alone_are_reported(make_run, tmp_path: Path) -> None:
    folder = make_run()
    allocations = (folder / "allocations.jsonl").read_bytes()
    (folder / "allocations.jsonl").unlink()
    (folder / "config.toml").unlink()
    source, page = report(folder, tmp_path)
    assert {root.attrib["id"] for root in drawings(source)} == {
        "figure-learning",
        "figure-capability",
        "figure-dead-groups",
    }
    assert "configuration" not in page.ids
    (folder / "metrics.jsonl").unlink()
    (folder / "allocations.jsonl").write_bytes(allocations)
    source, page = report(folder, tmp_path)
    assert {root.attrib["id"] for root in drawings(source)} == {
        "figure-budget-shares",
        "figure-mean-budget",
        "figure-value",
    }
    assert "No step has logged its success" in page.text


def test_repeated_records_of_a_step_are_merged(make_run) -> None:
    folder = make_run(steps=2)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "loss": 0.5, "coba/alpha": 3.0}\n')
    run = read_run(folder)
    assert run.step_S.tolist() == [1, 2]
    assert run.metric("coba/alpha")[1] == 3.0
    assert np.isfinite(run.metric("coba/failure_rate")).all()


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_without_records_is_an_error(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "empty"
    if make:
        folder.mkdir()
        (folder / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"empty'? holds no run records.*coba-rl train"):
        write_run_report(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", "{broken\n", "metrics.jsonl' is damaged"),
        ("metrics.jsonl", '{"loss": 1}\n', "metrics.jsonl' is damaged in line 1"),
        ("metrics.jsonl", '{"step": 1, "coba/alpha": "x"}\n', "metrics.jsonl' is damaged: coba/alpha"),
        ("allocations.jsonl", '{"step": 1}\n', "allocations.jsonl' is damaged in line 1"),
        ("heldout.jsonl", '{"step": 1}\n', "heldout.jsonl' is damaged in line 1"),
        ("config.toml", "[task", "config.toml' is damaged"),
        ("summary.json", "{", "summary.json' is damaged"),
    ],
)
def test_damaged_files_are_named(make_run, file: str, content: str, message: str) -> None:
    folder = make_run()
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(StateError, match=re.escape(message)):
        write_run_report(folder)


def test_the_default_output_is_in_the_folder_and_errors_name_the_page(make_run, tmp_path: Path) -> None:
    folder = make_run(steps=2)
    assert write_run_report(folder) == folder / "report.html"
    with pytest.raises(ConfigError, match="cannot be written"):
        write_run_report(folder, tmp_path / "missing" / "page.html")


@pytest.mark.parametrize(
    ("gain", "problems", "wanted", "unwanted"),
    [
        (Estimate(0.2, 0.1, 0.3), 100, "rose from 0.300 to 0.500", "fell"),
        (Estimate(-0.2, -0.3, -0.1), 100, "fell from", "rose"),
        (Estimate(0.2, 0.0, 0.4), 100, "includes zero", "rose"),
        (Estimate(0.2, -0.1, 0.4), 100, "does not show a change", "rose"),
        (Estimate(0.2, math.nan, math.nan), 1, "chance cannot be ruled out", "rose"),
        (Estimate(0.2, 0.1, 0.3), 19, "too narrow to rely on", "fell"),
        (None, 0, "cannot say", "rose"),
    ],
)
def test_the_verdict_claims_what_the_interval_allows(gain, problems: int, wanted: str, unwanted: str) -> None:
    before, after = Estimate(0.3, 0.2, 0.4), Estimate(0.5, 0.4, 0.6)
    text = heldout_verdict(HeldoutSummary(16, problems, before, after, gain))
    assert wanted in text
    assert unwanted not in text


def test_one_run_is_said_to_be_one_run(pages, make_run, tmp_path: Path) -> None:
    _, page = parse(pages["coba"])
    assert "another seed may end elsewhere" in page.text
    folder = make_run(steps=2)
    summary = read_summary(folder / "summary.json")
    assert summary is not None
    unmeasured = HeldoutSummary(16, 0, before=None, after=None, gain=None)
    write_summary(folder / "summary.json", replace(summary, heldout=unmeasured))
    _, page = report(folder, tmp_path)
    assert "rose" not in page.text.partition("The run")[0]
