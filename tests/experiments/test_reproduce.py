"""Rows of our studies: their commands are valid, and end in figures on tiny data."""

import os

import pytest

from experiments import settings
from experiments.reproduce import EXPERIMENTS, main
from tests.papers.rows import check_command, check_row, check_steps, commands_of, rows_of
from tests.papers.tiny_data import write_data, write_quickstart_models

pytestmark = pytest.mark.usefixtures("one_length")

ALL_ROWS = rows_of(EXPERIMENTS)


def test_every_command_of_every_row_can_be_typed():
    for command in commands_of(EXPERIMENTS, ALL_ROWS):
        check_command(command)


def test_steps_make_what_they_say_from_what_they_need():
    check_steps(EXPERIMENTS)


def test_the_program_lists_the_studies(capsys):
    main(["--list"])
    printed = capsys.readouterr().out
    assert "ours/quickstart: The quickstart: docstrings, from scratch\n  BM25, " in printed
    assert "condenser/table1" not in printed


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folders for --workdir and --data."""
    folders = write_data(tmp_path_factory.mktemp("experiments"))
    write_quickstart_models(folders.work)
    return folders


@pytest.mark.skipif(os.environ.get("REPRODUCE") != "all", reason="make reproduce")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("table", "row"), ALL_ROWS)
def test_a_row_ends_in_its_figures(tiny, table, row):
    check_row(EXPERIMENTS, table, row, tiny)


def test_the_changed_setting_of_a_variant_reaches_its_first_stage():
    vocabulary, *_ = settings._store(4096).needs[-1].commands
    pretrain, *_ = settings._stage1(4096, 0.01, late=False).commands
    assert "--size=4096" in vocabulary
    changed = {"--config.model.late_mlm=False", "--config.optimizer.learning_rate=0.01"}
    assert changed <= {*pretrain}
