"""Tiny files in the formats in which the papers' data are published, and the data made of them."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from papers import data_folders, get_data

N_TRAIN, N_TEST, N_HELD = 24, 8, 4
TRAIN = range(N_TRAIN)
TEST = range(N_TRAIN, N_TRAIN + N_TEST)
HELD = range(N_TRAIN + N_TEST, N_TRAIN + N_TEST + N_HELD)
# The passage without a title, as RocketQA's list of titles has fewer lines than that of texts.
UNTITLED = 3


def write_lines(path, lines, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}{end}" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_tar(path, files):
    """Writes an archive of lists of lines, by their names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, lines in files.items():
            content = "".join(f"{line}\n" for line in lines).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_marco(folder, texts, queries):
    """Writes MS MARCO's passages and documents, RocketQA's titles, and TREC's judgments."""
    ids = range(len(texts))
    titled = [i for i in reversed(ids) if i != UNTITLED]  # in another order, too
    para = [f"{i}\t{text}" for i, text in enumerate(texts)]
    titles = [f"{i}\ttitle {i}" for i in titled]
    write_tar(folder / "marco.tar.gz", {"marco/para.txt": para, "marco/para.title.txt": titles})

    def judged(numbers):
        return [f"{i}\t0\t{i}\t1" for i in numbers]

    def asked(numbers):
        return [f"{i}\t{queries[i]}" for i in numbers]

    dev = [*TEST, *HELD]
    members = {
        "collection.tsv": para,
        "queries.train.tsv": asked(TRAIN),
        "qrels.train.tsv": judged(TRAIN),
        "queries.dev.tsv": asked(dev),
        "queries.dev.small.tsv": asked(TEST),
        "qrels.dev.small.tsv": judged(TEST),
    }
    write_tar(folder / "collectionandqueries.tar.gz", members)
    write_lines(folder / "qrels.dev.tsv", judged(dev))
    write_lines(folder / "msmarco-test2019-queries.tsv.gz", asked(TEST))
    write_lines(folder / "2019qrels-pass.txt", [f"{i} 0 {i} 3" for i in TEST])
    write_lines(folder / "2019qrels-docs.txt", [f"{i} 0 D{i} 3" for i in TEST])
    triples = [f"{i}\t{i}\t{(i + k) % len(texts)}" for i in TRAIN for k in range(1, 9)]
    write_lines(folder / "qidpidtriples.train.full.2.tsv.gz", triples, end="\r\n")
    documents = [f"D{i}\thttp://a.b/{i}\ttitle\t{text} {text}" for i, text in enumerate(texts)]
    write_lines(folder / "msmarco-docs.tsv.gz", documents)
    for split, numbers in (("train", TRAIN), ("dev", TEST)):
        write_lines(folder / f"msmarco-doc{split}-queries.tsv.gz", asked(numbers))
        write_lines(folder / f"msmarco-doc{split}-qrels.tsv.gz", [f"{i} 0 D{i} 1" for i in numbers])


def write_dpr(folder, texts, queries):
    """Writes DPR's passages and questions, compressed as at their addresses."""
    passages = [f"{i + 1}\t{text}\ttitle" for i, text in enumerate(texts)]
    write_lines(folder / "psgs_w100.tsv.gz", ["id\ttext\ttitle", *passages])

    def context(i):
        return {"passage_id": str(i + 1), "title": "title", "text": texts[i]}

    questions = [
        {
            "question": queries[i],
            "answers": [" ".join(texts[i].split()[:2])],  # some other passages hold it, too
            "positive_ctxs": [context(i)],
            "negative_ctxs": [],
            "hard_negative_ctxs": [context((i + k) % len(texts)) for k in range(1, 9)],
        }
        for i in TRAIN
    ]
    for name, some in (("nq", questions), ("nq-adv-hn", questions[::2]), ("trivia", questions)):
        write_lines(folder / f"biencoder-{name}-train.json.gz", [json.dumps(some)])
    answers = [f"{queries[i]}\t['{texts[i].split()[0]}']" for i in TEST]
    write_lines(folder / "nq-test.qa.csv", answers)
    write_lines(folder / "trivia-test.qa.csv.gz", answers)


def write_text(folder, articles, sentences):
    """Writes Wikipedia and BookCorpus as the hub has them: articles, and a sentence a row."""
    rows = [
        {"id": f"{i}", "url": f"http://{i}", "title": f"Article {i}", "text": text}
        for i, text in enumerate(articles)
    ]
    write_parquet(folder / "wikipedia" / "20231101.en" / "train-00000-of-00001.parquet", rows)
    books = folder / "bookcorpus" / "plain_text" / "train"
    half = len(sentences) // 2
    for number, part in enumerate((sentences[:half], sentences[half:])):
        write_parquet(books / f"{number:04}.parquet", [{"text": each} for each in part])


def write_sentences(folder, rows_of_sts, rows_of_nli, rows_of_sections):
    """Writes the archives of the sentence encoders' data."""
    splits = ("train", "dev", "test")
    write_tar(
        folder / "Stsbenchmark.tar.gz",
        {f"stsbenchmark/sts-{split}.csv": rows_of_sts for split in splits},
    )
    write_lines(folder / "AllNLI.tsv.gz", rows_of_nli)
    with zipfile.ZipFile(folder / "wikipedia-sections-triplets.zip", "w") as archive:
        for split in ("train", "validation", "test"):
            archive.writestr(f"{split}.csv", "".join(f"{row}\r\n" for row in rows_of_sections))


def make_data(downloads, data, names=tuple(get_data.DATA_SETS)):
    """Makes data sets of tiny files, to which no size, checksum or number applies."""
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        get_data.main([*names, f"--downloads={downloads}", f"--data={data}"])


def make_tiny(patch, n_passages=60):
    """Lets get_data take tiny files."""
    patch.setattr(get_data, "require_as_published", lambda *_: None)
    patch.setattr(data_folders, "N_PASSAGES", n_passages)
    patch.setattr(data_folders, "N_HELD", N_HELD)
    patch.setattr(data_folders, "SENTENCES", 12)


def read(path):
    """Returns the lines of a file, plain or compressed."""
    data = Path(path).read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
