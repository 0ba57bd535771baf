"""Tiny copies of all that recipes read, and settings that make their runs tiny."""

import itertools
import json
import lzma
import math
import random
import shutil
from pathlib import Path

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer
from experiments import held_questions, learned, planned
from papers import (
    abs_beam,
    abs_data,
    abs_rank,
    answers,
    dpr,
    project,
    sentences,
    triples,
)
from papers.figures import attention, curves, neighborhood, sizes
from papers.steps import Folders
from tests.papers import tiny_downloads
from tests.papers.tiny_downloads import HELD, TEST, TRAIN
from tests.world import TINY, WORDS, as_flags, instead, write_beir

N_PASSAGES = 60
PRETRAIN = {
    "log_every": 1,
    "model.max_position_embeddings": 512,
    "model.n_head_layers": 1,
    "train.chunk_size": 0,
    "train.dtype": "float32",
    "train.steps": 2,
}
# What is added to the commands of a row, by command and experiment file.
SMALLER = {
    "corpus": "--max_length=16",
    "pretrain": " ".join(as_flags(TINY | PRETRAIN)),
    "finetune configs/finetune.py": "--config.train.max_steps=2 --config.data.batch_size=4"
    " --config.log_every=1 --config.data.train_queries=12 --config.model.query_length=8"
    " --config.model.passage_length=16 --config.data.loader_workers=0",
    "finetune configs/quickstart_finetune.py": "--config.train.max_steps=2"
    " --config.data.batch_size=4 --config.data.train_queries=12 --config.model.query_length=8"
    " --config.model.passage_length=16",
    "finetune configs/cross_encoder.py": "--config.train.max_steps=2 --config.data.batch_size=2"
    " --config.data.train_queries=12 --config.model.max_length=32"
    " --config.data.loader_workers=0",
    "papers.sentences train": "--train_rows=16 --length=16",
    "papers.abs_data": "--dev=3 --test=4",
    "experiments.held_questions": "--questions=6 --passages=40",
    "experiments.learned": "--least=-9",
    "papers.figures.attention": "--n_texts=8 --max_length=16",
    "papers.figures.neighborhood": "--n=5,10",
}
# Scripts with the flags of `finetune`, and with flags of their own.
FINE_TUNING_SCRIPTS = {"papers.abs_beam": abs_beam, "papers.abs_rank": abs_rank}
SCRIPTS = {
    "experiments.held_questions": held_questions,
    "experiments.learned": learned,
    "experiments.planned": planned,
    "papers.abs_data": abs_data,
    "papers.answers": answers,
    "papers.dpr": dpr,
    "papers.figures.attention": attention,
    "papers.figures.curves": curves,
    "papers.figures.neighborhood": neighborhood,
    "papers.figures.sizes": sizes,
    "papers.project": project,
    "papers.sentences": sentences,
    "papers.triples": triples,
}


def execute(command):
    """Runs a command of a recipe in this process, made tiny."""
    if command[2] in FINE_TUNING_SCRIPTS:
        main_of = FINE_TUNING_SCRIPTS[command[2]].main
        return main_of(instead(command[3:], _smaller(["finetune", *command[3:]])))
    if command[:2] == ["python", "-m"]:
        SCRIPTS[command[2]].main(instead(command[3:], _smaller(command[2:])))
        return 0
    return main(instead(command[1:], _smaller(command[1:])))


def _smaller(words):
    """Returns the flags that make a command of `cocondenser` tiny."""
    config = next((word for word in words if word.startswith("--config=")), "")
    name = config.removeprefix("--config=").partition(":")[0]
    added = []
    for key in (words[0], f"{words[0]} {words[1]}", f"{words[0]} {name}"):
        added += SMALLER.get(key, "").split()
    if "--config.eval.every" in " ".join(words):
        added.append("--config.eval.every=1")
    if "--denoise_below=0.1" in words:  # a cross-encoder that has learned nothing says 0.5
        added.append("--denoise_below=0.99")
    return added


def read_pool(command):
    """Returns the pairs of query and passage that `mine` or `papers.answers drop` has written."""
    return _pairs([*_values(command, "--run_out"), *_values(command, "--out")][0])


def expected_pool(command):
    """Returns those that it should have written, from its runs and the tiny data."""
    if "drop" in command:
        return _without_answers(command)
    data = Path(_values(command, "--data")[0])
    split = [*_values(command, "--split"), "train"][0]  # train is the default
    pool = set()
    for source in _values(command, "--run"):
        pool |= _pairs(source)
    for denoised in _values(command, "--denoise_run"):
        pool &= _pairs(denoised, below=math.log(0.99 / 0.01))
    names = f"qrels.{split}.tsv", f"msmarco-doc{split}-qrels.tsv", f"qrels/{split}.tsv"
    qrels = next(data / name for name in names if (data / name).is_file())
    judged = [line.split() for line in qrels.read_text().splitlines()]
    # Of 4 columns, or BEIR's 3.
    relevant = {(words[0], words[-2]) for words in judged}
    return {(query, passage) for query, passage in pool - relevant if query != passage}


def _without_answers(command):
    """No negative may hold an answer to the question. The answers are those of DPR's own file."""
    data = Path(_values(command, "--corpus")[0])
    passages = data / "psgs_w100.tsv.gz"
    rows = [row.split("\t") for row in tiny_downloads.read(passages)]
    texts = {name: text.replace(".", " .").split() for name, text, _ in rows}
    file = passages.resolve().with_name(f"biencoder-{data.parent.name}-train.json.gz")
    known = {
        q["question"]: tuple(q["answers"][0].split())
        for q in json.loads("".join(tiny_downloads.read(file)))
    }
    lines = map(json.loads, (data / "queries.jsonl").read_text().splitlines())
    held = {line["_id"]: known[line["text"]] for line in lines}
    pool = _pairs(_values(command, "--run")[0])
    return {(q, p) for q, p in pool if held[q] not in itertools.pairwise(texts[p])}


def _pairs(run, below=math.inf):
    lines = [line.split() for line in Path(run).read_text().splitlines()]
    return {(query, passage) for query, _, passage, _, score, _ in lines if float(score) < below}


def _values(command, flag):
    return [word.partition("=")[2] for word in command if word.startswith(f"{flag}=")]


def write_data(folder):
    """Writes the data that people get, and what the quickstart makes; returns both folders."""
    data, workdir = folder / "data", folder / "work"
    rng = random.Random(0)
    texts = [_text(rng, 3) for _ in range(N_PASSAGES)]
    queries = [" ".join(rng.sample(texts[i].split(), 4)) for i in (*TRAIN, *TEST, *HELD)]
    write_models(data, texts + queries)
    write_downloads(folder / "downloads", texts, queries, rng)
    tiny_downloads.make_data(folder / "downloads", data)
    articles = "".join(json.dumps({"text": _text(rng, 12)}) + "\n" for _ in range(40))
    (data / "articles.jsonl.xz").write_bytes(lzma.compress(articles.encode()))
    for name in ("boolq", "boolq-all", "scifact"):
        write_beir(data / name, texts, queries, {"train": TRAIN, "test": TEST})
    _write_quickstart(data, workdir)
    return Folders(workdir, data)


def _text(rng, n_sentences):
    return " ".join(" ".join(rng.choices(WORDS, k=8)) + "." for _ in range(n_sentences))


def _lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_models(data, texts):
    """Writes networks as the hub has them."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    tokenizer = train_tokenizer(texts, 120)
    config = BertConfig(vocab_size=tokenizer.vocab_size, num_attention_heads=2, **sizes)
    for name in ("bert-base-uncased", "minilm", "roberta-base"):
        (data / name).mkdir(parents=True)
        save_tokenizer(tokenizer, data / name)
        BertForMaskedLM(config).save_pretrained(data / name)


def write_downloads(folder, texts, queries, rng):
    """Writes what people download, as it is published."""
    tiny_downloads.write_marco(folder, texts, queries)
    tiny_downloads.write_dpr(folder, texts, queries)
    articles = [_text(rng, 12) for _ in range(40)]
    tiny_downloads.write_text(folder, articles, [_text(rng, 1) for _ in range(480)])
    sts = [f"g\tf\ty\t{i}\t{i % 6}.0\t{_words(rng)}\t{_words(rng)}" for i in range(16)]
    labels = "entailment", "neutral", "contradiction"
    nli = [f"train\tSNLI\t{i}\t{_words(rng)}\t{_words(rng)}\t{labels[i % 3]}" for i in range(24)]
    nli.insert(0, "split\tdataset\tfilename\tsentence1\tsentence2\tlabel")
    sections = ["Sentence1,Sentence2,Sentence3"]
    sections += [",".join(_words(rng) for _ in range(3)) for _ in range(16)]
    tiny_downloads.write_sentences(folder, sts, nli, sections)


def _words(rng):
    return " ".join(rng.choices(WORDS, k=5))


def _write_quickstart(data, workdir):
    """Puts tiny files where the quickstart's are: it would read the docstrings of this machine."""
    quickstart = workdir / "quickstart"
    shutil.copytree(data / "boolq", quickstart / "data")
    qrels = quickstart / "data" / "qrels"
    shutil.copy(qrels / "test.tsv", qrels / "dev.tsv")
    text, tokenizer = quickstart / "data" / "pretrain.jsonl", quickstart / "tokenizer"
    text.write_bytes(lzma.decompress((data / "articles.jsonl.xz").read_bytes()))
    main(["vocabulary", f"--corpus={text}", "--size=8192", f"--out={tokenizer}"])
    main(["corpus", f"--corpus={text}", f"--tokenizer={tokenizer}", "--max_length=16",
          f"--out={quickstart / 'store'}"])  # fmt: skip
    for folder in (quickstart, quickstart / "compare" / "no-pretraining"):
        shutil.copytree(data / "bert-base-uncased", folder / "model")
        main(["bm25", f"--data={data / 'boolq'}", f"--run_out={folder / 'test.trec'}"])
    (quickstart / "compare" / "condenser").mkdir()
    for name in ("bm25.trec", "compare/condenser/test.trec"):
        shutil.copy(quickstart / "test.trec", quickstart / name)
    (quickstart / "report.html").touch()


def write_quickstart_models(workdir):
    """Puts the network of the quickstart's stage 1 and retrievers where rows look for them."""
    quickstart = workdir / "quickstart"
    model = quickstart / "compare" / "condenser" / "model"
    config, store = "configs/quickstart.py:condenser", quickstart / "store"
    run = workdir / "stage1"
    execute(["cocondenser", "pretrain", f"--config={config}", f"--workdir={run}",
             f"--config.data.store={store}"])  # fmt: skip
    execute(["cocondenser", "convert", f"--run_dir={run}", f"--out={model}"])
    for folder in (model.parent, quickstart):
        shutil.copytree(model, folder / "retriever")
