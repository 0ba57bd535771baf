"""Reranking: whose scores, of which passages, in which order, and what is refused."""

import itertools
import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.data import trec
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.search import rerank
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from cocondenser_jax.retriever.search.rerank import Candidates
from tests.lines import whole
from tests.world import write_qrels, write_records

RUN = {
    "q3": {"d7": 3.0, "d3": 2.0, "d40": 1.0, "d41": 0.5},
    "q1": {"d9": -1.0, "d1": -2.0},
}
JUDGED = [f"q{i}" for i in range(24)]


@pytest.fixture
def run_file(tmp_path):
    trec.write_run(tmp_path / "first.trec", RUN)
    return tmp_path / "first.trec"


@pytest.fixture
def score_by_hand(cross_encoder_folder, beir):
    """f(query id, passage id) by transformers alone, a pair at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(cross_encoder_folder)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(cross_encoder_folder).eval()
    queries = read_queries(beir)
    records = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    texts = {record["_id"]: f"{record['title']} {record['text']}" for record in records}

    @torch.no_grad()
    def score(query, passage):
        pair = tokenizer(
            queries[query], texts[passage], truncation=True, max_length=64, return_tensors="pt"
        )
        return model(**pair).logits.item()

    return score


def edited(folder, copy, change):
    """Copies a cross-encoder whose last layer's weights are changed."""
    shutil.copytree(folder, copy)
    weights = safetensors.torch.load_file(copy / "model.safetensors")
    change(weights["classifier.weight"])
    safetensors.torch.save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_scores_are_the_models_logits(
    cross_encoder_folder, beir, run_file, tmp_path, score_by_hand, batch_size
):
    out = tmp_path / "new" / "reranked.trec"
    candidates = Candidates(beir, run_file, split="train")
    metrics = rerank.rerank(cross_encoder_folder, candidates, out, batch_size=batch_size)
    found = trec.read_run(out)
    assert {query: set(scores) for query, scores in found.items()} == {
        query: set(scores) for query, scores in RUN.items()
    }
    expected = {q: {p: score_by_hand(q, p) for p in scores} for q, scores in RUN.items()}
    assert np.ptp(list(expected["q3"].values())) > 0.1
    for query, scores in found.items():
        assert scores == pytest.approx(expected[query], rel=1e-4, abs=1e-5)
        assert list(scores) == sorted(scores, key=expected[query].get, reverse=True)
    assert (metrics["queries"], metrics["pairs"]) == (2, 6)
    seconds = metrics["reranking_seconds"]
    assert metrics["reranking_ms_per_query"] == pytest.approx(seconds * 1000 / 2)


def test_the_order_of_length_is_not_seen_in_the_scores(cross_encoder_folder, words):
    model = load_cross_encoder(open_network(cross_encoder_folder))
    rng = np.random.default_rng(0)
    pairs = [(words[i], " ".join(rng.choice(words, rng.integers(1, 12)))) for i in range(23)]
    alone = np.array([model.predict(pair) for pair in pairs])
    scores = rerank.score_pairs(model, pairs, batch_size=5, precision="auto")
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, alone, rtol=1e-4, atol=1e-5)
    lengths = []
    preprocess = model.preprocess

    def spy(batch, **kwargs):
        lengths.extend(len(query) + len(passage) for query, passage in batch)
        return preprocess(batch, **kwargs)

    model.preprocess = spy
    rerank.score_pairs(model, pairs, batch_size=5, precision="auto")
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == 23


def test_logits_are_written_as_they_are(cross_encoder_folder, beir, run_file, tmp_path):
    out = tmp_path / "reranked.trec"
    rerank.rerank(cross_encoder_folder, Candidates(beir, run_file), out)
    queries, texts = (
        read_queries(beir),
        {p.id: passage_text(p) for p in read_corpus(beir)},
    )
    pairs = [(query, passage) for query, scores in RUN.items() for passage in scores]
    logits = rerank.score_pairs(
        load_cross_encoder(open_network(cross_encoder_folder)),
        [(queries[query], texts[passage]) for query, passage in pairs],
        batch_size=64,
        precision="auto",
    )
    found = trec.read_run(out)
    assert [found[query][passage] for query, passage in pairs] == pytest.approx(logits, rel=1e-7)
    assert len(set(logits.tolist())) == len(pairs)


def test_equal_scores_keep_the_order_of_the_first_stage(
    cross_encoder_folder, beir, run_file, tmp_path
):
    folder = edited(cross_encoder_folder, tmp_path / "flat", lambda weight: weight.zero_())
    rerank.rerank(folder, Candidates(beir, run_file, split="train"), tmp_path / "out.trec")
    lines = [line.split() for line in (tmp_path / "out.trec").read_text().splitlines()]
    assert [line[2] for line in lines] == ["d7", "d3", "d40", "d41", "d9", "d1"]
    scores = [float(line[4]) for line in lines[:4]]
    assert all(high > low for high, low in itertools.pairwise(scores))


def test_what_lies_below_the_depth_is_dropped(cross_encoder_folder, beir, run_file, tmp_path):
    out = tmp_path / "out.trec"
    rerank.rerank(cross_encoder_folder, Candidates(beir, run_file, split="train", depth=2), out)
    found = trec.read_run(out)
    assert {q: set(s) for q, s in found.items()} == {"q3": {"d7", "d3"}, "q1": {"d9", "d1"}}


def test_a_hundred_passages_are_reranked_unless_told_otherwise(tmp_path):
    run = {"q": {f"d{i}": -float(i) for i in range(120)}}
    trec.write_run(tmp_path / "run", run)
    write_records(tmp_path / "queries.jsonl", [{"_id": "q", "text": "who asks"}])
    (first,) = rerank._read_names(Candidates(tmp_path, tmp_path / "run")).first.values()
    assert first == [f"d{i}" for i in range(100)]


def test_positives_are_scored_too(cross_encoder_folder, beir, run_file, tmp_path, score_by_hand):
    out = tmp_path / "teacher.trec"
    candidates = Candidates(beir, run_file, split="train", depth=1, with_positives=True)
    metrics = rerank.rerank(cross_encoder_folder, candidates, out)
    found = trec.read_run(out)
    # Every query of the split has its positive, also those of which the run has nothing.
    expected = {query: {f"d{query[1:]}"} for query in JUDGED}
    expected["q3"].add("d7")
    expected["q1"].add("d9")
    assert {query: set(scores) for query, scores in found.items()} == expected
    assert (metrics["queries"], metrics["pairs"]) == (24, 26)
    for query in ("q1", "q3", "q20"):
        for passage, score in found[query].items():
            assert score == pytest.approx(score_by_hand(query, passage), rel=1e-4, abs=1e-5)


def test_what_is_judged_irrelevant_is_no_positive(cross_encoder_folder, beir, run_file, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(beir, folder)
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.write("q1\td50\t0\nq1\td51\t-1\nq1\td52\t2\n")
    out = tmp_path / "teacher.trec"
    candidates = Candidates(folder, run_file, split="train", depth=1, with_positives=True)
    rerank.rerank(cross_encoder_folder, candidates, out)
    assert set(trec.read_run(out)["q1"]) == {"d9", "d1", "d52"}


def test_only_what_is_scored_is_kept_of_the_corpus(
    cross_encoder_folder, beir, run_file, tmp_path, monkeypatch
):
    made = []
    monkeypatch.setattr(rerank, "passage_text", lambda p: made.append(p.id) or passage_text(p))
    candidates = Candidates(beir, run_file, depth=3)
    rerank.rerank(cross_encoder_folder, candidates, tmp_path / "out.trec")
    assert sorted(made) == ["d1", "d3", "d40", "d7", "d9"]


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        (
            "x Q0 d1 1 1.0 t",
            {"split": "train"},
            whole("TMP/first.trec names 1 queries that the data does not have: x"),
        ),
        (
            "q1 Q0 x 1 1.0 t",
            {},
            whole("TMP/first.trec names 1 passages that the data does not have: x"),
        ),
        (
            "q1 Q0 d1 1 nan t",
            {},
            whole("TMP/first.trec:1: the score must be a finite number, not 'nan'"),
        ),
        (
            "q1 Q0 d1 1 1.0 t",
            {"with_positives": True},
            whole("--with_positives needs a --split, whose judgments say what is relevant"),
        ),
    ],
)
def test_mistakes_write_no_run(
    cross_encoder_folder, beir, run_file, tmp_path, lines, settings, message
):
    run_file.write_text(lines)
    with pytest.raises(UserError, match=message):
        rerank.rerank(
            cross_encoder_folder,
            Candidates(beir, run_file, **settings),
            tmp_path / "out.trec",
        )
    assert [path.name for path in tmp_path.iterdir()] == ["first.trec"]


def test_a_positive_that_the_corpus_lacks_is_named_with_its_judgments(
    cross_encoder_folder, beir, run_file, tmp_path
):
    folder = tmp_path / "data"
    shutil.copytree(beir, folder)
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.write("q1\tnobody\t1\n")
    candidates = Candidates(folder, run_file, split="train")
    rerank.rerank(cross_encoder_folder, candidates, tmp_path / "out.trec")
    candidates = candidates._replace(with_positives=True)
    with pytest.raises(
        UserError, match=whole("…train.tsv names 1 passages that the data does not have: nobody")
    ):
        rerank.rerank(cross_encoder_folder, candidates, tmp_path / "out.trec")


def test_the_passages_of_a_split_have_ids(tmp_path):
    """Judgments of ids would be applied to the numbers of lines."""
    (tmp_path / "c.txt").write_text("apr\nbik\n")
    named = rerank._Named({"q": "apr"}, {"q": ["2"]}, {})
    candidates = Candidates(tmp_path, tmp_path / "run.trec")
    pairs = {"q": ["2"]}, [("apr", "bik")]
    assert rerank._read_pairs(tmp_path / "c.txt", candidates, named) == pairs
    with pytest.raises(UserError, match=r"c.txt:1 has no `_id`: judgments name passages by"):
        rerank._read_pairs(tmp_path / "c.txt", candidates._replace(split="test"), named)


def test_models_that_cannot_score_are_refused(
    cross_encoder_folder, model_folder, beir, run_file, tmp_path
):
    out = tmp_path / "out.trec"
    with pytest.raises(
        UserError,
        match=whole(
            "… is not a cross-encoder: expected a model for sequence classification, such as"
            " cocondenser finetune makes with configs/cross_encoder.py"
        ),
    ):
        rerank.rerank(model_folder, Candidates(beir, run_file), out)
    broken = edited(
        cross_encoder_folder, tmp_path / "nan", lambda weight: weight.fill_(float("nan"))
    )
    with pytest.raises(
        UserError, match=whole("…nan scores a pair with NaN or infinity: its weights are damaged")
    ):
        rerank.rerank(broken, Candidates(beir, run_file), out)
    assert not out.exists()


@pytest.mark.usefixtures("unread_corpus")
@pytest.mark.parametrize(
    ("run", "split", "message"),
    [
        (None, None, whole("cannot read TMP/first.trec: No such file or directory")),
        ({}, None, whole("TMP/first.trec is empty: expected a TREC run")),
        (
            {"x": {"d1": 1.0}},
            None,
            whole("TMP/first.trec names 1 queries that the data does not have: x"),
        ),
        (RUN, "dev", whole("TMP has no judgments of split 'dev': it has qrels/train.tsv")),
    ],
)
def test_what_is_wrong_with_the_first_stage_is_found_before_the_model_is_loaded(
    beir, tmp_path, run, split, message
):
    path = tmp_path / "first.trec"
    if run is not None:
        trec.write_run(path, run)
    with pytest.raises(UserError, match=message):
        rerank.rerank(tmp_path / "none", Candidates(beir, path, split), tmp_path / "out")


@pytest.mark.usefixtures("unread_corpus")
def test_what_is_wrong_with_the_model_is_found_before_the_corpus_is_read(
    model_folder, beir, run_file, tmp_path
):
    with pytest.raises(
        UserError,
        match=whole(
            "… is not a cross-encoder: expected a model for sequence classification, such as"
            " cocondenser finetune makes with configs/cross_encoder.py"
        ),
    ):
        rerank.rerank(model_folder, Candidates(beir, run_file), tmp_path / "out")


def test_a_pair_without_a_finite_score_is_named(cross_encoder_folder):
    model = load_cross_encoder(open_network(cross_encoder_folder))
    model.predict = lambda pairs, **_: np.array([1.0, np.inf, np.nan], np.float32)
    with pytest.raises(
        UserError,
        match=whole(
            f"the model scores a pair with NaN or infinity ('b', 'long {'l' * 55}'): its"
            " weights are damaged, or too large for what it computes"
        ),
    ):
        rerank.score_pairs(
            model,
            [("a", "x"), ("b", f"long {'l' * 99}"), ("c", "y")],
            batch_size=64,
            precision="auto",
        )


def test_queries_that_the_first_stage_lacks_are_counted(
    cross_encoder_folder, beir, run_file, tmp_path, caplog
):
    for split in ("train", None):
        caplog.clear()
        candidates = Candidates(beir, run_file, split=split)
        rerank.rerank(cross_encoder_folder, candidates, tmp_path / "out.trec")
        counted = [line for line in caplog.messages if line.startswith(f"{run_file} has no result")]
        said = f"{run_file} has no result for 22 of 24 queries of train"
        assert counted == [said] * (split == "train")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_score_in_float32(cross_encoder_folder, tmp_path, dtype):
    folder = shutil.copytree(cross_encoder_folder, tmp_path / "half")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    rounded = {name: value.to(dtype) for name, value in weights.items()}
    safetensors.torch.save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    found = rerank.score_pairs(
        load_cross_encoder(open_network(folder)),
        [("a b", "c d")],
        precision="float32",
        batch_size=64,
    )
    # The same numbers, in the library's own float32.
    by_hand = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = by_hand(**tokenizer("a b", "c d", return_tensors="pt")).logits.item()
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(expected, abs=1e-6)


def test_positives_that_the_first_stage_lacks_come_after_it(tmp_path):
    """Equal scores keep this order."""
    corpus = tmp_path / "corpus.jsonl"
    write_records(corpus, [{"_id": name, "text": name} for name in "abc"])
    write_qrels(tmp_path / "qrels" / "train.tsv", {"q": {"a": 1, "c": 1}})
    candidates = Candidates(tmp_path, tmp_path / "run", split="train", with_positives=True)
    named = rerank._Named({"q": "who"}, {"q": ["b", "a"]}, {"q": ["a", "c"]})
    passages, pairs = rerank._read_pairs(corpus, candidates, named)
    assert passages == {"q": ["b", "a", "c"]}
    assert pairs == [("who", "b"), ("who", "a"), ("who", "c")]
