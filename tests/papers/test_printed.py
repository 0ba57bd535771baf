"""The tables of figures against those of the papers, typed row by row as they are printed."""

import pytest

from cocondenser_jax.settings import FINE_TUNING, load_config
from papers.figures import curves, neighborhood
from papers.reproduce import PAPERS
from papers.tables import figures_of, load_files, load_tables
from tests.papers import rows

TABLES = load_tables(PAPERS.folder)
FILES = load_files(PAPERS.folder)
# Of each paper, and what it draws that was measured.
NUMBERS = {
    "condenser": (8, [2]),
    "co": (5, [3]),
    "draft": (4, [2, 3, 4, 5]),
    "abs": (4, [3, 4, 5]),
}
SIZES = ("-1k", "-10k", "")


def cells(columns, rows, scale=1.0):
    """Reads printed rows: their columns are (suffix of the row's name, recipe, measure)."""
    return {
        (f"{name}{suffix}", test, measure): float(cell) / scale
        for name, printed in rows.items()
        for (suffix, test, measure), cell in zip(columns, printed.split(), strict=True)
        if cell != "-"
    }


def by_size(*measures, sizes=SIZES):
    return [(size, test, measure) for test, measure in measures for size in sizes]


def in_full(*measures):
    return by_size(*measures, sizes=[""])


STSB = by_size(("encoders.stsb", "Spearman"), sizes=("-500", "-1k", ""))
SECTIONS = by_size(("encoders.sections", "Accuracy"))
# With few rows, the number of epochs is chosen.
STSB_FEW = [*by_size(("encoders.stsb_few", "Spearman"), sizes=("-500", "-1k")), STSB[-1]]
SECTIONS_FEW = [*by_size(("encoders.sections_few", "Accuracy"), sizes=SIZES[:2]), SECTIONS[-1]]
TOP = ("Accuracy@20", "Accuracy@100")
QA = [(test, top) for test in ("qa.nq", "qa.trivia") for top in TOP]
DEV = ("marco.dev", "MRR@10"), ("marco.dev", "Recall@1000")
DEV_AND_DL19 = *DEV, ("marco.dl19", "nDCG@10")
DEV_AT_100 = DEV[0], ("marco.dev", "Recall@100"), DEV[1]
DOCUMENTS = ("documents.dev", "MRR@100"), ("documents.dl19", "nDCG@10")
NQ_AND_TRIVIA_FROM_5 = [
    (test, f"Accuracy@{k}") for test in ("qa.nq", "qa.trivia") for k in (5, 20, 100)
]
BY_MODEL = [
    ("", test, measure)
    for test, measure in (
        ("adaptive.dev", "eval_loss"),
        ("adaptive.dev", "eval_MRR@100"),
        ("adaptive.full", "MRR@100"),
    )
]
BM25_ON_QA = {"bm25": "59.1 73.7 66.9 76.7"}
LOW_QA = {
    "bert": "66.6 75.9 78.4 79.4 84.6 85.4 68.0 75.0 79.3 78.7 82.3 84.9",
    "condenser": "72.7 78.3 80.1 82.5 85.8 86.8 74.3 78.9 81.0 82.2 85.2 86.1",
}
PRINTED = {
    "condenser/table1": cells(
        STSB_FEW, {"bert": "68.6 71.4 82.5", "nli": "76.4 76.8 84.7", "condenser": "76.6 77.8 85.6"}
    ),
    "condenser/table2": cells(
        SECTIONS_FEW, {"bert": "0.72 0.75 0.80", "condenser": "0.73 0.76 0.80"}
    ),
    "condenser/table3": cells(in_full(*QA), BM25_ON_QA, 100)
    | cells(
        by_size(*QA),
        {**LOW_QA, "ict": "72.9 78.4 80.9 83.7 85.9 87.4 73.4 77.9 79.7 82.3 84.8 85.3"},
        100,
    ),
    "condenser/table4": cells(
        in_full(*QA),
        {
            **BM25_ON_QA,
            "dpr": "78.4 85.4 79.3 84.9",
            "dpr-mined": "81.3 87.3 80.7 85.8",
            "condenser": "83.2 88.4 81.9 86.2",
        },
        100,
    ),
    "condenser/table5": cells(in_full(*DEV_AND_DL19), {"bm25": "0.184 0.853 0.506"})
    | cells(
        by_size(*DEV_AND_DL19),
        {
            "bert": "0.156 0.228 0.309 0.786 0.878 0.938 0.424 0.555 0.612",
            "ict": "0.175 0.251 0.307 0.847 0.905 0.945 0.519 0.585 0.624",
            "condenser": "0.192 0.258 0.338 0.852 0.914 0.961 0.530 0.591 0.648",
        },
    ),
    "condenser/table6": cells(
        in_full(*DEV_AND_DL19),
        {
            "bm25": "0.189 0.853 0.506",
            "bert": "0.309 0.938 0.612",
            "bert-mined": "0.334 0.955 0.656",
            "condenser": "0.366 0.974 0.698",
        },
    ),
    "condenser/table7": cells(
        in_full(DEV[0]),
        {
            "cross-batch": "0.333",
            "hard-negatives": "0.260",
            "denoised": "0.364",
            "condenser": "0.338",
            "condenser-mined": "0.366",
        },
    ),
    "condenser/table8": cells(
        in_full(*DOCUMENTS),
        {
            "bm25": "0.230 0.519",
            "bert": "0.340 0.546",
            "condenser": "0.375 0.569",
            "condenser-mined": "0.404 0.597",
        },
    ),
    "co/table1": cells(
        in_full(*DEV, *NQ_AND_TRIVIA_FROM_5),
        {
            "bm25": "18.7 85.7 - 59.1 73.7 - 66.9 76.7",
            "dpr": "- - - 74.4 85.3 - 79.3 84.9",
            "condenser": "36.6 97.4 - 83.2 88.4 - 81.9 86.2",
            "cocondenser": "38.2 98.4 75.8 84.3 89.0 76.8 83.2 87.3",
        },
        100,
    ),
    "co/table2": {},
    "co/table3": cells(
        in_full(*DEV_AT_100),
        {
            "bert-hard": "33.4 85.1 95.4",
            "cocondenser-hard": "38.2 91.3 98.4",
            "cocondenser-soft": "39.1 91.9 98.6",
        },
        100,
    ),
    "co/table4": cells(
        in_full(*DEV_AT_100),
        {"condenser": "36.6 89.4 97.4", "contrastive": "36.7 90.3 98.0", "both": "38.2 91.3 98.4"},
        100,
    ),
    "co/table5": cells(
        in_full(*DEV),
        {
            "cross-batch": "33.3 -",
            "hard-negatives": "26.0 -",
            "denoised": "36.4 -",
            "condenser-round1": "33.8 96.1",
            "condenser": "36.6 97.4",
            "cocondenser-round1": "35.7 97.8",
            "cocondenser": "38.2 98.4",
        },
        100,
    ),
    "draft/table1": cells(STSB, {"bert": "68.6 71.4 82.5", "condenser": "76.6 77.8 85.6"}),
    "draft/table2": cells(SECTIONS, {"bert": "0.72 0.75 0.80", "condenser": "0.73 0.76 0.80"}),
    "draft/table3": cells(in_full(*QA), BM25_ON_QA, 100) | cells(by_size(*QA), LOW_QA, 100),
    "draft/table4": cells(in_full(*DEV_AT_100), {"bm25": "0.184 0.657 0.853"})
    | cells(
        by_size(*DEV_AT_100),
        {
            "bert": "0.146 0.221 0.305 0.539 0.688 0.810 0.749 0.860 0.933",
            "condenser": "0.175 0.251 0.320 0.621 0.737 0.829 0.820 0.898 0.944",
            "continued": "0.193 0.265 0.335 0.653 0.760 0.857 0.842 0.911 0.958",
        },
    ),
    "abs/table1": cells(
        BY_MODEL,
        {
            "bert": "4.640 0.422 0.137",
            "roberta": "3.491 0.494 0.198",
            "condenser": "2.376 0.592 0.253",
        },
    ),
    "abs/table2": {},  # an image
    "abs/table3": cells(
        BY_MODEL,
        {
            "bert": "2.514 0.503 0.186",
            "roberta": "2.256 0.592 0.235",
            "condenser": "1.946 0.627 0.281",
        },
    ),
    "abs/table4": cells(
        in_full(("adaptive.dev", "eval_MRR@100"), ("adaptive.full", "MRR@100")),
        {
            "sequential": "0.561 0.200",
            "random": "0.577 0.177",
            "bm25": "0.623 0.270",
            "encode": "0.629 0.281",
            "beam": "0.611 0.250",
        },
    ),
}


def published(table):
    """Returns the figures of a table by row, recipe and measure."""
    return {
        (name, test, measure): figure
        for name, row in table["rows"].items()
        for test, figures in row["published"].items()
        for measure, figure in figures.items()
    }


def test_every_table_and_every_figure_of_measurements_has_its_number():
    for paper, (n_tables, figures) in NUMBERS.items():
        wanted = [f"table{i}" for i in range(1, n_tables + 1)] + [f"figure{i}" for i in figures]
        listed = [name for name in FILES[paper]["tables"] if name.startswith(("table", "figure"))]
        assert listed == wanted
    assert NUMBERS.keys() == FILES.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_figures_are_those_that_the_paper_prints(name):
    found = {key: value for key, value in published(TABLES[name]).items() if value is not None}
    assert found == pytest.approx(PRINTED[name], rel=1e-12)


def test_every_printed_table_is_typed_here():
    tables = [f"{paper}/{name}" for paper, file in FILES.items() for name in file["tables"]]
    assert {name for name in tables if "/table" in name} == PRINTED.keys()


def test_a_figure_is_missing_only_where_a_row_is_ours_or_the_table_says_why():
    for table in TABLES.values():
        for name, row in table["rows"].items():
            figures = [
                figure for measures in figures_of(row).values() for figure in measures.values()
            ]
            if None in figures:
                assert "ours" in row or "why" in table, (table["title"], name)
            if "ours" in row:
                assert set(figures) == {None}, (table["title"], name)
        assert table["title"]
        assert table["tolerance"]


def test_what_is_left_out_has_a_reason():
    for content in [*FILES.values(), *TABLES.values()]:
        for what, reason in content.get("not_repeated", {}).items():
            assert what
            assert reason
    for paper in FILES.values():
        assert paper["read"]


def test_losses_are_compared_after_hard_negatives():
    """Gao & Callan, table 4: its first and last rows are rows of table 5 with hard negatives."""
    table4, table5 = published(TABLES["co/table4"]), published(TABLES["co/table5"])
    for row4, row5 in (("condenser", "condenser"), ("both", "cocondenser")):
        for measure in ("MRR@10", "Recall@1000"):
            assert table4[row4, "marco.dev", measure] == table5[row5, "marco.dev", measure]
    assert TABLES["co/table4"]["recipe"] == "marco.round2"
    of_table = TABLES["co/table4"]["rows"]
    models = [of_table[name]["with"]["model"] for name in ("condenser", "contrastive", "both")]
    assert models == ["condenser", "contrastive_marco", "cocondenser_marco"]


def test_documents_are_ranked_without_mined_negatives_but_in_the_last_row():
    table = TABLES["condenser/table8"]
    recipes = [row.get("recipe", table["recipe"]) for row in table["rows"].values()]
    assert recipes == ["documents.bm25", *["documents.round1"] * 2, "documents.round2"]


def test_a_figure_of_several_models_draws_the_rows_of_its_table():
    """The draft's figures 2 to 4 show what its tables 1, 3 and 4 print, by size."""
    for figure, table, test in (
        ("figure2", "table1", "encoders.stsb"),
        ("figure3", "table3", "qa.nq"),
        ("figure4", "table4", "marco.dev"),
    ):
        (drawn, *_) = rows.goals(PAPERS, f"draft/{figure}")
        content = TABLES[f"draft/{table}"]["rows"]
        printed = [
            goal.step
            for goal in rows.goals(PAPERS, f"draft/{table}")
            if goal.test == test and goal.row != "bm25" and "ours" not in content[goal.row]
        ]
        assert list(drawn.step.needs) == printed


def last_command(table, row):
    """Returns the words of the command that makes what a row measures."""
    *_, step = rows.steps(PAPERS, table, row).values()
    return step.commands[-1]


def test_neighborhoods_are_those_of_round_2_in_round_1():
    """Gao & Callan, equation 17 and figure 3: n is 50 and 100, of MS MARCO's dev queries."""
    for row, model in (("bert", "bert"), ("cocondenser", "cocondenser_marco")):
        words = last_command("co/figure3", row)
        flags = neighborhood.make_parser().parse_args(words[3:])
        assert flags.n == [50, 100]
        for stage, run in ((1, *flags.stage1), (2, flags.stage2)):
            assert run.name == "dev.small.trec"
            assert run.parent.name.startswith(f"round{stage}")
            assert model in run.parts[2]


def test_soft_labels_are_a_cross_encoders_scores_in_round_2():
    commands = rows.commands_of(PAPERS, [("co/table3", "cocondenser-soft")])
    (taught,) = (words for words in commands if "--config.loss.name=soft_labels" in words)
    assert "--config=configs/finetune.py:marco_round2" in taught
    labels = next(word for word in taught if word.startswith("--config.loss.teacher_run="))
    negatives = next(word for word in taught if word.startswith("--config.data.negatives_run="))
    (scored,) = (words for words in commands if "--with_positives" in words)
    assert scored[:2] == ["cocondenser", "rerank"]
    assert labels.replace("--config.loss.teacher_run", "--run_out") in scored
    assert negatives.replace("--config.data.negatives_run", "--run") in scored
    # What has no score teaches nothing.
    drawn = load_config(
        "configs/finetune.py:marco_round2", tasks=FINE_TUNING, complete=False, overrides=()
    )
    assert f"--depth={drawn.data.negatives_depth}" in scored


def test_ten_epochs_of_losses_are_drawn_logarithmically():
    """The draft, figure 5: about 60,000 questions (5.3) in batches of 128."""
    flags = curves.make_parser().parse_args(last_command("draft/figure5", "loss")[3:])
    assert flags.until == round(10 * 60000 / 128)
    assert flags.log_y
    assert [name for name, _ in flags.run] == ["BERT", "BERT + CD"]
