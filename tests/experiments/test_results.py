"""What we measured: the tables of the pages, and what they must show."""

import json
import re

from benchmarks import results
from benchmarks.results import table as as_markdown
from experiments.reproduce import EXPERIMENTS
from experiments.results import all_rows, all_tables, measured, side_by_side
from papers.tables import load_tables

TABLES = all_tables()


def test_the_pages_of_results_show_what_was_measured():
    page = "".join(page.read_text(encoding="utf-8") for page in results.PAGES)
    files = results.FOLDER.glob("results/*.json")
    rows = all_rows() | {file.stem: json.loads(file.read_text()) for file in files}
    shown = re.findall(r"<!-- (\S+) -->\n((?:\|.*\n)*)<!-- end -->\n", page)
    assert len(shown) == page.count("<!-- end -->") == page.count("<!-- ") / 2 > 14
    for name, text in shown:
        message = "python -m benchmarks.results && python -m experiments.results"
        assert text == as_markdown(rows[name]), message
    row, *_ = measured(TABLES["ours/quickstart"])
    assert row == {"": "BM25", "MRR@10": "0.366", "Recall@100": "0.734", "seconds": "3"}
    checkpoint = measured(TABLES["ours/checkpoint"])
    assert checkpoint[0]["SciFact, nDCG@10"] == "0.671"


def test_the_page_of_results_corrects_the_p_of_a_table():
    figures = {"measured": {"t": {"M": 0.5, "N": None}}}
    rows = {"a": figures | {"p M": 0.0002, "± M": 0.1}, "b": figures | {"p M": 0.03}, "c": figures}
    assert measured({"rows": rows}) == [
        {"": "a", "M": "0.500 ± 0.1", "N": "", "p M": "≤ 0.0004"},
        {"": "b", "M": "0.500", "N": "", "p M": "0.03"},
        {"": "c", "M": "0.500", "N": ""},
    ]


def test_a_table_with_ndcg_shows_the_p_of_that_metric_alone():
    row = {"measured": {"t": {"M": 0.5}}, "p M": 0.01, "p nDCG@10": 0.02, "seconds": 6}
    (shown,) = measured({"rows": {"a": row}})
    assert shown == {"": "a", "M": "0.500", "p nDCG@10": "0.02", "seconds": "6"}


def test_tables_stand_side_by_side_with_a_star_where_a_corrected_p_is_low():
    def table(title, **tested):
        rows = {"as published": {"measured": {"t": {"nDCG@10": 0.5}}}}
        for name, (figure, p) in tested.items():
            rows[name] = {"measured": {"t": {"nDCG@10": figure}}, "p nDCG@10": p}
        return {"title": f"{title}: what", "against": "as published", "rows": rows}

    first = table("A", better=(0.6, 0.001), worse=(0.4, 0.001), lucky=(0.6, 0.03), odd=(0.6, 0.04))
    second = table("B", worse=(0.4, 0.2), better=(0.61, 0.03))
    rows = side_by_side([first, second])
    assert rows == [
        {"": "as published", "A": "0.500", "B": "0.500"},
        {"": "better", "A": "0.600*", "B": "0.610"},
        {"": "worse", "A": "0.400*", "B": "0.400"},
        {"": "lucky", "A": "0.600"},
        {"": "odd", "A": "0.600"},
    ]
    assert "|  | A | B |\n| --- | ---: | ---: |\n" in as_markdown(rows)


def test_the_pages_get_the_tables_that_they_have_a_place_for(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- a -->\n| old |\n<!-- end -->\nAfter.\n")
    monkeypatch.setattr(results, "PAGES", [page])
    results.update_pages({"a": [{"n": 1}], "nowhere": [{"n": 2}]})
    assert page.read_text() == (
        "Before.\n<!-- a -->\n| n |\n| ---: |\n| 1 |\n<!-- end -->\nAfter.\n"
    )


def test_the_contrastive_loss_alone_is_measured_wherever_cocondenser_is():
    for table_name, table in TABLES.items():
        rows = {row.lower(): content["measured"] for row, content in table["rows"].items()}
        shown = [row for row in rows if "cocondenser" in row]
        if table_name == "design/first_seed":  # the first of what another table plans
            planned = [row.lower() for row in TABLES["design/arms"]["rows"]]
            assert all(row.replace("a4 cocondenser", "a3 contrastive") in planned for row in shown)
            continue
        # `adapt` trains the contrastive loss alone.
        alone = [row for row in rows if "contrastive" in row or row == "adapted"]
        assert not shown or alone, table_name
        # test_design.py knows what these measure, or will.
        if table_name not in ("design/arms", "design_gpu/arms"):
            figures = [value for row in shown + alone for test in rows[row].values()
                       for value in test.values()]  # fmt: skip
            assert None not in figures, table_name


def test_every_table_has_a_title_and_a_tolerance():
    assert all(table["title"] for table in TABLES.values())
    assert all(table["tolerance"] for table in load_tables(EXPERIMENTS.folder).values())
