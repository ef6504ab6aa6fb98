"""Maths data and its verifier: layouts, faults of files, de-duplication, right and wrong answers, hostile answers."""

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coba_rl.errors import ConfigError, DatasetError
from coba_rl.tasks import math_verifier
from coba_rl.tasks.base import content_id
from coba_rl.tasks.math import BENCHMARKS, MathTask, load_benchmark
from coba_rl.tasks.math_data import BOXED_INSTRUCTION, Layout, problems_from_rows
from coba_rl.tasks.math_verifier import extract_answer, score_answer

DATA = Path(__file__).parent / "data" / "math"


def rows_of(name):
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def message_of(problem):
    """The one chat message of a prompt."""
    (message,) = problem.prompt
    assert isinstance(message, dict)
    return message


def write(path, rows):
    """The rows as a file of the type that the path names."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# --- training data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_dapo_layout_in_every_file_type(tmp_path, suffix):
    rows = rows_of("dapo.jsonl")
    task = MathTask(data=write(tmp_path / f"dapo{suffix}", rows))
    problems = task.train_problems()
    assert [problem.answer for problem in problems] == ["17", "43", "-5", "11"]
    assert [problem.prompt for problem in problems] == [row["prompt"] for row in rows[:4]]
    assert [problem.prompt_id for problem in problems] == [content_id(row["prompt"]) for row in rows[:4]]
    assert {problem.data_source for problem in problems} == {"math_dapo"}
    assert task.heldout_problems() == []


def test_repeated_rows_are_dropped_counted_and_reported(caplog):
    task = MathTask(data=str(DATA / "dapo.jsonl"))
    assert (task.loaded.num_rows, task.loaded.num_duplicates, len(task.train_problems())) == (11, 7, 4)
    assert "7 of 11 rows repeat a prompt and were dropped (4 unique prompts)" in caplog.text


@given(st.permutations(rows_of("dapo.jsonl")))
def test_reordering_the_file_changes_no_problem(rows):
    def as_set(loaded):
        return {(problem.prompt_id, problem.answer) for problem in loaded.problems}

    original = problems_from_rows(rows_of("dapo.jsonl"), Layout(), source="original")
    assert as_set(problems_from_rows(rows, Layout(), source="shuffled")) == as_set(original)


@given(st.permutations(["3", "4", "4", "2", "3"]))
def test_conflicting_answers_are_settled_the_same_way_in_any_order(answers):
    rows = [{"question": "2+2=", "answer": answer} for answer in answers]
    loaded = problems_from_rows(rows, Layout(), source="rows")
    assert [problem.answer for problem in loaded.problems] == ["3"]
    assert (loaded.num_conflicts, loaded.num_duplicates) == (1, 4)


def test_plain_layouts():
    problems = MathTask(data=str(DATA / "plain.json")).train_problems()
    assert [problem.answer for problem in problems] == ["5.5", "81", "1, -1"]
    assert problems[0].prompt == [{"role": "user", "content": f"What is half of 11?\n{BOXED_INSTRUCTION}"}]
    assert message_of(problems[2])["content"].endswith("in \\boxed{}."), (
        "the problem says already how to answer"
    )
    assert problems[0].data_source == "plain"


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"answer": 27.0}, "27"),
        ({"answer": "27.0"}, "27"),
        ({"answer": "0.50"}, "0.50"),
        ({"answer": "", "solution": "\\boxed{1} or rather \\boxed{\\frac{1}{2}}"}, "\\frac{1}{2}"),
        ({"solution": "34"}, "34"),
        ({"reward_model": {"ground_truth": "5", "style": "rule"}, "answer": "6"}, "5"),
        ({"final_answer": ["$x=1$", "$x=2$"]}, "$x=1$, $x=2$"),
    ],
)
def test_where_an_answer_is_found(row, answer):
    rows = [{"problem": "?", **row}]
    assert problems_from_rows(rows, Layout(), source="rows").problems[0].answer == answer


def test_rows_without_an_answer_are_left_out_and_counted(caplog, tmp_path):
    rows = [
        {"question": "1", "answer": "1"},
        {"question": "2", "answer": None},
        {"question": "3", "solution": "The proof is left to the reader."},
        {"question": "4", "answer": float("nan")},
    ]
    task = MathTask(data=write(tmp_path / "rows.jsonl", rows))
    assert (len(task.train_problems()), task.loaded.num_unanswered, task.loaded.num_duplicates) == (1, 3, 0)
    assert "3 of 4 rows have no answer" in caplog.text


def test_held_out_prompts_depend_on_their_content_only(tmp_path):
    rows = [{"question": f"{i}+{i}=", "answer": 2 * i} for i in range(200)]
    task = MathTask(data=write(tmp_path / "a.jsonl", rows), heldout_fraction=0.3)
    random.Random(0).shuffle(rows)
    other = MathTask(data=write(tmp_path / "b.json", rows[:150]), heldout_fraction=0.3)
    train, heldout = task.train_problems(), task.heldout_problems()
    assert 40 <= len(heldout) <= 80
    assert len({problem.prompt_id for problem in train + heldout}) == 200
    kept = {problem.prompt_id for problem in other.loaded.problems}
    assert {p.prompt_id for p in other.heldout_problems()} == {p.prompt_id for p in heldout} & kept


def test_a_data_set_on_the_hub(monkeypatch, caplog):
    import datasets

    asked = []

    def load_dataset(name, config, *, split):
        asked.append((name, config, split))
        return datasets.Dataset.from_list([{**row, "unread": "x"} for row in rows_of("dapo.jsonl")])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = MathTask()
    assert [problem.answer for problem in task.train_problems()] == ["17", "43", "-5", "11"]
    assert task.loaded.num_duplicates == 7
    assert asked == [("BytedTsinghua-SIA/DAPO-Math-17k", None, "train")], "read once"


# --- faults ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "none.jsonl": (None, "no file .*none.jsonl.*check the path"),
    "rows.xls": (b"a,b\n", "cannot tell how to read .*rows.xls.*convert or rename"),
    "rows.csv": (b"a,b\n", r"rows.csv.*one of the columns \['prompt', .*found \['a', 'b'\]; rename a column"),
    "empty.csv": (b"", "has no rows"),
    "surplus.csv": (b"question,answer\n1+1=,2\n,1/2=,0,5\n", "line 3 of .*surplus.csv.* has 4 cells, the header 2"),
    "cut.csv": (b'question,answer\n"1', "line 2 of .*cut.csv.* is no CSV"),
    "twice.csv": (b"question,answer,Answer\n1,2,3\n", "has 'answer' twice, as 'answer' and 'Answer'"),
    "twice.jsonl": (b'{"question": "1", "answer": "1", "answer": "2"}\n', "line 1 of .*the key 'answer' stands there twice"),
    "spelled.json": (b'[{"Question": "1", "question": "2", "answer": "1"}]', "has 'question' twice, as 'Question'"),
    "half.jsonl": (b'{"question": "\\ud83d?", "answer": "1"}\n', r"line 1 of .* holds half a character \('\\ud83d'"),
    "half.json": (b'[{"question": "1", "answer": "\\uDE00"}]', "row 1 of .* holds half a character"),
    "utf16.csv": ("question,answer\n1,1\n".encode("utf-16"), "cannot read .*utf16.csv.*save it as UTF-8"),
    "empty.jsonl": (b"", "has no rows"),
    "empty.json": (b"", "has no rows"),
    "list.json": (b"[]", "has no rows"),
    "empty.parquet": (b"", "no readable Parquet file"),
    "cut.parquet": (b"PAR1 and then nothing", "no readable Parquet file"),
    "cut.jsonl": (b'{"question": "1", "answer": "1"}\n{"question": ', "line 2 of .*cut.jsonl.* is no JSON"),
    "cut.json": (b'[{"question": ', "cut.json.* is no JSON"),
    "words.jsonl": (b'"word"\n', "line 1 of .*words.jsonl.* holds str"),
    "object.json": (b'{"question": "1"}', "holds dict: expected a list of objects"),
    "bytes.jsonl": (b"\xff\xfe\x00\x80\n", "cannot read .*bytes.jsonl"),
    "deep.jsonl": (b"[" * 100_000, "line 1 of .*deep.jsonl.* is no JSON"),
    "number.json": (b'[{"question": ' + b"9" * 5000 + b"}]", "number.json.* is no JSON"),
    "unanswered.jsonl": (b'{"question": "1"}\n', "has no answers in 1 rows: expected one of the columns"),
    "unasked.jsonl": (b'{"text": "1", "answer": "1"}\n', r"row 1 of .* has no prompt.*found the columns \['answer', 'text'\]"),
    "odd.jsonl": (b'{"prompt": [1, 2], "answer": "1"}\n', "row 1 of .* has no prompt: expected text or chat messages"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_a_file_is_one_readable_error(tmp_path, name):
    content, message = FAULTS[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message) as caught:
        MathTask(data=str(tmp_path / name)).train_problems()
    assert "\n" not in str(caught.value)


def test_a_parquet_file_without_prompts_is_refused_before_reading(tmp_path):
    data = write(tmp_path / "x.parquet", [{"text": "1", "answer": "1"}])
    with pytest.raises(
        DatasetError, match=r"has none of the columns .*found \['text', 'answer'\]; rename a column"
    ):
        MathTask(data=data).train_problems()


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "data.parquet").mkdir()
    with pytest.raises(DatasetError, match="no file"):
        MathTask(data=str(tmp_path / "data.parquet")).train_problems()


def test_an_unreachable_hub_is_one_readable_error(monkeypatch):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("cannot reach the hub\nand many more lines")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DatasetError, match=r"cannot load 'some/data' .*download the file") as caught:
        MathTask(data="some/data").train_problems()
    assert "\n" not in str(caught.value)


def test_options_out_of_range():
    with pytest.raises(ConfigError, match="heldout_fraction=1"):
        MathTask(heldout_fraction=1)
    data = str(DATA / "plain.json")
    with pytest.raises(DatasetError, match=r"leaves none of the 3 prompts .* lower it"):
        MathTask(data=data, heldout_fraction=1 - 1e-12).train_problems()


SPELLED = {
    "data.CSV": '"Question","Answer"\n"1+1=","2"\n"\U0001f600=","\u00fc"\n',
    "data.Jsonl": '{"Question": "1+1=", "Answer": "2"}\n\n\ufeff{"QUESTION": "\U0001f600=", "answer": "\u00fc"}\n',
    "data.JSON": '[{"Question": "1+1=", "ANSWER": "2"}, {"question ": "\\ud83d\\ude00=", "answer": "\u00fc"}]',
}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", SPELLED)
def test_marks_case_and_spelling_change_nothing(tmp_path, name, mark):
    (tmp_path / name).write_text(mark + SPELLED[name], encoding="utf-8")
    problems = MathTask(data=str(tmp_path / name)).train_problems()
    assert [(message_of(p)["content"].splitlines()[0], p.answer) for p in problems] == [
        ("1+1=", "2"),
        ("\U0001f600=", "\u00fc"),
    ]


def test_columns_of_parquet_and_of_the_hub_are_found_however_spelled(tmp_path, monkeypatch):
    import datasets

    rows = [{"Problem": "1+1=", "Final Answer": "2", "unread": "x"}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(rows))
    for data in (write(tmp_path / "data.parquet", rows), "some/data"):
        assert [problem.answer for problem in MathTask(data=data).train_problems()] == ["2"]


# --- benchmarks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "answers", "right"),
    [
        ("aime24", ["204", "024"], ["204", "24"]),
        ("aime25", ["7", "32"], ["7", "2^5"]),
        ("amc23", ["108", "3"], ["108", "3.0"]),
        ("math500", ["\\frac{3}{4}", "\\left( 3, \\frac{\\pi}{2} \\right)"], ["0.75", "(3, \\pi/2)"]),
        ("olympiadbench", ["$-1,2$", "$\\frac{3}{2}$"], ["2, -1", "1.5"]),
    ],
)
def test_benchmarks(name, answers, right):
    problems = load_benchmark(name, DATA / f"{name}.jsonl")
    assert [problem.answer for problem in problems] == answers
    for problem, answer in zip(problems, right, strict=True):
        assert problem.data_source == name
        message = message_of(problem)
        assert message["role"] == "user"
        assert message["content"].endswith(BOXED_INSTRUCTION)
        assert score_answer(f"So it is \\boxed{{{answer}}}.", problem.answer) == 1.0
        assert score_answer("So it is \\boxed{-77}.", problem.answer) == 0.0


def test_the_context_of_a_problem_comes_first():
    problem = load_benchmark("olympiadbench", DATA / "olympiadbench.jsonl")[1]
    assert message_of(problem)["content"].startswith("Let $T=12$.\nCompute")


def test_a_benchmark_as_parquet(tmp_path):
    path = write(tmp_path / "test.parquet", rows_of("olympiadbench.jsonl") * 3)
    assert load_benchmark("Olympiad-Bench", path) == load_benchmark(
        "olympiadbench", DATA / "olympiadbench.jsonl"
    )


def test_benchmarks_on_the_hub(monkeypatch):
    import datasets

    asked = {}

    def load_dataset(name, config, *, split):
        asked[name] = (config, split)
        key = next(key for key, benchmark in BENCHMARKS.items() if benchmark.hub_id == name)
        return datasets.Dataset.from_list(rows_of(f"{key}.jsonl"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert all(len(load_benchmark(name)) == 2 for name in BENCHMARKS)
    assert asked == {
        "HuggingFaceH4/aime_2024": (None, "train"),
        "math-ai/aime25": (None, "test"),
        "math-ai/amc23": (None, "test"),
        "HuggingFaceH4/MATH-500": (None, "test"),
        "Hothan/OlympiadBench": ("OE_TO_maths_en_COMP", "train"),
    }


def test_an_unknown_benchmark_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown benchmark 'MATH-50'\. Did you mean 'math500'\?"):
        load_benchmark("MATH-50")


def test_a_benchmark_of_another_layout_names_the_column_it_needs(tmp_path):
    path = write(tmp_path / "x.jsonl", rows_of("aime24.jsonl"))
    with pytest.raises(DatasetError, match=r"one of the columns \['question'\]"):
        load_benchmark("amc23", path)


# --- verifier --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Answer: 34", "34"),
        ("Answer: $x+1$.", "$x+1$."),
        ("**Answer:** 34", "34"),
        ("**Final Answer**: **34**", "34**"),
        ("Answer:\n\n34\nand more", "34"),
        ("Answer\uff1a34", "34"),
        ("Answer: 1\nanswer: 2", "2"),
        ("\\boxed{1} and \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {3}", "3"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("Answer: $\\boxed{34}$", "34"),
        ("\\boxed{1}\nAnswer: 2", "1"),
        ("Answer: 1\nNo: \\boxed{2}", "2"),
        ("\\boxed{34} Let me check: \\boxed{3", "34"),
        ("\\boxed{34}\nAnswer:", "34"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("34", None),
        ("", None),
        ("Answer:", None),
        ("\\boxed{34", None),
    ],
)
def test_which_answer_a_completion_gives(completion, answer):
    assert extract_answer(completion) == answer


RIGHT = [
    ("34", ["34.0", "034", "+34", "$34$", "\\frac{68}{2}", "x=34", "34^\\circ", "\\text{34}", "34\\text{ cm}"]),
    ("-5", ["\N{MINUS SIGN}5", "-5.0", "\\(-5\\)"]),
    ("1,034", ["1034", "1{,}034"]),
    ("\\frac{1}{2}", ["0.5", "1/2", "\\dfrac12", "2^{-1}"]),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", ["(3, \\pi/2)"]),
    ("1,-2", ["-2, 1", "\\{1,-2\\}", "$1$ and $-2$"]),
    ("[-2,7]", ["x \\in [-2, 7]"]),
    ("(-\\infty,2)\\cup(3,\\infty)", ["(3,\\infty)\\cup(-\\infty,2)"]),
    ("\\text{Evelyn}", ["Evelyn"]),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", ["\\begin{bmatrix}1&2\\\\3&\\frac{8}{2}\\end{bmatrix}"]),
    ("3\\sqrt{13}", ["\\sqrt{117}"]),
    ("6r^2-4r-24", ["2(3r^2-2r-12)"]),
    ("2^{2014}", ["4^{1007}"]),
    ("2009!", ["2009\\cdot 2008!"]),
    ("\\emptyset", ["\\varnothing"]),
    ("10\\%", ["0.1", "10%"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "given"), [(answer, form) for answer, forms in RIGHT for form in [answer, *forms]]
)
def test_right_answers(answer, given):
    assert score_answer(f"So \\boxed{{{given}}}", answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        ("34", "35"), ("34", "-34"), ("34", "34,35"), ("34", "x"), ("34", ""), ("34", "3 4 5"),
        ("\\frac{1}{2}", "\\frac{1}{3}"), ("\\frac{1}{2}", "0.501"), ("(1,2)", "(2,1)"), ("[-2,7]", "(-2,7)"),
        ("1,-2", "1"), ("2^{2014}", "2^{2013}"), ("p-q", "q-p"), ("\\text{Evelyn}", "Bob"), ("x>3", "x<3"),
        ("\\sqrt{2}", "\\sqrt{2}+\\frac{1}{1000}"),
    ],
)  # fmt: skip
def test_wrong_answers(answer, given):
    assert score_answer(f"So \\boxed{{{given}}}", answer) == 0.0


@given(a=st.integers(-(10**30), 10**30), b=st.integers(-(10**30), 10**30))
@example(a=0, b=-0)
def test_whole_numbers_are_compared_exactly(a, b):
    assert score_answer(f"Answer: {a}", str(b)) == float(a == b)
    assert score_answer(f"\\boxed{{{a:,}}}", str(a)) == 1.0


@settings(max_examples=40)
@given(p=st.integers(-99, 99), q=st.integers(1, 99), r=st.integers(-99, 99), s=st.integers(1, 99))
def test_fractions_are_compared_exactly(p, q, r, s):
    assert score_answer(f"\\boxed{{\\frac{{{p}}}{{{q}}}}}", f"{r}/{s}") == float(p * s == r * q)


@pytest.mark.parametrize(
    "answer", ["", "  ", "$", "\\frac{1}{", "1" * 65, "x" * 300, "9^{9^{9}}, 1", "\\sum_{n} n"]
)
def test_a_ground_truth_beyond_parsing_judges_nothing(answer):
    assert score_answer("Answer: 34", answer) is None
    assert score_answer(f"Answer: {answer}", answer) is None


def test_the_task_judges_with_the_verifier():
    task = MathTask()
    assert [task.score(text, "34") for text in ("Answer: 34", "Answer: 3", "?")] == [1.0, 0.0, 0.0]
    assert task.score("Answer: 34", "") is None


def test_off_the_main_thread():
    scores = []
    thread = threading.Thread(target=lambda: scores.append(score_answer("\\boxed{\\sqrt{8}}", "2\\sqrt{2}")))
    thread.start()
    thread.join()
    assert scores == [1.0]


# --- hostile completions ---------------------------------------------------------------------------------------------

LATEX = st.lists(
    st.sampled_from([
        "\\boxed{", "}", "{", "Answer: ", "answer:", "\\frac", "^", "_", "(", ")", "[", "]", "$", "\\", "!", ",", "=",
        "9", "x", "\\sqrt", "\\sin", "\\cup", "|", "\\{", "\\}", " ", "\n", "1e9", "%", "\\text{", "\\pm", "&", "\\\\",
    ]),
    max_size=12,
).map("".join)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=40), LATEX, LATEX.map(lambda text: f"\\boxed{{{text}}}")))
@example("Answer: \x00")
@example("\\boxed{\ud800}")
def test_no_completion_raises(completion):
    assert score_answer(completion, "\\sqrt{2}") in (0.0, 1.0)


HOSTILE = [
    "9^{9^{9^9}}", "(9^{9^{9^9}}, 3)", "9^9^9^9", "((9!)!)!", "(9!!!!, 3)", "100000000!", "2^{99999999}",
    "\\binom{999999999}{99999999}", "\\binom{9^9}{\\pi}", "(\\log(9999999!),3)", "(x+1)^{1000}", "(\\cosh x)^{999}",
    "(x+y+z)^{100}", "\\sum_{n=1}^{10^9} n^n", "\\int_0^1 e^{-x^2} dx", "\\sin(\\sin(99999^{\\cosh(10)}))",
    "\\operatorname{eye}(99999)", "\\gcd(2^{100000},3^{100000})", "9^{\\frac{1}{0.000000001}}",
    "\\begin{pmatrix}2&1\\\\1&1\\end{pmatrix}^{99999999}", "\\{9^{9^{9}} < x < 9^{9^{9^9}}\\}",
    "(" * 8 + "x" + ")" * 8, "{" * 100 + "}" * 100, "|x" * 100, "\\frac1{" * 8 + "x" + "}" * 8, "-" * 250 + "1",
    "\\sqrt{1+" * 7 + "1" + "}" * 7, "x" * 250, "1" * 100_000, "(" * 100_000,
]  # fmt: skip


def test_hostile_answers_take_bounded_work():
    # In another process, because what is bounded here would otherwise hang the whole suite. The limit is for the sum.
    code = (
        "import sys, json; from coba_rl.tasks.math_verifier import score_answer\n"
        "scores = [score_answer('Answer: $' + a + '$', g) for a in json.load(sys.stdin) for g in ('34', 'x')]\n"
        "print(set(scores))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=json.dumps(HOSTILE), capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "{0.0}"
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "filler", ["\\boxed{", "answer: ", "answer ", "{", "$", "\\", "a", " ", "\\boxed{1} "]
)
def test_work_grows_linearly_with_the_length_of_a_completion(filler):
    def seconds(length):
        text = filler * (length // len(filler))
        times = []
        for _ in range(3):
            start = time.process_time()
            score_answer(text, "34")
            times.append(time.process_time() - start)
        return min(times)

    seconds(1_000)
    assert seconds(800_000) < 40 * seconds(100_000) + 0.05, "eight times the length"


def test_parsing_stops_after_a_number_of_calls(monkeypatch):
    seen = []

    def endless():
        while True:
            seen.append(len(seen))

    monkeypatch.setattr(math_verifier, "MAX_CALLS", 1000)
    assert math_verifier._within_calls(endless) is None
    assert 450 <= len(seen) <= 500, "two calls a turn"
    assert sys.getprofile() is None
    assert math_verifier._within_calls(lambda: 5) == 5
    assert math_verifier._within_calls(lambda: 1 / 0) is None


def test_a_profiler_is_left_alone(monkeypatch):
    monkeypatch.setattr(math_verifier, "MAX_CALLS", 10)

    def profiler(*_):
        return None

    sys.setprofile(profiler)
    try:
        assert math_verifier._within_calls(lambda: sum(len("x") for _ in range(100))) == 100
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = (
        "import sys; from coba_rl.tasks.math import MathTask; MathTask(); from coba_rl import evaluate\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'sympy', 'math_verify'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
