"""Training rows: pairs, the draw of negatives, numbered judgments."""

import functools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from transformers import TrainerState

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.train.bi_encoder import fill_row
from cocondenser_jax.retriever.train.training_data import (
    DataSettings,
    Epoch,
    EpochCallback,
    RowCollator,
    TrainingData,
    draw_negatives,
    read_training,
    sample,
    to_judgments,
    training_pairs,
)
from tests.lines import whole
from tests.world import write_qrels, write_records


def test_samples_grow_with_their_size_and_follow_the_seed():
    draw = functools.partial(sample, setting="config.data.train_queries", what="the queries")
    samples = [draw(n, 200, 3) for n in (10, 50, 200)]
    assert [len(rows) for rows in samples] == [10, 50, 200]
    assert set(samples[0]) < set(samples[1]) < set(samples[2])
    assert samples[2] == [*range(200)] == draw(0, 200, 3)
    assert samples[1] == sorted(samples[1]) == draw(50, 200, 3)
    # Two samples of 50 of 200 by chance share 12.5, with a standard deviation of 2.7.
    assert len(set(samples[1]) & set(draw(50, 200, 4))) < 30
    for n in (-1, 201):
        with pytest.raises(
            UserError,
            match=whole(
                f"config.data.train_queries is {n}:"
                " expected 1 to 200, the queries, or 0 for all of them"
            ),
        ):
            draw(n, 200, 3)


def make_data(candidates=(), n_negatives=0, seed=0, judgments=None, passages=None):
    qrels = {"q1": {"d30": 1}, "q2": {"d31": 1}}
    return TrainingData(
        pairs=training_pairs(qrels),
        judgments=judgments or to_judgments(qrels, teacher=None),
        queries={"q1": "one", "q2": "two"},
        passages=passages or {f"d{i}": f"text {i}" for i in range(50)},
        candidates={query: " ".join(names) for query, names in dict(candidates).items()},
        n_negatives=n_negatives,
        seed=seed,
        checksums={},
    )


def rows(data, *pairs, epoch=0):
    pairs = pairs or (("q1", "d30"), ("q2", "d31"))
    plain = SimpleNamespace(valid_label_columns=[])
    collator = RowCollator(data, Epoch(epoch), fill_row, plain)
    return collator.fill({"query_id": q, "positive_id": p} for q, p in pairs)


def test_the_epoch_of_the_draw_is_the_trainers():
    data = make_data({"q1": ["d1", "d2"], "q2": ["d3"]}, 1)
    drawn = set()
    epoch = Epoch()
    collator = RowCollator(data, epoch, fill_row, SimpleNamespace(valid_label_columns=[]))
    for number in range(9):
        EpochCallback(epoch).on_epoch_begin(None, TrainerState(epoch=number + 0.5), None)
        assert epoch.number == number
        drawn.add(collator.fill(data.pairs)[0]["negative_1"])
    assert drawn == {"text 1", "text 2"}


def test_pairs_are_the_relevant_judgments():
    pairs = training_pairs({"q1": {"a": 2, "c": 1}, "q2": {"b": 1}})
    assert pairs.to_dict() == {"query_id": ["q1", "q1", "q2"], "positive_id": ["a", "c", "b"]}


def test_negatives_are_drawn_anew_every_epoch_and_only_depend_on_the_row():
    candidates = {"q1": [f"d{i}" for i in range(10)], "q2": [f"d{i}" for i in range(10, 20)]}
    data, epochs = make_data(candidates, 3), []
    first = rows(data)
    for epoch in range(20):
        one, two = rows(data, epoch=epoch)
        assert (one["query"], one["positive"]) == ("one", "text 30")
        assert (two["query"], two["positive"]) == ("two", "text 31")
        assert rows(data, ("q2", "d31"), epoch=epoch) == [two]
        epochs.append({one[f"negative_{i}"] for i in (1, 2, 3)})
        assert len(epochs[-1]) == 3
        assert epochs[-1] <= {f"text {i}" for i in range(10)}
    assert set.union(*epochs) == {f"text {i}" for i in range(10)}
    assert first == rows(make_data(candidates, 3))
    assert first != rows(make_data(candidates, 3, seed=1))


def test_each_positive_of_a_query_has_negatives_of_its_own():
    data = make_data({"q1": [f"d{i}" for i in range(10)]}, 3)
    drawn = [draw_negatives(data, epoch, "q1", p) for p in ("d30", "d31") for epoch in range(3)]
    assert len({tuple(names) for names in drawn}) == 6


def test_few_candidates_come_twice():
    (row,) = rows(make_data({"q1": ["d1"]}, 4), ("q1", "d30"))
    assert {row[f"negative_{i}"] for i in range(1, 5)} == {"text 1"}


def test_rows_without_negatives():
    (row,) = rows(make_data(), ("q1", "d30"))
    assert row == {"query": "one", "positive": "text 30", "label": [0, 1]}


def test_a_query_that_is_a_passage_is_not_its_negative(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    qrels = {"d1": {"d2": 1}, "d2": {"d1": 1}, "d3": {"d3": 1, "d4": 1}, "q5": {"d5": 1}}
    write_qrels(folder / "qrels" / "train.tsv", qrels)
    texts = {passage.id: passage.text for passage in read_corpus(beir)} | {"q5": "x"}
    write_records(folder / "queries.jsonl", [{"_id": q, "text": texts[q]} for q in qrels])
    run = {query: {name: 9.0 - i for i, name in enumerate([query, "d7", "d8"])} for query in qrels}
    run["q5"].pop("q5")
    write_run(tmp_path / "run.trec", run)
    settings = DataSettings(
        folder=folder,
        split="train",
        train_queries=0,
        negatives_run=str(tmp_path / "run.trec"),
        negatives_per_query=2,
        negatives_depth=3,
        seed=0,
    )
    data = read_training(settings, tmp_path / "stored")
    candidates = {query: names.split() for query, names in data.candidates.items()}
    assert candidates == {query: ["d7", "d8"] for query in qrels}


def test_a_passage_with_the_text_of_a_relevant_one_is_no_negative(beir, tmp_path, caplog):
    folder = shutil.copytree(beir, tmp_path / "data")
    first = next(p for p in read_corpus(beir) if p.id == "d1")
    with (folder / "corpus.jsonl").open("a") as file:
        copy = {"_id": "copy", "title": first.title, "text": f" {first.text.upper()} "}
        file.write(json.dumps(copy) + "\n")
    qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    write_qrels(folder / "qrels" / "train.tsv", qrels)
    write_records(folder / "queries.jsonl", [{"_id": q, "text": "x"} for q in qrels])
    run = {query: {"copy": 3.0, "d1": 2.0, "d7": 1.0} for query in qrels}
    write_run(tmp_path / "run.trec", run)
    settings = DataSettings(folder, "train", 0, str(tmp_path / "run.trec"), 1, 3, 0)
    data = read_training(settings, tmp_path / "stored")
    candidates = {query: names.split() for query, names in data.candidates.items()}
    assert candidates == {"q1": ["d7"], "q2": ["copy", "d1", "d7"]}
    repeat = "repeat the text of a query's relevant passage: they are not its negatives"
    assert f"1 passages {repeat}" in caplog.messages
    # Nor is it one where it is in the group of another query of the step.
    relevant = data.judgments.relevant.toarray()
    of_query, of_passage = data.judgments.queries, data.judgments.passages
    assert relevant[of_query["q1"], of_passage["copy"]]
    assert not relevant[of_query["q2"], of_passage["copy"]]
    pairs = {(pair["query_id"], pair["positive_id"]) for pair in data.pairs}
    assert pairs == {("q1", "d1"), ("q2", "d2")}


def test_a_query_without_negatives_draws_none_that_is_relevant(beir, tmp_path, caplog):
    """One that the run lacks, and one whose results are all relevant: of a sample."""
    folder = shutil.copytree(beir, tmp_path / "data")
    first = next(p for p in read_corpus(beir) if p.id == "d1")
    names = [p.id for p in read_corpus(beir)]
    with (folder / "corpus.jsonl").open("a") as file:
        copy = {"_id": "copy", "title": first.title, "text": first.text}
        file.write(json.dumps(copy) + "\n")
    qrels = {"q1": {"d1": 1, "d2": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}, "d4": {"d5": 1}}
    write_qrels(folder / "qrels" / "train.tsv", qrels)
    write_records(folder / "queries.jsonl", [{"_id": q, "text": "x"} for q in qrels])
    write_run(tmp_path / "run.trec", {"q2": {"d2": 1.0}, "q3": {"d8": 1.0}})
    settings = DataSettings(folder, "train", 0, str(tmp_path / "run.trec"), 1, 100, 0)
    data = read_training(settings, tmp_path / "stored")
    found = {query: pool.split() for query, pool in data.candidates.items()}
    assert found == {
        "q1": [name for name in names if name not in ("d1", "d2")],
        "q2": [name for name in [*names, "copy"] if name != "d2"],
        "q3": ["d8"],
        "d4": [name for name in [*names, "copy"] if name not in ("d4", "d5")],
    }
    said = (
        f"{settings.negatives_run} has no negative for 3 of 4 queries: they are drawn from a sample"
        " of all passages except relevant ones and their copies"
    )
    assert said in caplog.messages
    # A small pool is as large as the others, and the same for the same seed alone.
    few = [
        read_training(settings._replace(negatives_depth=3, seed=seed), tmp_path / "stored")
        for seed in (0, 0, 1)
    ]
    drawn, again, other = ([data.candidates[q].split() for q in ("q1", "q2", "d4")] for data in few)
    assert [len({*pool}) for pool in drawn] == [3, 3, 3]
    assert all({*pool} <= {*found[q]} for q, pool in zip(("q1", "q2", "d4"), drawn, strict=True))
    assert drawn == again != other
    assert drawn[0] != drawn[1]


def test_each_query_without_negatives_draws_a_sample_of_its_own(tmp_path):
    """Of 200 passages, so that two samples of three are hardly ever the same."""
    qrels = {f"q{i}": {f"d{i}": 1} for i in range(10)}
    write_records(
        tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "text": f"text {i}"} for i in range(200)]
    )
    write_records(tmp_path / "queries.jsonl", [{"_id": q, "text": "x"} for q in qrels])
    write_qrels(tmp_path / "qrels" / "train.tsv", qrels)
    write_run(tmp_path / "run.trec", {"q0": {"d8": 1.0}})
    settings = DataSettings(tmp_path, "train", 0, str(tmp_path / "run.trec"), 1, 3, seed=0)
    candidates = read_training(settings, tmp_path / "stored").candidates
    drawn = {frozenset(candidates[query].split()) for query in [*qrels][1:]}
    assert [len(pool) for pool in drawn] == [3] * 9


@pytest.mark.parametrize("where", ["q1", "q2"])
def test_a_run_of_another_collection_is_refused_whichever_query_shows_it(beir, tmp_path, where):
    folder = shutil.copytree(beir, tmp_path / "data")
    write_qrels(folder / "qrels" / "train.tsv", {"q1": {"d1": 1}, "q2": {"d2": 1}})
    run = tmp_path / "run.trec"
    write_run(run, {"q1": {"d7": 1.0}, "q2": {"d8": 1.0}, where: {"elsewhere": 1.0}})
    settings = DataSettings(folder, "train", 0, str(run), 1, 3, seed=0)
    with pytest.raises(
        UserError,
        match=whole(f"{run} names 1 passages that the data does not have: elsewhere"),
    ):
        read_training(settings, tmp_path / "stored")


def test_judgments_of_a_passage_that_is_not_there_are_refused_by_their_file(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    qrels = folder / "qrels" / "train.tsv"
    write_qrels(qrels, {"q1": {"nowhere": 1}})
    with pytest.raises(
        UserError, match=whole(f"{qrels} names 1 passages that the data does not have: nowhere")
    ):
        read_training(DataSettings(folder, "train", 0, "", 0, 3, seed=0), tmp_path / "stored")


def test_only_relevant_passages_are_trained_on(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    write_qrels(folder / "qrels" / "train.tsv", {"q1": {"d1": 2, "d2": 0}, "q2": {"d3": -1}})
    data = read_training(DataSettings(folder, "train", 0, "", 0, 3, seed=0), tmp_path / "stored")
    assert data.pairs.to_dict() == {"query_id": ["q1"], "positive_id": ["d1"]}


def test_what_is_stored_with_another_separator_is_not_used_again(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    titled = [passage._replace(title=f"of {passage.id}") for passage in read_corpus(beir)]
    records = [{"_id": p.id, "title": p.title, "text": p.text} for p in titled]
    write_records(folder / "corpus.jsonl", records)
    settings = DataSettings(folder, "train", 0, "", 0, 0, seed=0)
    for separator in (" ", "[SEP]", " "):
        data = read_training(settings, tmp_path / "stored", title_separator=separator)
        assert dict(data.passages) == {p.id: f"{p.title}{separator}{p.text}" for p in titled}
    assert len(list((tmp_path / "stored").iterdir())) == 2


def test_what_is_stored_of_files_that_have_changed_is_not_used_again(beir, tmp_path):
    """A kill may leave it before there are settings to compare."""
    folder = shutil.copytree(beir, tmp_path / "data")
    run = tmp_path / "run.trec"
    settings = DataSettings(folder, "train", 0, str(run), 1, 9, seed=0)
    queries, _ = read_split(folder, "train")
    for name, text in (("d7", "one"), ("d8", "one"), ("d8", "two")):
        write_run(run, {query: {name: 1.0} for query in queries})
        texts = {passage.id: f"{text} {passage.id}" for passage in read_corpus(beir)}
        records = [{"_id": name, "text": read} for name, read in texts.items()]
        write_records(folder / "corpus.jsonl", records)
        data = read_training(settings, tmp_path / "stored")
        assert dict(data.passages) == texts
        assert {*data.candidates["q1"].split()} == {name}
    write_run(run, {query: {"d7": 2.0, "d8": 1.0} for query in queries})
    for relevant in ("d7", "d8"):
        write_qrels(folder / "qrels" / "train.tsv", {"q1": {relevant: 1}})
        data = read_training(settings, tmp_path / "stored")
        assert {*data.candidates["q1"].split()} == {"d7", "d8"} - {relevant}


def test_labels_lead_to_what_is_known():
    qrels = {"q1": {"d3": 1}, "q2": {"d5": 2, "d3": 1}}
    teacher = {"q1": {"d3": 4.0, "d6": -1.0}, "q2": {"d5": 3.0, "d7": 2.0}, "other": {"d9": 1.0}}
    judgments = to_judgments(qrels, teacher)
    data = make_data({"q1": ["d6", "d8"], "q2": ["d7"]}, 2, judgments=judgments)
    labels = [row["label"] for row in rows(data, ("q2", "d3"), ("q1", "d3"))]
    names = {number: passage for passage, number in judgments.passages.items()}
    assert [row[0] for row in labels] == [judgments.queries["q2"], judgments.queries["q1"]]
    assert [names[number] for number in labels[0][1:]] == ["d3", "d7", "d7"]
    # Nothing is known of d8 and d9.
    assert sorted(names.get(number, "") for number in labels[1][1:]) == ["", "d3", "d6"]
    assert 0 not in names
    assert set(names.values()) == {"d3", "d5", "d6", "d7"}

    def cells(matrix):
        matrix = scipy.sparse.coo_array(matrix)
        queries = list(judgments.queries)
        return {
            (queries[row], names[column]): value
            for row, column, value in zip(*matrix.coords, matrix.data, strict=True)
        }

    assert cells(judgments.relevant) == {("q1", "d3"): True, ("q2", "d5"): True, ("q2", "d3"): True}
    assert judgments.relevant.dtype == np.bool_
    assert cells(judgments.teacher) == {
        ("q1", "d3"): 4.0,
        ("q1", "d6"): -1.0,
        ("q2", "d5"): 3.0,
        ("q2", "d7"): 2.0,
    }
    assert to_judgments(qrels, teacher=None).teacher is None


def test_a_copy_of_a_relevant_passage_needs_no_score_of_the_teacher(beir, tmp_path):
    """`rerank --with_positives` scores the judged ones alone."""
    folder = shutil.copytree(beir, tmp_path / "data")
    first = next(p for p in read_corpus(beir) if p.id == "d1")
    with (folder / "corpus.jsonl").open("a") as file:
        copy = {"_id": "copy", "title": first.title, "text": first.text}
        file.write(json.dumps(copy) + "\n")
    write_qrels(folder / "qrels" / "train.tsv", {"q1": {"d1": 1}})
    run = tmp_path / "run.trec"
    write_run(run, {"q1": {"d1": 2.0, "d7": 1.0}})
    settings = DataSettings(folder, "train", 0, str(run), 1, 3, seed=0)
    data = read_training(settings, tmp_path / "stored", run)
    assert data.candidates == {"q1": "d7"}


def test_a_teacher_that_lacks_a_query_is_refused_in_one_line(beir, tmp_path):
    folder = shutil.copytree(beir, tmp_path / "data")
    write_qrels(folder / "qrels" / "train.tsv", {"q1": {"d1": 1}, "q2": {"d2": 1}})
    run, teacher = tmp_path / "run.trec", tmp_path / "teacher.trec"
    write_run(run, {"q1": {"d7": 1.0}, "q2": {"d8": 1.0}})
    write_run(teacher, {"q1": {"d1": 2.0, "d7": 1.0}})
    settings = DataSettings(folder, "train", 0, str(run), 1, 3, seed=0)
    said = (
        f"{teacher} has no score for 1 relevant passages (query, passage): q2 d2;"
        " rerank --with_positives scores them too"
    )
    with pytest.raises(UserError, match=whole(said)):
        read_training(settings, tmp_path / "stored", teacher)


def test_a_run_of_negatives_is_read_only_where_some_are_drawn(beir, tmp_path):
    (tmp_path / "run.trec").write_text("no run\n")
    settings = DataSettings(beir, "train", 0, str(tmp_path / "run.trec"), 0, 3, seed=0)
    data = read_training(settings, tmp_path / "stored", None)
    assert data.candidates == {}
    assert "negatives_run" not in data.checksums
