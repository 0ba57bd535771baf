"""Rows of the papers' tables: their commands are valid, and end in figures on tiny data."""

import os

import pytest

from papers.reproduce import PAPERS
from tests.papers.rows import check_command, check_row, check_steps, commands_of, kinds, rows_of
from tests.papers.tiny_data import write_data

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
]
ALL_ROWS = rows_of(PAPERS)
ROWS = ALL_ROWS if os.environ.get("REPRODUCE") == "all" else ROWS_OF_EACH_KIND


def test_every_command_of_every_row_can_be_typed():
    for command in commands_of(PAPERS, ALL_ROWS):
        check_command(command)


def test_steps_make_what_they_say_from_what_they_need():
    check_steps(PAPERS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folders for --workdir and --data."""
    return write_data(tmp_path_factory.mktemp("papers"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_ends_in_its_figures(tiny, table, row):
    check_row(PAPERS, table, row, tiny)


def test_those_rows_run_every_command():
    # test_figures.py and test_project.py have the others.
    others = {"papers.figures.sizes", "papers.project"}
    left = kinds(commands_of(PAPERS, ALL_ROWS)) - kinds(commands_of(PAPERS, ROWS_OF_EACH_KIND))
    assert left == others
