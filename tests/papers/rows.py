"""Rows of tables: their steps and commands where nothing is made yet."""

import itertools
from pathlib import Path

import click

from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.settings import FINE_TUNING, load_config
from papers.steps import Folders, run_steps, unfinished
from papers.tables import compare_goals, goals_of, load_tables
from tests.papers.tiny_data import (
    FINE_TUNING_SCRIPTS,
    SCRIPTS,
    execute,
    expected_pool,
    read_pool,
)

FOLDERS = Folders(Path("W"), Path("D"))


def rows_of(study):
    """Returns every table and row of a study by their names."""
    return [
        (name, row) for name, table in load_tables(study.folder).items() for row in table["rows"]
    ]


def goals(study, table, *rows):
    return goals_of(load_tables(study.folder)[table], rows, study.recipes)


def steps(study, table, *rows, folders=FOLDERS):
    return unfinished((goal.step for goal in goals(study, table, *rows)), folders)


def steps_of(study, rows):
    """Returns the steps of several pairs of table and row."""
    wanted = [goal.step for table, row in rows for goal in goals(study, table, row)]
    return unfinished(wanted, FOLDERS)


def commands_of(study, rows):
    return [command for step in steps_of(study, rows).values() for command in step.commands]


def flags(command):
    return [word.partition("=")[::2] for word in command if word.startswith("--")]


# ---- what must be true of the commands of every row ----


def check_command(command):
    """Fails if a command cannot be typed, or its config not be loaded."""
    command = [word.replace("$EPOCHS", "4").replace("$RATE", "1e-4") for word in command]
    if command[0] == "python":
        assert command[1] == "-m"
        if command[2] in FINE_TUNING_SCRIPTS:
            given = _parse(PROGRAM, ["finetune", *command[3:]])
            load_config(given["config"], given["overrides"], tasks=FINE_TUNING)
        else:
            SCRIPTS[command[2]].make_parser().parse_args(command[3:])
        return
    assert command[0] == "cocondenser"
    given = _parse(PROGRAM, command[1:])
    if "config" in given:
        tasks = ("pretrain",) if command[1] == "pretrain" else FINE_TUNING
        load_config(given["config"], given["overrides"], tasks=tasks)


def _parse(program, words):
    """Returns the flags of a command line by their names."""
    while isinstance(program, click.Group):
        name, *words = words
        program = program.commands[name]
    with program.make_context(program.name, words) as context:
        return context.params


def check_steps(study):
    """Fails if two steps make one path, or a step needs other steps than its commands read."""
    made = {}
    waiting = [goal.step for name, row in rows_of(study) for goal in goals(study, name, row)]
    while waiting:
        step = waiting.pop()
        commands = [tuple(words) for words in step.commands]
        if (step.out, step.done) in made:
            assert made[step.out, step.done] == commands, step.out
            continue
        made[step.out, step.done] = commands
        _check_needs(step)
        waiting += step.needs
        for choice in step.choices:
            waiting += choice.tried.values()


def _check_needs(step):
    if not step.commands:
        return
    words = [word for command in step.commands for word in command]
    values = itertools.chain(*(word.partition("=")[2].split(",") for word in words))
    paths = {value for value in values if value.startswith(("$WORK", "$DATA"))}
    outs = [need.out for need in step.needs]
    for path in paths:
        known = any(path == out or path.startswith((f"{out}/", f"{out}.")) for out in outs)
        assert known or path.startswith(step.out), (step.out, path)
    for out in outs:
        assert any(path.startswith(out) for path in (*paths, step.out)), (step.out, out)
    # What shows that it is finished is made by one of its commands, or lies in a folder that is.
    assert {step.result, step.out} & paths, step.out


def check_row(study, table, row, folders):
    """Fails if a row's commands, made tiny, do not end in figures."""
    of_row = steps(study, table, row, folders=folders)
    run_steps(of_row, folders, execute)
    assert steps(study, table, row, folders=folders) == {}
    for step in of_row.values():
        for command in step.commands:
            if command[1] == "mine" or "drop" in command:
                assert read_pool(command) == expected_pool(command)
    tolerance = load_tables(study.folder)[table]["tolerance"]
    for comparison in compare_goals(goals(study, table, row), tolerance, folders):
        assert -100 <= comparison.measured <= 100
