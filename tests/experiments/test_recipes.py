"""Recipes of our studies: what they start from, and which settings they test."""

from experiments.reproduce import EXPERIMENTS
from papers.tables import load_tables
from tests.papers.rows import flags, steps

TABLES = load_tables(EXPERIMENTS.folder)


def test_objectives_are_continued_from_a_stage_1_with_the_former_rate():
    of_table = steps(EXPERIMENTS, "mini/objectives-dev")
    commands = [c for step in of_table.values() for c in step.commands]
    trained = [dict(flags(command)) for command in commands if command[1] == "pretrain"]
    first, *further = trained
    assert first["--workdir"] == "W/mini/settings/8192/0.001-True/stage1.run"
    start = "W/mini/settings/8192/0.001-True/stage1"
    assert {given["--config.warm_start"] for given in further} == {start}
    assert {given["--config.train.steps"] for given in further} == {"300"}
    tuned = [dict(flags(command)) for command in commands if command[1] == "finetune"]
    assert {given["--config.model.folder"] + ".run" for given in tuned} == {
        given["--workdir"] for given in trained
    }


def test_the_rates_that_are_tested_are_the_best_on_dev():
    on_dev = TABLES["mini/objectives-dev"]["rows"]
    tested = TABLES["mini/objectives"]["rows"]
    for name in ("MLM", "Condenser", "contrastive", "coCondenser"):
        rows = [row for row in on_dev if row.startswith(f"{name}, ")]
        best = max(rows, key=lambda row: on_dev[row]["measured"]["settings.on_dev"]["MRR@10"])
        assert tested[name]["with"] == on_dev[best]["with"]
