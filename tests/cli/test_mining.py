"""From BM25 to negatives and a step of fine-tuning by the command line, in each layout."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.cli import main
from tests.lines import refusal, whole, write_lines
from tests.world import write_beir, write_tokenizer

WORDS = [f"{first}{second}a" for first in "bdgklmnprst" for second in "aeiou"]
N_PASSAGES, N_QUERIES = 40, 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same passages without titles, queries and judgments, in each layout."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(N_PASSAGES)]
    queries = [" ".join(rng.choice(texts[i].split(), 4)) for i in range(N_QUERIES)]
    made = {name: tmp_path_factory.mktemp(name) for name in ("beir", "msmarco")}

    write_beir(made["beir"], texts, queries, {"train": range(N_QUERIES)}, prefixes=("", ""))

    numbered = (f"{i}\t{text}" for i, text in enumerate(texts))
    write_lines(made["msmarco"] / "collection.tsv", numbered)
    numbered = (f"{i}\t{text}" for i, text in enumerate(queries))
    write_lines(made["msmarco"] / "queries.train.tsv", numbered)
    write_lines(made["msmarco"] / "qrels.train.tsv", (f"{i} 0 {i} 1" for i in range(N_QUERIES)))
    return made


def bm25(data):
    run = data / "bm25.trec"
    assert main(["bm25", f"--data={data}", "--split=train", f"--run_out={run}"]) == 0
    return run


def test_every_layout_gives_the_same_run(folders):
    runs = {name: bm25(folder).read_text() for name, folder in folders.items()}
    assert len(runs["beir"].splitlines()) > N_QUERIES
    assert runs["msmarco"] == runs["beir"]


@pytest.mark.effect("mine --data", "mine --split", "mine --depth")
def test_ranks_of_a_split(folders, tmp_path):
    data = Path(shutil.copytree(folders["beir"], tmp_path / "data"))
    write_lines(data / "qrels" / "dev.tsv", ["3 0 3 1", "7 0 7 1"])
    best = {}
    for line in bm25(data).read_text().splitlines():
        query, _, passage, *_ = line.split()
        best.setdefault(query, []).append(passage)
    command = f"mine --run={data}/bm25.trec --data={data} --run_out={tmp_path}/pool.trec"
    assert main([*command.split(), "--split=dev", "--depth=5"]) == 0
    pool = [line.split() for line in (tmp_path / "pool.trec").read_text().splitlines()]
    expected = [(query, p) for query in "37" for p in best[query][:5] if p != query]
    assert [(query, p) for query, _, p, *_ in pool] == expected
    assert min(len(best[query]) for query in "37") > 5


@pytest.mark.effect("mine --run", "mine --run_out", "mine --denoise_run", "mine --json_out")
@pytest.mark.effect("mine --run...")
def test_mine_prints_what_it_wrote(folders, tmp_path, capsys):
    data, out, metrics = folders["beir"], tmp_path / "pool.trec", tmp_path / "metrics.json"
    run = bm25(data)
    other = tmp_path / "other.trec"
    write_lines(other, (f"{i} Q0 {i + k} {k} {-k} t" for i in range(N_QUERIES) for k in (1, 2)))
    teacher = tmp_path / "teacher.trec"
    # The teacher doubts every second passage of the run.
    lines = [line.split() for line in run.read_text().splitlines()]
    write_lines(teacher, (f"{q} Q0 {p} 0 {10 * (int(p) % 2) - 5} t" for q, _, p, *_ in lines))
    capsys.readouterr()
    sources = [f"--run={run}", f"--run={other}"]
    command = ["mine", *sources, f"--data={data}", f"--run_out={out}", f"--json_out={metrics}"]
    assert main([*command, "--depth=5", f"--denoise_run={teacher}"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"^queries +{N_QUERIES}$", printed, re.MULTILINE)
    assert [re.split("  +", line)[0] for line in printed.splitlines()] == [
        "queries",
        "queries without negatives",
        "negatives",
        "negatives per query, mean",
        "negatives per query, least",
        "excluded, relevant",
        "excluded, the query's id",
        "excluded, a relevant one's text",
        "excluded, not scored",
        "excluded, scored too high",
    ]
    mined = [line.split() for line in out.read_text().splitlines()]
    assert json.loads(metrics.read_text())["negatives"] == len(mined) > 0
    assert {int(passage) % 2 for _, _, passage, *_ in mined} == {0}
    assert not [query for query, _, passage, *_ in mined if query == passage]
    # Both sources are in the pool: the other has i + 1 and i + 2, of which one is even.
    found = {(query, passage) for query, _, passage, *_ in lines}
    even = {(str(i), str(i + 2 - i % 2)) for i in range(N_QUERIES)}
    assert even & found
    assert even & found == even & {(query, passage) for query, _, passage, *_ in mined}


def test_mistakes_get_one_line(folders, tmp_path, capsys):
    data, out = folders["beir"], tmp_path / "pool.trec"
    run = bm25(data)
    for command, says in (
        (["mine", f"--data={data}", f"--run_out={out}"], "Missing option '--run'…"),
        (
            ["mine", f"--run={run}", f"--data={data}", f"--run_out={out}", "--split=dev"],
            "TMP… has no judgments of split 'dev': it has qrels/train.tsv",
        ),
        (
            ["mine", f"--run={out}.none", f"--data={data}", f"--run_out={out}"],
            "cannot read TMP/pool.trec.none: No such file or directory",
        ),
        (
            ["mine", f"--run={run}", f"--data={data}", f"--run_out={run}"],
            "--run_out and --run name the same file: TMP…/bm25.trec",
        ),
        (
            ["mine", f"--run={run}", f"--data={data}", f"--run_out={out}", "--depth=0"],
            "Invalid value for '--depth': 0 is not in…",
        ),
        (
            ["mine", f"--run={run}", f"--data={data}", f"--run_out={out}", "--denoise_below=0.2"],
            "--denoise_below goes with --denoise_run (see cocondenser mine --help)",
        ),
    ):
        capsys.readouterr()
        assert main(command) == 2
        assert re.match(whole(says), refusal(capsys))
    assert not list(tmp_path.iterdir())


@pytest.mark.effect("finetune --json_out")
def test_finetuning_reads_the_layout_and_its_negatives(folders, tmp_path):
    import transformers

    data = folders["msmarco"]
    model = write_tokenizer(tmp_path / "model", WORDS * 9)
    config = transformers.BertConfig(
        vocab_size=80,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(model)
    negatives = tmp_path / "negatives.trec"
    write_lines(negatives, (f"{i} Q0 {i + 1} 1 1.0 t" for i in range(N_QUERIES)))
    metrics = tmp_path / "metrics.json"
    command = [
        "finetune",
        "--config=configs/finetune.py",
        f"--workdir={tmp_path}/run",
        f"--json_out={metrics}",
        f"--config.model.folder={model}",
        f"--config.data.folder={data}",
        f"--config.data.negatives_run={negatives}",
        "--config.data.negatives_per_query=1",
        "--config.data.batch_size=4",
        "--config.model.query_length=8",
        "--config.model.passage_length=16",
        "--config.train.max_steps=1",
        "--config.data.train_queries=8",
    ]
    assert main(command) == 0
    result = json.loads(metrics.read_text())
    assert (result["steps"], result["pairs"]) == (1, 8)
