"""Which answers are paid: right ones in every spelling, wrong ones in none; where they stand; what gold columns hold."""

import json
import logging
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coba_rl.errors import DatasetError
from coba_rl.runs.config import load_config
from coba_rl.runs.tasks import without_overlong
from coba_rl.tasks.base import Problem
from coba_rl.tasks.math import MathTask
from coba_rl.tasks.math_data import Layout, problems_from_rows
from coba_rl.tasks.math_extract import extract_answer
from coba_rl.tasks.math_gold import read_gold
from coba_rl.tasks.math_text import tidy
from coba_rl.tasks.math_verifier import can_judge, score_answer

# Ground truth, answers that are paid, answers that are not.
ORACLE = {
    "spacing": [
        ("35", [r"35\,\text{cm}", r"35\;\text{cm}", r"35~\text{cm}", r"35\ \text{cm}", r"\,35", "35\\ "], [r"53\,\text{cm}", r"3\,5"]),
        ("(1,2)", [r"(1,\,2)", r"\left(1,\;2\right)"], [r"(2,\,1)", r"(1\,2)"]),
        (r"(1,\,2)", ["(1,2)"], ["(1,3)"]),
        (r"2\,\pi", [r"2\pi", "2π", r"2\,\pi"], [r"3\,\pi", "2", r"\pi"]),
        (r"[0,\, 1)", ["[0,1)"], ["[0,1]"]),
        ("1000", [r"1\,000", r"1\;000", "1,000.00"], [r"1\,00", "1"]),
        (r"1\,000\,000", ["1000000", "1,000,000"], ["1,000"]),
        (r"\begin{pmatrix}1\\ 2\end{pmatrix}", [r"\begin{pmatrix}1\\2\end{pmatrix}"], [r"\begin{pmatrix}2\\ 1\end{pmatrix}"]),
    ],
    "lists": [
        ("2,-2", [r"x=\pm 2", r"\pm 2", "x=2 or x=-2", r"x = 2 \text{ or } x = -2", "±2"], ["2", "-2", r"\pm 3"]),
        (r"\pm 2", ["2,-2", r"x = \pm 2", r"\pm2", r"\mp 2"], ["2", "-2", r"\pm 3"]),
        ("2", ["x=2"], [r"\pm 2", "2,-2", "2 or 3"]),
        (r"\frac{1\pm\sqrt5}{2}", [r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}"], [r"\frac{1+\sqrt5}{2}"]),
        (r"(\pm 2, 3)", ["(2,3),(-2,3)"], ["(2,3)"]),
        (r"\{\pm 1, \pm 2\}", ["1,-1,2,-2"], ["1,2"]),
        ("1,2,3", ["1, 2, and 3", "3, 2 and 1", r"1, 2, \text{ and } 3", r"1,2\text{, and }3", "$1$, $2$, and $3$"],
         ["1, 2, and 4", "1, 2", "3"]),
        (r"19, 46, \text{ and } 82", ["82, 46, and 19"], ["21, 36, and 82"]),
        ("1331 and 1728", ["1728, 1331"], ["1728"]),
        (r"\text{Alice}, \text{Bob}", ["Bob and Alice"], ["Bob", "Alice, Obb"]),
        ("(100,200)", ["(100, 200)"], ["100200", r"\{100,200\}"]),
    ],
    "sets and pairs": [
        (r"\{1,2\}", [r"\{2,1\}", "2, 1"], ["(1,2)", "(2,1)", "[1,2]"]),
        ("(1,2)", ["1,2", r"\left(1, 2\right)"], [r"\{1,2\}", r"\{2,1\}", "2,1", "[1,2]", r"D = \{1,2\}"]),
        ("1,2", ["2,1", r"\{1,2\}"], ["(2,1)"]),
        ("(1,2,3)", ["1,2,3"], [r"\{1,2,3\}", "(1,3,2)"]),
        ("(1,5)", ["1<x<5", "5>x>1", r"x \in (1,5)"], ["1<x<6", r"1\le x<5"]),
        (r"x\in(3,\infty)", ["x>3", r"(3,\infty)"], ["2x>6", r"x\ge 3"]),
        ("(-3,3)", ["-3<x<3"], ["x^2<9"]),
    ],
    "typography": [
        ("5", [r"\approx 5", r"x \approx 5", "= 5", "≈5", r"\boldsymbol{5}", "€5"], [r"\approx 6"]),
        ("18", ["$18", r"\$18", r"\$18.00", "18 dollars", r"\text{\$}18"], ["$81"]),
        (r"\$1{,}250", ["1250", "$1,250"], ["12.50"]),
        ("-5", ["–5", "−5"], ["5"]),
        ("60", ["60°", r"60\text{ degrees}"], ["6°"]),
        (r"1-\frac{1}{\mathrm{e}}", [r"1-\frac1e"], [r"1+\frac{1}{\mathrm{e}}"]),
        ("14-i", ["14.0 - 1.0i"], ["14+i"]),
        (r"0.\overline{3}", [r"\frac13"], ["0.3"]),
        (r"\frac{3}{11}", [r"0.\overline{27}"], [r"0.\overline{28}"]),
    ],
    "floats": [
        ("0.00001", ["1e-5", "1e-05", "10^{-5}", r"1\times 10^{-5}"], ["e-5", "0", "0.00002"]),
        ("1e-05", ["0.00001", "10^{-5}"], ["e-5", "e-05", "0", "2e-5"]),
        ("e-5", ["-5+e"], ["1e-5", "0.00001"]),
        ("1.5e10", ["15000000000", r"1.5\times 10^{10}"], ["1.5", "1.5e11"]),
    ],
    "relative differences": [
        (r"\frac{1}{2^{98}}", ["2^{-98}", r"\frac{1}{4^{49}}"], [r"\frac{1}{2^{99}}", "0"]),
        (r"\frac{1}{2004!}", [r"\frac{1}{2004!}"], [r"\frac{1}{2006!}"]),
        (r"\frac16+2^{-2006}", [r"2^{-2006}+\frac16"], [r"\frac16"]),
        (r"\sqrt{2}+2^{-200}", [r"2^{-200}+\sqrt2"], [r"\sqrt{2}"]),
        ("e^{-100}", [r"\frac{1}{e^{100}}"], ["e^{-101}", "0"]),
        ("0.0000001", ["10^{-7}"], ["0.0000002", "0"]),
        (r"\frac{x}{2^{98}}", [r"2^{-98}x"], [r"\frac{x}{2^{99}}"]),
        (r"(0,\frac{1}{2^{98}})", ["(0,2^{-98})"], [r"(0,\frac{1}{2^{99}})"]),
        (r"\{2^{-98},1\}", ["1, 2^{-98}"], [r"\{2^{-99},1\}"]),
        (r"\begin{pmatrix}2^{-98}\\1\end{pmatrix}", [], [r"\begin{pmatrix}2^{-99}\\1\end{pmatrix}"]),
        ("x=2^{-98}", ["2^{-98}"], ["x=2^{-99}"]),
        ("x>2^{-98}", ["2^{-98}<x"], ["x>2^{-99}"]),
        ("0.001", [r"\frac{1}{1000}"], ["0.0010001"]),
        (r"\frac13", ["0.333333", "0.3333333"], ["0.333", "0.33"]),
    ],
    "bases": [
        ("52_8", ["52_{8}", "52 base 8", r"52\text{ (base 8)}", "(52)_8"], ["52_9", "52", "42", "53_8"]),
        ("1010_2", ["1010_{2}"], ["1010_3", "1010"]),
        ("52", ["52_{10}"], ["52_8"]),
        ("1A_{16}", ["1A_{16}"], ["A1_{16}", "1B_{16}"]),
        ("52_8, 3", ["3, 52_8"], ["52_9, 3"]),
    ],
    "words": [
        ("even", ["Even", r"\text{even}", r"\textbf{Even}"], ["neve", "odd"]),
        (r"\text{Evelyn}", ["evelyn"], ["Nevelyn", "nylevE"]),
        ("no", ["No", r"\text{no}"], ["on", "yes"]),
        ("no solution", [r"\text{No solution}"], ["solution no", "solution"]),
        ("(odd, even)", [r"(\text{odd},\text{even})"], ["(odd, neve)", "(even, odd)"]),
        ("xyz", ["xyz", r"x\cdot y\cdot z"], ["xyw"]),
        ("ab", ["ba"], ["a+b"]),
    ],
    "units": [
        ("5", ["5 m", "5m", r"5\,\mathrm{m}", r"5\text{ m}/\text{s}^2", "5 cm^2", "5 square units"], ["5x", "6 m"]),
        ("2t", ["2t", r"2\,t"], ["2", "3t"]),
        ("2", ["2"], ["2t"]),
        ("3+2i", [r"3+2\mathrm{i}"], ["5", "3+2"]),
        ("3", ["3"], [r"1+2\mathrm{i}"]),
        ("10000000", [r"10\text{ million}"], ["10"]),
        (r"10\text{ million}", ["10000000"], ["10"]),
        (r"25\%", ["25 percent", r"25\text{ percent}", "0.25"], ["2.5"]),
        (r"12\pi", [r"12\pi\ \text{cm}^2", "12π cm"], ["12"]),
    ],
    "equations": [
        ("5", ["f(2)=5", "x=2+3=5", "2+3=5"], ["1=5", "6=5", r"x\ne 5", "x>5"]),
        ("n=2,3,4", ["2,3,4"], ["n=1,2,3"]),
        ("3x-y+13=0", ["y=3x+13"], ["3x+4y+14=0"]),
        ("4", ["4"], [r"4\sqrt(2)"]),
        ("34", ["34"], ["34, 35", "34 or 35", "34 35", "not 34", r"\le 34"]),
    ],
}  # fmt: skip
PAIRS = {
    f"{kind}: {gold} and {given}": (gold, given, score)
    for kind, rows in ORACLE.items()
    for gold, right, wrong in rows
    for score, answers in ((1.0, [gold, *right]), (0.0, wrong))
    for given in answers
}


@pytest.mark.parametrize(("gold", "given", "score"), PAIRS.values(), ids=PAIRS)
def test_oracle(gold, given, score):
    assert score_answer(f"So \\boxed{{{given}}}.", gold) == score


SEPARATORS = st.sampled_from([", ", "; ", " and ", r" \text{ or } ", r",\,", ", and "])


@settings(max_examples=40)
@given(
    gold=st.lists(st.integers(-5, 5), min_size=1, max_size=3),
    given=st.lists(st.integers(-5, 5), min_size=1, max_size=3),
    separator=SEPARATORS,
)
def test_lists_are_compared_as_sets_whatever_separates_them(gold, given, separator):
    assert score_answer(f"\\boxed{{{separator.join(map(str, given))}}}", str(gold)[1:-1]) == float(
        set(gold) == set(given)
    )


@settings(max_examples=60)
@given(m=st.integers(1, 99), k=st.integers(-12, 12), n=st.integers(1, 99), j=st.integers(-12, 12))
@example(m=10, k=-5, n=1, j=-4)
def test_json_floats_of_any_size_are_compared_relatively(m, k, n, j):
    gold = read_gold(float(f"{m}e{k}"))
    for spelling in (f"{n}e{j}", f"{n} \\times 10^{{{j}}}"):
        score = score_answer(f"\\boxed{{{spelling}}}", gold)
        assert score == float(m * Fraction(10) ** k == n * Fraction(10) ** j)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{34}\nThe answer: no doubt", "34"),
        ("\\boxed{1}\nAnswer: 2", "1"),
        ("Put it into \\boxed{}.\nAnswer: 2", "2"),
        ("\\boxed{...} \\boxed{\\text{}}\nAnswer: 2", "2"),
        ("\\boxed{5} in \\boxed{}", "5"),
        ("**Answer:**\n34", "34"),
        ("Answer:\n\\[\n34\n\\]\nDone.", "34"),
        ("Answer:\n$$\n34\n$$", "34"),
        ("Answer:\n$\n34\n$", "34"),
        ("Answer: \\[ \\frac{1}{2} \\]", "\\frac{1}{2}"),
        ("Answer: `34`", "34"),
        ("Answer:\n```\n34\n```", "34"),
        ("Answer: 34. It was easy.", "34"),
        ("Answer: 3.5", "3.5"),
        ("The answer is 34", "34"),
        ("The final answer is: $34$. I hope it is correct.", "$34$"),
        ("Answer: 34\nIs that the answer:", "34"),
        ("<think>\\boxed{1}? No.</think>Answer: 2", "2"),
        ("<think>So \\boxed{1}.</think>That is it.", "1"),
    ],
)
def test_where_an_answer_stands(completion, answer):
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"answer": "She sold 48 / 2 = <<48/2=24>>24 and 48.\n#### 72"}, "72"),
        ({"answer": "We get $x = 5$, so \\boxed{5}."}, "5"),
        ({"answer": "The answer is 5."}, "5"),
        ({"answer": "Answer: $\\pi$"}, "$\\pi$"),
        ({"solution": "Adding up. The answer is 5."}, "5"),
        ({"reward_model": "{'ground_truth': '34', 'style': 'rule'}"}, "34"),
        ({"reward_model": {"ground_truth": '["34"]'}}, "34"),
        ({"answer": '{"answer": "3"}'}, "3"),
        ({"answer": "['5', '6']"}, "5, 6"),
        ({"answer": '["\\\\frac{1}{2}"]'}, "\\frac{1}{2}"),
        ({"answer": "['\\frac{1}{2}']"}, "\\frac{1}{2}"),
        ({"answer": "[72]"}, "72"),
        ({"answer": "[1, 2]"}, "[1, 2]"),
        ({"answer": "\\{1, 2\\}"}, "\\{1, 2\\}"),
        ({"answer": 0.00001}, "0.00001"),
        ({"answer": 1e22}, "10000000000000000000000"),
        ({"answer": [1.0, 2.5]}, "1, 2.5"),
        ({"answer": {"value": 3}}, "3"),
        ({"answer": "no solution"}, "no solution"),
    ],
)
def test_what_an_answer_column_holds(row, answer):
    rows = [{"problem": "?", **row}]
    assert problems_from_rows(rows, Layout(), source="rows").problems[0].answer == answer


def data_of(tmp_path, answers):
    path = tmp_path / "data.jsonl"
    rows = ({"question": str(i), "answer": answer} for i, answer in enumerate(answers))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MathTask(data=str(path))


def test_answers_that_cannot_be_judged_are_counted_and_named_by_row(tmp_path, caplog):
    broken = ["\\frac{1}{", "x" * 300, "1:2:3:\\ldots", "$"]
    task = data_of(tmp_path, ["1", "even", broken[0], "\\frac{2}{3}", *broken[1:]])
    assert len(task.loaded.problems) == 7
    assert [text.split()[1] for text in task.loaded.unjudgeable] == ["3", "5", "6", "7"]
    assert "4 of 7 answers cannot be judged" in caplog.text
    assert "row 3 ('\\\\frac{1}{'), row 5" in caplog.text
    assert "row 7" not in caplog.text, "only a few are named"
    for problem in task.loaded.problems:
        assert can_judge(problem.answer) == (task.score("Answer: 1", problem.answer) is not None)


def test_a_data_set_without_an_answer_that_can_be_judged_is_refused(tmp_path):
    with pytest.raises(
        DatasetError, match=r"none of the 2 answers .* row 1 .*, row 2 .*check which column"
    ) as caught:
        _ = data_of(tmp_path, ["\\frac{1}{", "$"]).loaded
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("limit", "left"), [(None, 2), (5, 1)])
def test_overlong_prompts_are_left_out_by_the_limit_of_the_run_or_of_the_task(limit, left, caplog):
    options = {} if limit is None else {"training": {"max_prompt_length": limit}}
    config = load_config(
        None, {"task": {"name": "math", "dataset": "x"}, "policy": {"model": "x"}, **options}
    )
    lengths = [5, 2048, 2049]
    problems = [Problem(str(length), "?", "1") for length in lengths]
    with caplog.at_level(logging.WARNING):
        kept = without_overlong(problems, config, MathTask(), lambda problem: int(problem.prompt_id))
    assert kept == problems[:left]
    assert f"{3 - left} of 3 prompts are longer than {limit or 2048} tokens" in caplog.text


@pytest.mark.parametrize(
    "text", ["\\{" * 120 + "1" + "\\}" * 120, "(1,\\{" * 80, "\\pm" * 100, "\\text{" * 80, "1," * 250]
)
def test_rewriting_is_bounded(text):
    assert isinstance(tidy(text), str)
    assert score_answer(f"\\boxed{{{text}}}", "34") == 0.0
