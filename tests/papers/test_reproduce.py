"""Tables of the papers: every row's commands are valid, and end in figures on tiny data."""

import json
import os
from pathlib import Path

import click
import pytest
import yaml

from benchmarks.results import is_ours, measured
from benchmarks.results import table as as_markdown
from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.errors import UserError
from cocondenser_jax.quickstart.steps import SECONDS
from cocondenser_jax.settings import FINE_TUNING, load_config
from papers import reproduce
from papers.reproduce import (
    Comparison,
    Goal,
    Step,
    compare_goals,
    comparison_cells,
    estimate_hours,
    load_manifest,
    resolve_rows,
    run_steps,
)
from tests.papers import tiny_data
from tests.papers.tiny_data import (
    SCRIPTS,
    execute,
    expected_pool,
    read_pool,
    write_data,
    write_quickstart_models,
)

TABLES, RECIPES = load_manifest()
# Together they run every command that the recipes use; `make reproduce` runs every row.
ROWS_OF_EACH_KIND = [
    ("co/table2", "ensemble"),
    ("condenser/table1", "nli-500"),
    ("condenser/table4", "dpr-mined"),
    ("condenser/table5", "bm25"),
    ("condenser/figure2", "bert"),
    ("co/figure3", "cocondenser"),
    ("draft/figure5", "loss"),
    ("abs/table4", "beam"),
    ("abs/section4.3", "learning-to-rank"),
    ("proof/adapt-scifact", "adapted"),
    ("proof/adapt-docstrings", "SimCSE"),
    ("proof/scratch", "none-100"),
]
EVERY_ROW = os.environ.get("REPRODUCE") == "all"
ALL_ROWS = [(name, row) for name, table in TABLES.items() for row in table["rows"]]


def planned(rows):
    """Returns the steps of some rows where nothing is made yet."""
    steps = {}
    for table, row in rows:
        for path, step in resolve_rows(TABLES[table], [row], Path("W"), Path("D"))[1].items():
            assert steps.setdefault(path, step) == step
    return steps


def commands_of(rows):
    return [command for step in planned(rows).values() for command in step.commands]


# ---- the manifest ----


def parse(program, words):
    """Returns the flags of a command line by their names."""
    while isinstance(program, click.Group):
        name, *words = words
        program = program.commands[name]
    with program.make_context(program.name, words) as context:
        return context.params


def test_every_command_of_every_row_can_be_typed():
    for command in commands_of(ALL_ROWS):
        command = [word.replace("{epochs}", "4") for word in command]
        if command[0] == "python":
            assert command[1] == "-m"
            if command[2] in tiny_data.FINE_TUNING:
                flags = parse(PROGRAM, ["finetune", *command[3:]])
                load_config(flags["config"], flags["overrides"], tasks=FINE_TUNING)
                continue
            SCRIPTS[command[2]].make_parser().parse_args(command[3:])
            continue
        assert command[0] == "cocondenser"
        flags = parse(PROGRAM, command[1:])
        if "config" in flags:
            tasks = ("pretrain",) if command[1] == "pretrain" else FINE_TUNING
            load_config(flags["config"], flags["overrides"], tasks=tasks)


def test_a_step_finishes_with_what_one_of_its_commands_makes():
    for path, step in planned(ALL_ROWS).items():
        words = [word for command in step.commands for word in command]
        # or it lies in a folder that grows
        assert step.get or any(word.endswith((f"={path}", f"={path.parent}")) for word in words)


def test_no_recipe_of_one_file_hides_that_of_another():
    files = Path(reproduce.__file__).parent.glob("*.yaml")
    contents = {f.name: yaml.safe_load(f.read_text("utf-8")) for f in files}
    shared = contents.pop("recipes.yaml")
    own = [name for content in contents.values() for name in content.get("recipes", {})]
    assert sorted([*shared, *own]) == sorted(RECIPES)


def test_every_recipe_is_used(monkeypatch):
    used = set()
    resolve = reproduce._resolve

    def note(given, name, *folders):
        used.add(name)
        return resolve(given, name, *folders)

    monkeypatch.setattr(reproduce, "_resolve", note)
    planned(ALL_ROWS)
    assert used == RECIPES.keys()


def test_every_need_of_a_recipe_is_used():
    for name, recipe in RECIPES.items():
        words = " ".join([*recipe.get("run", []), recipe["out"]])
        assert [need for need in recipe.get("needs", {}) if f"{{{need}}}" not in words] == [], name


def test_the_page_of_results_shows_what_the_manifest_measured():
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    ours = {name: table for name, table in TABLES.items() if is_ours(table)}
    assert len(ours) == page.count("<!-- end -->")
    for name, table in ours.items():
        assert f"<!-- {name} -->\n{as_markdown(measured(table))}<!-- end -->\n" in page
    (row, *_), attention = measured(TABLES["ours/quickstart"]), measured(TABLES["ours/attention"])
    assert row == {"": "BM25", "MRR@10": "0.363", "Recall@100": "0.737", "seconds": "6"}
    assert attention[0]["layer 4"] == "4.46"
    checkpoint = measured(TABLES["ours/checkpoint"])
    assert checkpoint[0]["SciFact, nDCG@10"] == "0.671"
    assert measured(TABLES["ours/sentences"])[0] == {
        "": "all-MiniLM-L6-v2 as published (mean pooling)",
        "Spearman": "82.0",
    }


# ---- planning and running ----


@pytest.fixture
def chain(monkeypatch):
    """A table of two rows whose models share a store."""
    recipes = {
        "data": {"out": "data", "get": "a library"},
        "store": {"needs": {"data": None}, "out": "store", "run": ["c make {data} {out}"]},
        "model": {"needs": {"store": None}, "out": "model", "run": ["c make {store} {out}"]},
        "test": {"needs": {"model": None}, "out": "{model}-{n}", "run": ["c make {model} {out}"]},
        "alias": {"needs": {"tested": "test"}, "out": "{tested}"},
    }
    rows = {n: {"with": {"n": n}, "published": {"alias": {"M": 0.5}}} for n in ("one", "two")}
    monkeypatch.setattr(reproduce, "load_manifest", lambda: ({}, recipes))
    return {"rows": rows}


def make(command):
    Path(command[-1]).touch()
    return 0


def test_steps_run_once_in_order_and_go_on_where_they_stopped(chain, tmp_path):
    def unfinished():
        return resolve_rows(chain, [], tmp_path, tmp_path)[1]

    def names():
        return [path.name for path in unfinished()]

    assert names() == ["data", "store", "model", "model-one", "model-two"]
    with pytest.raises(UserError, match=r"data is missing: a library"):
        run_steps(unfinished(), tmp_path, make)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "data").touch()
    ran = []

    def stop_at_model(command):
        ran.append(Path(command[-1]).name)
        return make(command) if ran[-1] != "model" else 7

    with pytest.raises(UserError, match=r"exit status 7: c make .*store .*model"):
        run_steps(unfinished(), tmp_path, stop_at_model)
    assert ran == ["store", "model"]
    assert names() == ["model", "model-one", "model-two"]
    assert [*json.loads((tmp_path / SECONDS).read_text())] == ["store", "model"]
    run_steps(unfinished(), tmp_path, make)
    assert names() == []
    # What only led to finished steps may go.
    (tmp_path / "data").unlink()
    (tmp_path / "store").unlink()
    (tmp_path / "model-two").unlink()
    assert names() == ["model-two"]


def test_a_folder_that_grows_is_a_step_until_it_is_done(chain, tmp_path):
    _, recipes = reproduce.load_manifest()
    recipes["model"]["done"] = "last"

    def first():
        return next(iter(resolve_rows(chain, [], tmp_path, tmp_path)[1]), None)

    (tmp_path / "data").touch()
    (tmp_path / "store").touch()
    (tmp_path / "model").mkdir()
    assert first() == tmp_path / "model" / "last"
    (tmp_path / "model" / "last").touch()
    assert first() == tmp_path / "model-one"


def test_parameters_reach_what_is_needed(monkeypatch):
    run = ["c --in={text} --out={out}"]
    recipes = {
        "text": {"out": "text", "get": "a library"},
        "model": {"needs": {"text": None}, "out": "model-{size}", "run": run},
        "test": {
            "with": {"size": 1},
            "needs": {"small": {"recipe": "{kind}", "size": 2}, "model": None},
            "out": "{model}.run",
            "done": "a.json",
            "run": ["c --a={small} --b='{model} x'", "d {out}/a.json"],
            "flop": ["{size}", 3, 2.5e9],
        },
    }
    table = {
        "with": {"kind": "model", "test": {"size": 4}},
        "against": "{kind}-s",
        "rows": {
            "r": {"published": {"test": {"M": 0.5}}},
            "s": {"with": {"test": {"size": 5}}, "measured": {"test": {"M": 1}}},
        },
    }
    monkeypatch.setattr(reproduce, "load_manifest", lambda: ({}, recipes))
    goals, steps = resolve_rows(table, ["r"], Path("w"), Path("d"))
    assert goals == [Goal("r", "test", Path("w/model-4.run/a.json"), {"M": 0.5}, "model-s")]
    assert steps == {
        Path("d/text"): Step([], 0, "a library"),
        Path("w/model-2"): Step([["c", "--in=d/text", "--out=w/model-2"]], 0, ""),
        Path("w/model-4"): Step([["c", "--in=d/text", "--out=w/model-4"]], 0, ""),
        Path("w/model-4.run/a.json"): Step(
            [["c", "--a=w/model-2", "--b=w/model-4 x"], ["d", "w/model-4.run/a.json"]],
            4 * 3 * 2.5e9,
            "",
        ),
    }
    files = [goal.file for goal in resolve_rows(table, [], Path("w"), Path("d"))[0]]
    assert files == [Path(f"w/model-{n}.run/a.json") for n in (4, 5)]
    with pytest.raises(UserError, match=r"no row 'q': did you mean r or s\?"):
        resolve_rows(table, ["q"], Path("w"), Path("d"))


def test_hours_are_those_of_the_roofline_at_a_share_of_the_peak():
    """docs/tpu.md: a step of 4,096 spans takes a v3-8 at least 825 ms of arithmetic."""
    step = planned([("co/table4", "both")])[Path("W/models/cocondenser-marco")]
    estimated = estimate_hours({Path("a"): step})
    assert estimated["v3-8"] == pytest.approx(12552 * 0.825 / 3600 / 0.4, rel=0.01)
    assert estimated["H100"] == pytest.approx(3.6, rel=0.05)
    both = estimate_hours(
        {Path("a"): step, Path("b"): step._replace(commands=[["cocondenser", "encode"]])}
    )
    assert both["v3-8"] == estimated["v3-8"]
    assert both["H100"] == 2 * estimated["H100"]


def test_figures_are_compared_within_the_tolerance(tmp_path):
    def goal(row, seed, *values, figure=0.382):
        file = tmp_path / f"{row}-{seed}.json"
        per_query = {f"q{i}": {"MRR@10": value} for i, value in enumerate(values)}
        mean = {"MRR@10": sum(values) / len(values)}
        file.write_text(json.dumps({"mean": mean, "per_query": per_query}))
        return Goal(row, "dev", file, {"MRR@10": figure}, "best")

    goals = [
        *(goal("good", seed, 0.377 + seed, 0.377 - seed) for seed in range(2)),
        goal("best", 0, *[0.9] * 2),
        goal("bad", 0, 0.37, 0.38),
        goal("new", 0, *[0.5] * 2, figure=None),
    ]
    missing = Goal("late", "dev", tmp_path / "late.json", {"MRR@10": 0.1}, "best")
    good, best, bad, new, late = compare_goals([*goals, missing], 0.005)
    assert (good.measured, good.deviation) == (pytest.approx(0.377), pytest.approx(0.0))
    assert good.difference == pytest.approx(-0.005)
    assert good.within
    assert (best.p, best.deviation) == (None, None)
    assert (bad.within, bad.difference) == (False, pytest.approx(-0.007))
    assert (new.published, new.difference, new.within) == (None, None, None)
    assert new.p == 0.5  # two queries, both worse: 2 of 4 assignments of signs
    assert (late.measured, late.published, late.within) == (None, 0.1, None)
    assert compare_goals(goals[3:4], 0.01)[0].within


def test_deviation_and_test_are_over_seeds(tmp_path):
    goals = []
    for row, shift in (("a", 0.0), ("b", 0.1)):
        for seed, mean in enumerate((0.2, 0.4, 0.6)):
            file = tmp_path / f"{row}{seed}.json"
            per_query = {f"q{i}": {"M": mean + shift} for i in range(10)}
            file.write_text(json.dumps({"mean": {"M": mean + shift}, "per_query": per_query}))
            goals.append(Goal(row, "t", file, {"M": None}, "a"))
    first, second = compare_goals(goals, 0.0)
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
        goals.append(Goal(row, "t", file, {"M": 0.4, "N": None}, "best"))
    compared = {(one.row, one.measure): one for one in compare_goals(goals, 0.0)}
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


def test_the_page_of_results_corrects_the_p_of_a_table():
    figures = {"measured": {"t": {"M": 0.5, "N": None}}}
    rows = {"a": figures | {"p M": 0.0002, "± M": 0.1}, "b": figures | {"p M": 0.03}, "c": figures}
    assert measured({"rows": rows}) == [
        {"": "a", "M": "0.500", "N": "", "p M": "≤ 0.0004", "± M": "0.1"},
        {"": "b", "M": "0.500", "N": "", "p M": "0.03"},
        {"": "c", "M": "0.500", "N": ""},
    ]


# ---- on tiny data ----


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folders for --workdir and --data."""
    folder = tmp_path_factory.mktemp("papers")
    write_data(folder / "data", folder / "work")
    if EVERY_ROW:
        write_quickstart_models(folder / "work")
    return folder / "work", folder / "data"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "row"), ALL_ROWS if EVERY_ROW else ROWS_OF_EACH_KIND)
def test_a_row_ends_in_its_figures(tiny, name, row):
    table = TABLES[name]
    goals, steps = resolve_rows(table, [row], *tiny)
    run_steps(steps, tiny[0], execute)
    assert resolve_rows(table, [row], *tiny)[1] == {}
    for step in steps.values():
        for command in step.commands:
            if command[1] == "mine" or "drop" in command:
                assert read_pool(command) == expected_pool(command)
    for comparison in compare_goals(goals, table["tolerance"]):
        if comparison.test != "small_attention":  # a plot
            assert -100 <= comparison.measured <= 100


def test_those_rows_run_every_command():
    def kinds(rows):
        return {command[2 if command[0] == "python" else 1] for command in commands_of(rows)}

    # test_figures.py and test_project.py have the others; tiny_data.py writes what quickstart does.
    elsewhere = {"papers.figures.sizes", "papers.project"}
    assert kinds(ALL_ROWS) - kinds(ROWS_OF_EACH_KIND) == elsewhere
