"""What we measured: the tables of the pages, and what they must show."""

from pathlib import Path

from benchmarks.results import table as as_markdown
from experiments.reproduce import EXPERIMENTS
from experiments.results import COUNTED, all_tables, counted, measured
from papers.tables import load_tables

TABLES = all_tables()


def test_the_pages_of_results_show_what_was_measured():
    docs = Path(__file__).parents[2] / "docs"
    names = "results.md", "log.md"
    page = "".join((docs / name).read_text(encoding="utf-8") for name in names)
    shown = {name: measured(table) for name, table in TABLES.items()}
    shown["counted"] = counted(TABLES[name] for name in COUNTED)
    assert len(shown) == page.count("<!-- end -->")
    for name, rows in shown.items():
        assert f"<!-- {name} -->\n{as_markdown(rows)}<!-- end -->\n" in page
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


def test_a_difference_counts_after_correction_by_its_sign():
    def table(title, **tested):
        rows = {"as published": {"measured": {"t": {"nDCG@10": 0.5}}}}
        for name, (figure, p) in tested.items():
            rows[name] = {"measured": {"t": {"nDCG@10": figure}}, "p nDCG@10": p}
        return {"title": f"{title}: what", "against": "as published", "rows": rows}

    first = table(
        "A", better=(0.6, 0.001), worse=(0.4, 0.001), lucky=(0.6, 0.03), other=(0.6, 0.04)
    )
    second = table("B", better=(0.6, 0.049), worse=(0.4, 0.2))
    assert counted([first, second]) == [
        {"": "better", "helped": "A", "no difference": "B", "harmed": ""},
        {"": "worse", "helped": "", "no difference": "B", "harmed": "A"},
        {"": "lucky", "helped": "", "no difference": "A", "harmed": ""},
        {"": "other", "helped": "", "no difference": "A", "harmed": ""},
    ]


def test_the_contrastive_loss_alone_is_measured_wherever_cocondenser_is():
    for table_name, table in TABLES.items():
        # test_design.py knows what these measure, or will.
        if table_name not in ("design/arms", "design_gpu/arms"):
            rows = {row.lower(): content["measured"] for row, content in table["rows"].items()}
            shown = [row for row in rows if "cocondenser" in row]
            # `adapt` trains the contrastive loss alone.
            alone = [row for row in rows if "contrastive" in row or row == "adapted"]
            assert not shown or alone, table_name
            figures = [value for row in shown + alone for test in rows[row].values()
                       for value in test.values()]  # fmt: skip
            assert None not in figures, table_name


def test_every_table_has_a_title_and_a_tolerance():
    assert all(table["title"] for table in TABLES.values())
    assert all(table["tolerance"] for table in load_tables(EXPERIMENTS.folder).values())
