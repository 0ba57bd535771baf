"""From a pool of negatives to a cross-encoder, its scores, and a denoised pool."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder

from cocondenser_jax.cli import main
from cocondenser_jax.retriever.data import trec
from tests.lines import refusal, whole
from tests.world import instead, write_beir, write_tokenizer

WORDS = [f"{first}{second}a" for first in "bdgklmnprst" for second in "aeiou"]
N_PASSAGES, N_QUERIES = 30, 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """data/ in BEIR layout, model/ (a BERT without a head), and a pool of negatives."""
    place = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(4, 13))) for _ in range(N_PASSAGES)]
    queries = [" ".join(rng.choice(texts[i].split(), 3)) for i in range(N_QUERIES)]
    splits = {"train": range(N_QUERIES), "two": (2, 5)}
    write_beir(place / "data", texts, queries, splits, prefixes=("", ""))
    write_tokenizer(place / "model", WORDS * 9)
    config = transformers.BertConfig(
        vocab_size=80,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        initializer_range=1.0,  # logits far apart
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config, add_pooling_layer=False)
    model.save_pretrained(place / "model")
    data, first, pool = f"--data={place}/data", place / "bm25.trec", place / "pool.trec"
    assert main(["bm25", data, "--split=train", f"--run_out={first}"]) == 0
    assert main(["mine", f"--run={first}", data, f"--run_out={pool}"]) == 0
    return place


@pytest.fixture(scope="module")
def cross_encoder(place):
    command = [
        "finetune",
        "--config=configs/cross_encoder.py",
        f"--workdir={place}/run",
        f"--json_out={place}/finetune.json",
        f"--config.model.folder={place}/model",
        f"--config.data.folder={place}/data",
        f"--config.data.negatives_run={place}/pool.trec",
        "--config.data.negatives_per_query=2",
        "--config.loss.name=binary",
        "--config.model.max_length=24",
        "--config.data.batch_size=4",
        "--config.train.max_steps=2",
    ]
    assert main(command) == 0
    metrics = json.loads((place / "finetune.json").read_text())
    assert (metrics["steps"], metrics["pairs"]) == (2, N_QUERIES)
    return Path(metrics["cross_encoder"])


def reranking(place, model, out, *flags):
    files = [f"--model={model}", f"--data={place}/data", f"--run={place}/pool.trec"]
    return instead(["rerank", *files, "--split=train", f"--run_out={out}"], flags)


def test_our_tokenizers_part_the_texts_of_a_pair(cross_encoder):
    features = CrossEncoder(str(cross_encoder)).preprocess([("baba dada", "gaga")])
    assert features["token_type_ids"].unique().tolist() == [0, 1]


@pytest.mark.effect("rerank --model", "rerank --run", "rerank --data", "rerank --run_out")
@pytest.mark.effect("rerank --depth", "rerank --batch_size", "rerank --json_out")
def test_reranking_prints_what_it_did(
    place,
    cross_encoder,
    tmp_path,
    capsys,
    forward_sizes,
):
    out, metrics = tmp_path / "reranked.trec", tmp_path / "metrics.json"
    flags = ["--depth=3", "--batch_size=2", f"--json_out={metrics}"]
    assert main(reranking(place, cross_encoder, out, *flags)) == 0
    assert max(forward_sizes) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("queries ")
    assert re.search(rf"^queries +{N_QUERIES}$", printed, re.MULTILINE)
    found = trec.read_run(out)
    first = trec.read_run(place / "pool.trec")
    assert {query: set(scores) for query, scores in found.items()} == {
        query: set(list(scores)[:3]) for query, scores in first.items()
    }
    written = json.loads(metrics.read_text())
    assert written["pairs"] == sum(len(scores) for scores in found.values())
    assert written["reranking_ms_per_query"] > 0


@pytest.mark.effect("rerank --split", "rerank --precision")
def test_a_split_in_half_precision(place, cross_encoder, tmp_path):
    pool = trec.read_run(place / "pool.trec")
    trec.write_run(tmp_path / "two.trec", {query: pool[query] for query in "25"})
    found = []
    for precision in "float32", "bfloat16":
        flags = [f"--run={tmp_path}/two.trec", "--split=two", f"--precision={precision}"]
        out = tmp_path / "out.trec"
        assert main(reranking(place, cross_encoder, out, "--with_positives", *flags)) == 0
        found.append(trec.read_run(tmp_path / "out.trec"))
    assert found[0].keys() == found[1].keys() == {"2", "5"}
    for query in "25":
        single, half = ([run[query][p] for p in sorted(run[query])] for run in found)
        assert single == pytest.approx(half, rel=0.1, abs=0.1)
        assert max(abs(a - b) for a, b in zip(single, half, strict=True)) > 1e-4


@pytest.mark.effect("rerank --with_positives", "mine --denoise_below")
def test_a_teachers_scores_denoise_a_pool(place, cross_encoder, tmp_path, capsys):
    teacher, out = tmp_path / "teacher.trec", tmp_path / "denoised.trec"
    assert main(reranking(place, cross_encoder, teacher, "--with_positives")) == 0
    logits, pool = trec.read_run(teacher), trec.read_run(place / "pool.trec")
    assert {query: set(scores) for query, scores in logits.items()} == {
        query: {query, *scores} for query, scores in pool.items()
    }
    chances = {
        (query, passage): 1 / (1 + math.exp(-logit))
        for query, scores in logits.items()
        for passage, logit in scores.items()
    }
    negatives = [chances[query, passage] for query in pool for passage in pool[query]]
    below = float(np.median(negatives))  # so that some stay and some go
    command = ["mine", f"--run={place}/pool.trec", f"--data={place}/data", f"--run_out={out}"]
    capsys.readouterr()
    assert main([*command, f"--denoise_run={teacher}", f"--denoise_below={below}"]) == 0
    kept = {(query, p) for query, scores in trec.read_run(out).items() for p in scores}
    assert kept == {(q, p) for q in pool for p in pool[q] if chances[q, p] < below}
    gone = len(negatives) - len(kept)
    assert 0 < gone < len(negatives)
    assert re.search(rf"^excluded, scored too high +{gone}$", capsys.readouterr().out, re.MULTILINE)


def test_mistakes_get_one_line(place, cross_encoder, tmp_path, capsys):
    out = tmp_path / "out.trec"
    for command, says in (
        (["rerank", f"--run_out={out}"], "Missing options '--model', '--run', '--data'…"),
        (
            reranking(place, place / "model", out),
            "TMP/model is not a cross-encoder: expected a model for sequence classification, such"
            " as cocondenser finetune makes with configs/cross_encoder.py",
        ),
        (
            reranking(place, cross_encoder, out, "--depth=0"),
            "Invalid value for '--depth': 0 is not in the range…",
        ),
        (
            reranking(place, cross_encoder, out, "--split=dev"),
            "TMP/data has no judgments of split 'dev': it has qrels/train.tsv, qrels/two.tsv",
        ),
        (
            reranking(place, cross_encoder, out, f"--run={tmp_path}/no.trec"),
            "cannot read TMP/no.trec: No such file or directory",
        ),
    ):
        capsys.readouterr()
        assert main(command) == 2
        assert re.match(whole(says), refusal(capsys))
    assert not list(tmp_path.iterdir())


@pytest.mark.effect("rerank --corpus")
def test_passages_beside_a_file_of_queries(place, cross_encoder, tmp_path, capsys):
    data = Path(shutil.copytree(place / "data", tmp_path / "data"))
    files = [f"--model={cross_encoder}", f"--run={place}/pool.trec"]
    expected, found = tmp_path / "expected.trec", tmp_path / "found.trec"
    assert main(["rerank", *files, f"--data={data}", f"--run_out={expected}"]) == 0
    passages = (data / "corpus.jsonl").rename(tmp_path / "passages.jsonl")
    command = ["rerank", *files, f"--data={data}/queries.jsonl", f"--run_out={found}"]
    capsys.readouterr()
    assert main(command) == 2
    said = f"{data}/queries.jsonl is a file of queries: name the passages by --corpus"
    assert refusal(capsys) == said
    assert main([*command, f"--corpus={passages}"]) == 0
    assert found.read_bytes() == expected.read_bytes()
