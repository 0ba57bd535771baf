"""Tables: what a row calls, and how what it measures is compared with the figures."""

import json
from types import SimpleNamespace

import pytest

from cocondenser_jax.errors import UserError
from papers.steps import Step
from papers.tables import Comparison, Goal, compare_goals, comparison_cells, goals_of
from tests.papers.rows import FOLDERS

# ---- what a row calls ----


def trained(model, size=1, seed=0):
    return Step(f"{model}-{size}-{seed}")


def scored(ranked):
    return Step(f"{ranked.out}.json")


def drawn(size):
    return Step(f"drawn-{size}.svg")


RECIPES = {"m": SimpleNamespace(trained=trained, scored=scored, drawn=drawn)}


def outs(table):
    return [goal.step.out for goal in goals_of(table, [], RECIPES)]


def test_a_test_measures_what_the_recipe_makes_of_the_arguments():
    row = {"recipe": "m.trained", "with": {"model": "a"}, "published": {"m.scored": {"M": 0.5}}}
    (goal,) = goals_of({"rows": {"r": row}, "against": "s"}, [], RECIPES)
    step = Step("a-1-0.json")
    assert goal == Goal(row="r", test="m.scored", step=step, figures={"M": 0.5}, against="s")


def test_without_a_recipe_a_test_gets_the_arguments():
    assert outs({"rows": {"r": {"with": {"size": 3}, "measured": {"m.drawn": {}}}}}) == [
        "drawn-3.svg"
    ]


def test_a_row_takes_precedence_over_its_table_and_a_test_over_its_row():
    row = {"with": {"model": "b"}, "published": {"m.scored": {}}, "against": "t"}
    table = {"recipe": "m.trained", "with": {"model": "a", "size": 2}, "against": "s"}
    assert outs(table | {"rows": {"r": row}}) == ["b-2-0.json"]
    own = row | {"m.scored": {"recipe": "m.scored", "with": {"model": "c"}}}
    with pytest.raises(TypeError, match=r"scored\(\) got an unexpected keyword argument 'model'"):
        outs(table | {"rows": {"r": own}})
    own = row | {"m.scored": {"with": {"model": "c"}}, "m.drawn": {"with": {"model": "d"}}}
    assert outs(table | {"rows": {"r": own}}) == ["c-2-0.json"]
    goals = goals_of(table | {"rows": {"r": row, "q": row | {"against": "u"}}}, [], RECIPES)
    assert [goal.against for goal in goals] == ["t", "u"]


def test_seeds_are_arguments_unless_a_row_has_none():
    row = {"recipe": "m.trained", "with": {"model": "a"}, "published": {"m.scored": {}}}
    rows = {"r": row, "once": row | {"seeds": []}}
    assert outs({"seeds": [3, 4], "rows": rows}) == ["a-1-3.json", "a-1-4.json", "a-1-0.json"]


def test_a_row_that_is_not_there_is_named():
    table = {"rows": {"r": {"published": {}}, "s": {"published": {}}}}
    with pytest.raises(UserError, match=r"no row 'q': did you mean r or s\?"):
        goals_of(table, ["q"], RECIPES)


# ---- how it compares ----


def test_figures_are_compared_within_the_tolerance(tmp_path):
    def goal(row, seed, *values, figure=0.382):
        file = tmp_path / f"{row}-{seed}.json"
        per_query = {f"q{i}": {"MRR@10": value} for i, value in enumerate(values)}
        mean = {"MRR@10": sum(values) / len(values)}
        file.write_text(json.dumps({"mean": mean, "per_query": per_query}))
        return Goal(row, "dev", Step(str(file)), {"MRR@10": figure}, "best")

    goals = [
        *(goal("good", seed, 0.377 + seed, 0.377 - seed) for seed in range(2)),
        goal("best", 0, *[0.9] * 2),
        goal("bad", 0, 0.37, 0.38),
        goal("new", 0, *[0.5] * 2, figure=None),
    ]
    missing = Goal("late", "dev", Step(f"{tmp_path}/late.json"), {"MRR@10": 0.1}, "best")
    good, best, bad, new, late = compare_goals([*goals, missing], 0.005, FOLDERS)
    assert (good.measured, good.deviation) == (pytest.approx(0.377), pytest.approx(0.0))
    assert good.difference == pytest.approx(-0.005)
    assert good.within
    assert (best.p, best.deviation) == (None, None)
    assert (bad.within, bad.difference) == (False, pytest.approx(-0.007))
    assert (new.published, new.difference, new.within) == (None, None, None)
    assert new.p == 0.5  # two queries, both worse: 2 of 4 assignments of signs
    assert (late.measured, late.published, late.within) == (None, 0.1, None)
    assert compare_goals(goals[3:4], 0.01, FOLDERS)[0].within


def test_deviation_and_test_are_over_seeds(tmp_path):
    goals = []
    for row, shift in (("a", 0.0), ("b", 0.1)):
        for seed, mean in enumerate((0.2, 0.4, 0.6)):
            file = tmp_path / f"{row}{seed}.json"
            per_query = {f"q{i}": {"M": mean + shift} for i in range(10)}
            file.write_text(json.dumps({"mean": {"M": mean + shift}, "per_query": per_query}))
            goals.append(Goal(row, "t", Step(str(file)), {"M": None}, "a"))
    first, second = compare_goals(goals, 0.0, FOLDERS)
    assert (first.measured, first.deviation) == (pytest.approx(0.4), pytest.approx(0.2))
    assert first.p is None
    assert second.p == pytest.approx(2 / 2**10)  # ten queries, all better


def test_p_is_corrected_for_all_tests_that_are_printed(tmp_path):
    goals = []
    for row, n_worse in (("best", 0), ("good", 4), ("bad", 8), ("alike", 1)):
        file = tmp_path / f"{row}.json"
        values = [0.2] * n_worse + [0.4] * (40 - n_worse)
        per_query = {f"q{i}": {"M": value, "N": 0.5} for i, value in enumerate(values)}
        mean = {"M": sum(values) / 40, "N": 0.5}
        file.write_text(json.dumps({"mean": mean, "per_query": per_query}))
        goals.append(Goal(row, "t", Step(str(file)), {"M": 0.4, "N": None}, "best"))
    compared = {(one.row, one.metric): one for one in compare_goals(goals, 0.0, FOLDERS)}
    assert compared["best", "M"].corrected_p is None
    # Of 2^4 and 2^8 assignments of signs, two are as extreme; a single difference tells nothing.
    p_values = {"good": 0.125, "bad": 2 / 2**8, "alike": 1.0}
    for row, p in p_values.items():
        assert compared[row, "M"].p == pytest.approx(p)
        assert compared[row, "N"].p == 1.0
    assert compared["bad", "M"].corrected_p == pytest.approx(6 * 2 / 2**8)
    assert compared["good", "M"].corrected_p == pytest.approx(5 * 0.125)
    assert compared["alike", "M"].corrected_p == 1.0


def test_p_at_its_floor_is_printed_as_a_bound():
    one = Comparison("a", "t", "M", 0.5, None, 0.5, 0.0, True, 2 / 10_001, 4 / 10_001)
    other = one._replace(row="b", p=0.5, corrected_p=0.5)
    untested = one._replace(row="c", p=None, corrected_p=None)
    cells = [line[-3:] for line in comparison_cells([one, other, untested])]
    assert cells == [["yes", "≤ 0.0002", "≤ 0.0004"], ["yes", "0.5", "0.5"], ["yes", "", ""]]
