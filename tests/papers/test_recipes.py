"""Recipes of the papers: epochs, batches, negatives and who mined them, as the papers have them."""

import fnmatch
from pathlib import Path

import pytest

from cocondenser_jax.settings import FINE_TUNING, load_config
from papers import sentences
from papers.reproduce import PAPERS
from papers.tables import load_tables
from tests.papers.rows import FOLDERS, flags, goals, rows_of, steps, steps_of

# By --workdir: epochs, rows of a batch, rate, negatives of a query (none: sentences).
# Condenser A.1, its tables' sizes, and section 4.4; coCondenser 4.2.1; the draft 5.2; the study
# 4.3; Qu et al. (arXiv 2010.08191), whose batches Condenser's table 7 prints.
SETTINGS = {
    "nli/*": (1, 16, 2e-5, None),
    "stsb/*-0-4": (4, 16, 2e-5, None),
    "stsb/*-500-4": (4, 16, 2e-5, None),
    "stsb/*-1000-4": (4, 16, 2e-5, None),
    "stsb/*-8": (8, 16, 2e-5, None),
    "sections/*-0-1": (1, 16, 2e-5, None),
    "sections/*0-1": (1, 16, 2e-5, None),
    "sections/*0-4": (4, 16, 2e-5, None),
    "sections/*0-8": (8, 16, 2e-5, None),
    "msmarco/*-0/round1-3": (3, 8, 5e-6, 7),
    "msmarco-untitled/*-0/round1-3": (3, 8, 5e-6, 7),
    "msmarco-untitled/*000/round1-40": (40, 8, 5e-6, 7),
    "msmarco-untitled/*-0/projected": (3, 8, 5e-6, 7),
    "msmarco/*000/round1-5": (5, 8, 5e-6, 7),
    "msmarco/*000/round1-10": (10, 8, 5e-6, 7),
    "msmarco/*000/round1-40": (40, 8, 5e-6, 7),
    "msmarco/*-0/round2": (3, 8, 5e-6, 7),
    "msmarco/*-0/soft": (3, 8, 5e-6, 7),
    "msmarco-docs/*/round[12]": (3, 8, 5e-6, 7),
    "qa/*/round1": (40, 128, 1e-5, 1),
    "qa/*/round2": (40, 128, 1e-5, 1),
    "qa/nq/*/round2-dpr": (20, 128, 1e-5, 1),  # of two files in one
    "msmarco/*-rocketqa/cross-batch": (40, 8192, 3e-5, 0),
    "msmarco/*-rocketqa/hard": (10, 4096, 1e-5, 4),
    "msmarco/*-rocketqa/denoised": (10, 4096, 1e-5, 4),
    "abs/*-10000-*": (15, 8, 5e-6, 0),
    "abs/*-100000-*": (15, 5, 5e-6, 0),
}
CROSS_ENCODERS = ["*/judge", "*-reranker*", "msmarco/*-binary"]
# Chosen for BERT (A.1): few pairs, triplets and queries.
CHOICES = {
    "stsb/*-best": [4, 8],
    "sections/*-best": [1, 4, 8],
    "msmarco/*/round1-best*": [5, 10, 40],
}


STEPS = steps_of(PAPERS, rows_of(PAPERS))


def config_of(command):
    overrides = [word for word in command if word.startswith("--config.")]
    return load_config(dict(flags(command))["--config"], overrides, tasks=FINE_TUNING)


def trainings():
    """Yields every command of fine-tuning, after its --workdir or --out below W."""
    for step in STEPS.values():
        for command in step.commands:
            if is_fine_tuning(command) or command[2:4] == ["papers.sentences", "train"]:
                found = dict(flags(command))
                workdir = found.get("--workdir") or found["--out"]
                yield Path(workdir).relative_to("W").as_posix(), command


def is_fine_tuning(command):
    return command[1] == "finetune" or command[2] in ("papers.abs_beam", "papers.abs_rank")


def settings_of(command):
    """Returns epochs, rows of a batch, rate and negatives of a command of fine-tuning."""
    if is_fine_tuning(command):
        config = config_of(command)
        values = (config.train.epochs, config.data.batch_size, config.optimizer.learning_rate)
        return (*values, config.data.negatives_per_query)
    given = sentences.make_parser().parse_args(command[3:])
    epochs = given.epochs or sentences.TASKS[given.task].epochs
    return epochs, sentences.BATCH_SIZE, sentences.LEARNING_RATE, None


def test_epochs_batches_and_negatives_are_the_papers():
    seen = set()
    for workdir, command in trainings():
        if any(fnmatch.fnmatch(workdir, pattern) for pattern in [*CROSS_ENCODERS, *CHOICES]):
            continue
        pattern = next(p for p in SETTINGS if fnmatch.fnmatch(workdir, p))
        assert settings_of(command) == SETTINGS[pattern], workdir
        seen.add(pattern)
    assert seen == SETTINGS.keys()


def test_the_study_ranks_the_candidates_of_each_dev_query():
    """Its section 4.1: a relevant passage among 99 of the query's own top 1,000."""
    trained = [command for workdir, command in trainings() if workdir.startswith("abs/")]
    assert trained
    for command in trained:
        given = dict(flags(command))
        assert given["--config.eval.split"] == "dev"
        assert given["--config.data.folder"] == "W/abs/splits"
        assert given["--config.eval.run"] == "W/abs/splits/dev.trec"
    (made,) = STEPS[Path("W/abs/splits")].commands
    assert dict(flags(made))["--data"] == "D/msmarco-untitled"  # it names no titles
    (ranked,) = STEPS[Path(dict(flags(made))["--run"])].commands
    assert {"--split=dev.small", "--depth=1000"} <= set(ranked)


def test_pre_training_goes_on_as_it_began_but_for_the_rate():
    """The draft, 5.4: the set-up is inherited, the rate 5e-6."""
    settings = {}
    for step in STEPS.values():
        for command in step.commands:
            found = dict(flags(command))
            if command[1] == "corpus":
                assert found["--short_span_prob"] == "0.1"
            if command[1] == "pretrain" and found["--config"] == "configs/condenser.py":
                overrides = [word for word in command if word.startswith("--config.")]
                config = load_config(found["--config"], overrides)
                settings[Path(found["--workdir"]).stem] = (
                    config.train.epochs, config.data.batch_size, config.optimizer.learning_rate
                )  # fmt: skip
    assert settings["condenser"] == settings["mlm"] == (8, 1024, 1e-4)
    assert settings["condenser-passages"] == settings["mlm-passages"] == (8, 1024, 5e-6)


def test_second_rounds_are_as_long_as_the_authors():
    """Their commands: 2 epochs (MS MARCO) or 20 (NQ) of BM25's file and that of mined negatives."""
    lengths = {
        "msmarco/*/round2": (532_761, 2 * (400_000 + 500_000) / 8),
        "qa/trivia/*/round2": (60_413, 20 * 2 * 60_413 / 128),
        "qa/nq/*/round2-dpr": (58_880 + 69_639, 20 * (58_880 + 69_639) / 128),
    }
    for workdir, command in trainings():
        for pattern, (rows, n_steps) in lengths.items():
            if fnmatch.fnmatch(workdir, pattern):
                config = config_of(command)
                made = config.train.epochs * rows / config.data.batch_size
                assert made == pytest.approx(n_steps, rel=0.12)


def test_few_rows_are_trained_as_long_as_is_best_for_bert():
    seen = set()
    for path, step in STEPS.items():
        assert bool(step.choices) == ("$EPOCHS" in str(step.commands))
        if not step.choices:
            continue
        (chosen,) = step.choices
        (pattern,) = [p for p in CHOICES if fnmatch.fnmatch(str(path), f"W/{p}")]
        assert list(chosen.tried) == CHOICES[pattern]
        for epochs, one in chosen.tried.items():
            # Of BERT, of the same number of rows, on what is not tested.
            file = FOLDERS.result(one)
            name = path.parts[2].split("-")[1]
            assert file.parts[1:3] in {
                ("stsb", f"bert-{name}-{epochs}.dev.json"),
                ("sections", f"bert-{name}-{epochs}.dev.json"),
                ("msmarco", f"bert-{name}"),
            }
            words = " ".join(STEPS[file].commands[0])
            assert any(held in words for held in ("sts-dev", "validation", "qrels.held"))
        seen.add(pattern)
    assert seen == CHOICES.keys()


# ---- the negatives of second rounds ----

CONDENSER = "condenser-0/round1"


@pytest.mark.parametrize(
    ("table", "row", "retrievers"),
    [
        ("condenser/table6", "bert-mined", {f"msmarco/{CONDENSER}-3"}),
        ("condenser/table6", "condenser", {f"msmarco/{CONDENSER}-3"}),
        ("condenser/table8", "condenser-mined", {"msmarco-docs/condenser/round1"}),
        ("condenser/table4", "dpr-mined", {f"qa/trivia/{CONDENSER}"}),
        ("condenser/table4", "condenser", {f"qa/trivia/{CONDENSER}"}),
        ("co/table3", "bert-hard", {f"msmarco/{CONDENSER}-3"}),
        ("co/table4", "contrastive", {"msmarco/contrastive_marco-0/round1-3"}),
        (
            "co/table1",
            "cocondenser",
            {
                "msmarco/cocondenser_marco-0/round1-3",
                "qa/nq/cocondenser_wikipedia-0/round1",
                "qa/trivia/cocondenser_wikipedia-0/round1",
            },
        ),
    ],
)
def test_mined_negatives_complement_those_of_bm25(table, row, retrievers):
    mined = set()
    for path, step in steps(PAPERS, table, row).items():
        for command in step.commands:
            if command[1] == "mine":
                found = flags(command)
                given = dict(found)
                if given["--run"] == "W/msmarco/triples.trec":
                    assert given["--run_out"] == "W/msmarco/negatives.trec"
                    continue
                lexical, dense = (value for flag, value in found if flag == "--run")
                data = given["--data"]
                of_qa = data in ("W/qa/nq/train", "W/qa/trivia/train")
                assert of_qa == ("qa/" in dense)
                others = ("W/msmarco/negatives.trec", "W/msmarco-docs/bm25.train.trec")
                assert lexical in ((f"{data}/negatives.trec",) if of_qa else others)
                assert given["--split"] == "train"
                assert Path(dense).stem == ("qa_train" if of_qa else "train")
                dropped = [dict(flags(other)) for other in step.commands if "drop" in other]
                kept = {"--run": given["--run_out"], "--corpus": data, "--out": str(path)}
                kept["--answers"] = f"{data}/answers.jsonl"
                assert dropped == ([kept] if of_qa else [])
                mined.add(Path(dense).parent.relative_to("W").as_posix())
    assert mined == retrievers


def test_natural_questions_has_the_negatives_that_dpr_published():
    for row in ("dpr-mined", "condenser"):
        of_row = steps(PAPERS, "condenser/table4", row)
        (command,) = [
            command
            for step in of_row.values()
            for command in step.commands
            if "round2-dpr" in str(command) and command[1] == "finetune"
        ]
        given = dict(flags(command))
        assert given["--config.data.folder"] == "W/qa/nq/hard"
        assert given["--config.data.negatives_run"] == "W/qa/nq/hard/negatives.trec"
        (made,) = of_row[Path("W/qa/nq/hard")].commands
        files = [Path(value).name for flag, value in flags(made) if flag == "--questions"]
        assert files == ["biencoder-nq-train.json.gz", "biencoder-nq-adv-hn-train.json.gz"]


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        ("condenser/table5", ("D/msmarco-untitled", "0.9", "0.4")),
        ("condenser/table6", ("D/msmarco-untitled", "0.9", "0.4")),
        ("draft/table4", ("D/msmarco-untitled", "0.9", "0.4")),
        ("co/table1", ("D/msmarco-untitled", "0.82", "0.68")),
    ],
)
def test_rows_of_bm25_are_those_of_anserini(table, settings):
    """0.184 and 0.853 with the first, 0.187 and 0.857 with the second, of untitled passages."""
    commands = [c for step in steps(PAPERS, table, "bm25").values() for c in step.commands]
    found = [dict(flags(command)) for command in commands if command[1] == "bm25"]
    marco = [given for given in found if "msmarco" in given["--data"]]
    assert {(g["--data"], g["--k1"], g["--b"]) for g in marco} == {settings}


@pytest.mark.parametrize(
    ("tables", "titled"),
    [
        (("condenser/table5", "condenser/table6", "condenser/table7"), True),
        (("co/table1", "co/table3", "co/table4", "co/table5"), True),
        (("draft/table4", "draft/figure4", "draft/equation6"), False),
        (("abs/table1", "abs/table3", "abs/table4"), False),
    ],
)
def test_passages_have_titles_where_the_paper_names_rocketqas_corpus(tables, titled):
    """Condenser (4.4) and coCondenser (4.2.1) do; the draft and the study name MS MARCO alone."""
    read = set()
    for table in tables:
        for step in steps(PAPERS, table).values():
            for command in step.commands:
                given = dict(flags(command))
                folder = given.get("--config.data.folder", given.get("--corpus", ""))
                if command[1] in ("finetune", "encode") and "msmarco" in folder:
                    read.add(folder)
                    separator = given.get("--config.model.title_separator")
                    is_retriever = "cross_encoder" not in given.get("--config", "cross_encoder")
                    assert separator == ("[SEP]" if titled and is_retriever else None), command
                if command[1] == "pretrain" and "passages" in given["--workdir"]:
                    assert given["--config.data.store"] == "W/stores/msmarco-untitled"
    assert read <= {"D/msmarco" if titled else "D/msmarco-untitled"}


def test_questions_have_the_gradient_cache_and_titles():
    """DPR with the cache (Condenser, 4.3; coCondenser, 4.2.1), titles and texts as a pair."""
    for workdir, command in trainings():
        if workdir.startswith("qa/"):
            config = config_of(command)
            assert config.loss.chunk_size == 32
            assert config.model.title_separator == "[SEP]"


def test_a_result_has_one_published_figure():
    """Two figures for one file of results must agree, but for those that a table's note names."""
    figures = {}
    for table, row in rows_of(PAPERS):
        tolerance = load_tables(PAPERS.folder)[table]["tolerance"]
        for goal in goals(PAPERS, table, row):
            for metric, figure in goal.figures.items():
                if figure is not None:
                    found = figures.setdefault((goal.step.out, metric), [])
                    found.append((figure, tolerance, table))
    apart = {
        key: sorted({figure for figure, _, _ in found})
        for key, found in figures.items()
        if max(found)[0] - min(found)[0] > max(tolerance for _, tolerance, _ in found) + 1e-9
    }
    dpr = "$WORK/qa/nq/bert-0/round1/qa_questions.trec.json"
    assert apart == {(dpr, "Accuracy@20"): [0.744, 0.784]}
    assert "0.744" in load_tables(PAPERS.folder)["co/table1"]["note"]
    lexical = figures["$WORK/msmarco/bm25-0.9-0.4.dev.small.trec.json", "MRR@10"]
    assert {figure for figure, _, _ in lexical} == {0.184, 0.189}
    assert (
        "0.189 here and 0.184 in table 5" in load_tables(PAPERS.folder)["condenser/table6"]["note"]
    )


@pytest.mark.parametrize("table", ["co/table1", "co/table4", "co/table5"])
def test_tables_of_cocondenser_say_what_mlm_weighs(table):
    note = load_tables(PAPERS.folder)[table]["note"]
    assert "train.mlm_weight=2" in note
    assert "mlm_reduction=span_sum" in note


def test_the_cross_encoders_of_an_ensemble_have_seeds_of_their_own():
    commands = [
        c for step in steps(PAPERS, "co/table2", "ensemble").values() for c in step.commands
    ]
    tuned = [command for command in commands if command[1] == "finetune"]
    judges = [command for command in tuned if "-reranker" in dict(flags(command))["--workdir"]]
    assert sorted(config_of(command).seed for command in judges) == [42, 43, 44]


def test_negatives_are_denoised_by_probabilities():
    """Qu et al.: the cross-encoder of `--denoise_run` is trained to tell one from the other."""
    judges = [config_of(command) for workdir, command in trainings() if workdir.endswith("-binary")]
    assert judges
    assert {config.loss.name for config in judges} == {"binary"}


def test_sentences_are_represented_by_cls():
    """Condenser and its baselines, also the one that is trained on NLI first."""
    trained = [c for _, c in trainings() if c[2:4] == ["papers.sentences", "train"]]
    assert {dict(flags(command))["--task"] for command in trained} == {"stsb", "sections", "nli"}
    assert {dict(flags(command))["--pooling"] for command in trained} == {"cls"}


def test_what_round_2_finds_is_reranked():
    """By a cross-encoder that has such runs to learn from."""
    commands = [
        c for step in steps(PAPERS, "co/table2", "reranked").values() for c in step.commands
    ]
    (ranked,) = [dict(flags(c))["--run"] for c in commands if c[1] == "rerank"]
    negatives = [
        dict(flags(c))["--config.data.negatives_run"]
        for c in commands
        if c[1] == "finetune" and "-reranker" in dict(flags(c))["--workdir"]
    ]
    assert [Path(run).parent.name for run in (ranked, *negatives)] == ["round2"] * 2
