"""Rows of the papers' tables: their commands are valid, and end in figures on tiny data."""

import os

import pytest

from papers.reproduce import PAPERS
from tests.papers.rows import check_command, check_row, check_steps, commands_of, rows_of
from tests.papers.tiny_data import write_data

pytestmark = pytest.mark.usefixtures("one_length")

# A retriever, a classifier and a figure; `make reproduce` runs every row.
SOME = [("co/table2", "ensemble"), ("condenser/table1", "nli-500"), ("condenser/figure2", "bert")]
ALL_ROWS = rows_of(PAPERS)
ROWS = ALL_ROWS if os.environ.get("REPRODUCE") == "all" else SOME


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
