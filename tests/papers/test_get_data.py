"""The papers' data, made of tiny files in the formats in which they are published."""

import gzip
import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest

from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.retriever.data.folder import read_corpus, read_split
from cocondenser_jax.retriever.data.trec import read_qrels
from papers import data, data_folders, dpr, estimates, get_data, triples
from papers.downloads import Published, Source, find, opened, require_as_published
from papers.sentences import read_nli, read_sections, read_stsb
from papers.steps import Step
from tests.papers import tiny_downloads
from tests.papers.tiny_data import write_downloads
from tests.papers.tiny_downloads import HELD, TEST, TRAIN, UNTITLED, make_data, read, write_lines

TEXTS = [f"text {i}, with a comma" for i in range(60)]
QUERIES = [f"query {i}" for i in (*TRAIN, *TEST, *HELD)]


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "downloads"
    write_downloads(folder, TEXTS, QUERIES, random.Random(0))
    return folder


@pytest.fixture(scope="module")
def made(downloads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_data(downloads, folder)
    return folder


def run(*words):
    with pytest.raises(SystemExit) as end:
        get_data.main([*map(str, words)])
    assert end.value.code == 2


# ---- what is made ----


def test_recipes_read_what_is_made(made):
    """But for the networks, which the hub has as they are."""
    steps = [step for step in vars(data).values() if isinstance(step, Step)]
    wanted = {Path(step.out).relative_to("$DATA") for step in steps if "get_data" in step.get}
    assert {path.parts[0] for path in wanted} == get_data.DATA_SETS.keys()
    for path in wanted:
        assert (made / path).exists()


def test_titles_are_joined_by_the_ids(made):
    passages = {p.id: p for p in read_corpus(made / "msmarco")}
    assert [*passages] == [str(i) for i in range(60)]
    for i, text in enumerate(TEXTS):
        title = "" if i == UNTITLED else f"title {i}"
        assert (passages[str(i)].title, passages[str(i)].text) == (title, text)
    untitled = [(p.title, p.text) for p in read_corpus(made / "msmarco-untitled")]
    assert untitled == [("", text) for text in TEXTS]


@pytest.mark.parametrize("name", ["msmarco", "msmarco-untitled"])
def test_passages_have_all_splits(made, name):
    grades = {"train": (TRAIN, 1), "dev.small": (TEST, 1), "dl19": (TEST, 3), "held": (HELD, 1)}
    for split, (numbers, grade) in grades.items():
        queries, qrels = read_split(made / name, split)
        assert queries == {str(i): QUERIES[i] for i in numbers}
        assert qrels == {str(i): {str(i): grade} for i in numbers}


def test_held_out_queries_are_drawn_and_none_is_tested(downloads, tmp_path, monkeypatch):
    tiny_downloads.make_tiny(monkeypatch)
    drawn = []
    for seed in (0, 1):
        monkeypatch.setattr(data_folders, "N_HELD", 2)
        monkeypatch.setattr(data_folders, "SEED", seed)
        out = tmp_path / f"{seed}"
        get_data.main(["msmarco", f"--downloads={downloads}", f"--data={out}"])
        drawn.append({*read_qrels(out / "msmarco" / "qrels.held.tsv")})
        assert len(drawn[-1]) == 2
        assert drawn[-1] < {str(i) for i in HELD}
    assert drawn[0] != drawn[1]
    monkeypatch.setattr(data_folders, "N_HELD", 5)
    run("msmarco", f"--downloads={downloads}", f"--data={tmp_path}/five")
    assert not (tmp_path / "five" / "msmarco").exists()


def test_documents_have_all_splits(made):
    folder = made / "msmarco-docs"
    assert len([*read_corpus(folder)]) == 60
    for split, numbers, grade in (("train", TRAIN, 1), ("dev", TEST, 1), ("dl19", TEST, 3)):
        queries, qrels = read_split(folder, split)
        assert queries == {str(i): QUERIES[i] for i in numbers}
        assert qrels == {str(i): {f"D{i}": grade} for i in numbers}


def test_triples_are_a_link_with_the_line_ends_of_windows(made, downloads):
    (path,) = (made / "msmarco-triples").iterdir()
    assert path.resolve() == (downloads / path.name).resolve()
    assert gzip.decompress(path.read_bytes()).count(b"\r\n") == 8 * len(TRAIN)
    found = dict(triples.read_triples(path, 200))
    assert {*found["0"]} == {str(i) for i in range(1, 9)}


def test_dprs_files_are_taken_under_either_name(made, downloads, tmp_path):
    """The names of their addresses, and those to which its download_data.py unpacks them."""
    unpacked = tmp_path / "downloads" / "data"
    names = {
        "psgs_w100.tsv.gz": "wikipedia_split/psgs_w100.tsv",
        "biencoder-nq-train.json.gz": "retriever/nq-train.json",
        "biencoder-nq-adv-hn-train.json.gz": "retriever/nq-adv-hn-train.json",
        "biencoder-trivia-train.json.gz": "retriever/trivia-train.json",
        "nq-test.qa.csv": "retriever/qas/nq-test.csv",
        "trivia-test.qa.csv.gz": "retriever/qas/trivia-test.csv",
    }
    for name, other in names.items():
        write_lines(unpacked / other, read(downloads / name))
    make_data(unpacked, tmp_path / "data", ["dpr"])
    for path in (made / "dpr").iterdir():
        assert read(tmp_path / "data" / "dpr" / path.name) == read(path)
    assert len([*read_corpus(made / "dpr")]) == 60
    questions = [*dpr.read_questions(made / "dpr" / "biencoder-nq-adv-hn-train.json.gz")]
    assert len(questions) == len(TRAIN) / 2
    assert len([*dpr.read_questions(made / "dpr" / "trivia-test.qa.csv")]) == len(TEST)


def test_sentences_become_documents(made, downloads):
    """The hub's copy has 74 million rows of a sentence, without borders of books."""
    documents = [*read_documents(str(made / "bookcorpus"))]
    assert len(documents) == 480 / 12
    lines = read(made / "bookcorpus" / "books.jsonl")
    first = json.loads(lines[0])["text"]
    assert first.count(".") == 12
    whole = " ".join(json.loads(line)["text"] for line in lines)
    assert whole.count(".") == 480


def test_whole_books_stay_whole(tmp_path):
    books = ["A sentence. " * 200, "Another one. " * 300]
    folder = tmp_path / "downloads" / "bookcorpus"
    write_lines(folder / "a.jsonl", [json.dumps({"text": text}) for text in books])
    make_data(folder.parent, tmp_path / "data", ["bookcorpus"])
    lines = read(tmp_path / "data" / "bookcorpus" / "books.jsonl")
    assert [json.loads(line)["text"] for line in lines] == books


def test_lines_of_text_are_sentences(tmp_path):
    folder = tmp_path / "downloads" / "bookcorpus"
    write_lines(folder / "books_large_p1.txt", [f"sentence {i} ." for i in range(13)])
    make_data(folder.parent, tmp_path / "data", ["bookcorpus"])
    lines = read(tmp_path / "data" / "bookcorpus" / "books.jsonl")
    texts = [json.loads(line)["text"].count("sentence") for line in lines]
    assert texts == [12, 1]


def test_wikipedia_is_read_from_a_subfolder_of_parquet_files(made):
    documents = [*read_documents(str(made / "wikipedia"))]
    assert len(documents) == 40
    assert "Article 0" in str(documents[0])


def test_wikipedia_of_wikiextractor_gets_an_ending(tmp_path):
    folder = tmp_path / "downloads" / "wikipedia"
    for part in ("AA", "AB"):
        article = {"id": "1", "url": "u", "title": part, "text": "a text"}
        write_lines(folder / part / "wiki_00", [json.dumps(article)])
    make_data(folder.parent, tmp_path / "data", ["wikipedia"])
    assert len([*read_documents(str(tmp_path / "data" / "wikipedia"))]) == 2


def test_sentence_encoders_read_what_is_made(made):
    for split in ("train", "dev", "test"):
        assert len(read_stsb(made / "stsbenchmark" / f"sts-{split}.csv")) == 16
    for split in ("train", "validation", "test"):
        assert len(read_sections(made / "sections" / f"{split}.csv")) == 16
    assert len(read_nli(made / "allnli" / "AllNLI.tsv.gz")) > 0


def test_an_archive_may_lie_there_unpacked(made, downloads, tmp_path):
    unpacked = tmp_path / "downloads"
    shutil.copytree(downloads, unpacked)
    for name in ("marco.tar.gz", "collectionandqueries.tar.gz"):
        shutil.unpack_archive(unpacked / name, unpacked / "unpacked")
        (unpacked / name).unlink()
    make_data(unpacked, tmp_path / "data", ["msmarco", "msmarco-untitled"])
    for folder in ("msmarco", "msmarco-untitled"):
        for path in (made / folder).iterdir():
            assert read(tmp_path / "data" / folder / path.name) == read(path)


# ---- what is refused, and what is left as it is ----


def test_what_is_missing_is_named_with_its_address_before_any_work(tmp_path, downloads, capsys):
    some = tmp_path / "some"
    some.mkdir()
    shutil.copy(downloads / "qrels.dev.tsv", some)
    run("msmarco", "allnli", f"--downloads={some}", f"--data={tmp_path}/data")
    error = capsys.readouterr().err
    assert error.startswith(f"get_data: {some} lacks 5 files: marco.tar.gz from https://rocketqa.")
    assert "AllNLI.tsv.gz from https://sbert.net/datasets/AllNLI.tsv.gz" in error
    assert "qrels.dev.tsv" not in error
    assert error.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_what_is_there_is_left(made, downloads, tmp_path):
    folder = tmp_path / "data" / "msmarco"
    folder.mkdir(parents=True)
    (folder / "mine").touch()
    make_data(downloads, tmp_path / "data", ["msmarco", "allnli"])
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert (tmp_path / "data" / "allnli").is_dir()


def test_sizes_and_checksums_are_compared(tmp_path):
    path = tmp_path / "file.tsv.gz"
    path.write_bytes(b"content")
    md5 = hashlib.md5(b"content").hexdigest()
    wanted = Published("file.tsv.gz", "https://a.b/file.tsv.gz", 7, md5)
    require_as_published(wanted, [path])
    for other, said in (
        (wanted._replace(bytes=8), "has 7 bytes: expected 8; it is cut short"),
        (wanted._replace(md5="0" * 32), f"has the MD5 sum {md5}: expected 000"),
    ):
        with pytest.raises(get_data.UserError, match=said) as error:
            require_as_published(other, [path])
        assert str(error.value).endswith("published at https://a.b/file.tsv.gz")
        # Nothing is known of what was unpacked.
        require_as_published(other, [path.rename(tmp_path / "file.tsv")])
        path.with_suffix("").rename(path)


def test_a_file_that_is_not_the_published_one_ends_in_one_line(downloads, tmp_path, capsys):
    run("dpr", f"--downloads={downloads}", f"--data={tmp_path}/data")
    error = capsys.readouterr().err
    assert "psgs_w100.tsv.gz has " in error
    assert "bytes: expected 4,694,541,059; it is cut short" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "data" / "dpr").exists()


@pytest.mark.parametrize("name", ["msmarco", "msmarco-untitled"])
def test_passages_that_are_missing_are_noticed(downloads, tmp_path, name, monkeypatch, capsys):
    tiny_downloads.make_tiny(monkeypatch, n_passages=61)
    run(name, f"--downloads={downloads}", f"--data={tmp_path}/data")
    assert "holds 60 passages: expected 61" in capsys.readouterr().err
    assert not (tmp_path / "data" / name).exists()


def test_a_disk_that_is_too_small_is_refused(downloads, tmp_path, monkeypatch, capsys):
    tiny_downloads.make_tiny(monkeypatch)
    monkeypatch.setattr(estimates, "free_bytes", lambda folder: 3e9)
    run("msmarco", f"--downloads={downloads}", f"--data={tmp_path}/data")
    error = capsys.readouterr().err
    said = (
        f"the disk of {tmp_path}/data has 3.0 GB free, but about 3.4 GB are needed: choose --data"
    )
    assert said in error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("cut", ["marco.tar.gz", "collectionandqueries.tar.gz"])
def test_a_damaged_archive_ends_in_one_line(downloads, tmp_path, cut, monkeypatch, capsys):
    tiny_downloads.make_tiny(monkeypatch)
    folder = tmp_path / "downloads"
    shutil.copytree(downloads, folder)
    content = (folder / cut).read_bytes()
    (folder / cut).write_bytes(content[: len(content) // 2])
    run("msmarco", f"--downloads={folder}", f"--data={tmp_path}/data")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert cut in error
    assert not (tmp_path / "data" / "msmarco").exists()


def test_a_member_that_is_missing_is_named(tmp_path):
    tiny_downloads.write_tar(tmp_path / "a.tar.gz", {"x/b.tsv": ["1\t2"]})
    lacking = opened(Source(tmp_path / "a.tar.gz", "c.tsv"))
    with pytest.raises(get_data.UserError, match=r"a\.tar\.gz holds no c\.tsv"), lacking:
        pass
    with opened(Source(tmp_path / "a.tar.gz", "b.tsv")) as file:
        assert file.read() == b"1\t2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mrco"], "no data set 'mrco': did you mean msmarco"),
        ([], "give either data sets, of wikipedia, bookcorpus, msmarco"),
        (["msmarco", "--list"], "give either data sets, of wikipedia"),
        (["msmarco", "--downloads=nowhere"], "nowhere is no folder: expected one of published"),
    ],
)
def test_a_mistake_is_one_line(words, said, downloads, tmp_path, capsys):
    run(f"--downloads={downloads}", f"--data={tmp_path}/data", *words)
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_list_says_what_is_there(downloads, tmp_path, capsys):
    shutil.copytree(downloads, tmp_path / "some")
    (tmp_path / "some" / "qrels.dev.tsv").unlink()
    get_data.main(["--list", f"--downloads={tmp_path}/some"])
    printed = capsys.readouterr().out
    assert "\n  marco.tar.gz (size not known) is there: https://rocketqa.bj" in printed
    assert "\n  qrels.dev.tsv (1.20MB) is missing: https://msmarco" in printed
    assert "\n  psgs_w100.tsv.gz (4.69GB) is there: https://dl.fbaipublicfiles" in printed
    assert find(tmp_path / "some", Published("none", "")) is None
    get_data.main(["--list", f"--downloads={tmp_path}/not-made-yet"])
    printed = capsys.readouterr().out
    assert printed.count(" is missing: https://") > 10
    untitled = printed.partition("msmarco-untitled")[2].partition("msmarco-triples")[0]
    assert untitled.count("collectionandqueries.tar.gz (1.06GB)") == 1
    assert " is there" not in printed


def test_sentences_behind_those_that_are_looked_at_are_written_too(tmp_path, monkeypatch):
    """In documents of twelve, also where those that are looked at end."""
    monkeypatch.setattr(data_folders, "_N_LOOKED_AT", 15)
    sentences = [f"sentence {i} ." for i in range(50)]
    write_lines(tmp_path / "downloads" / "bookcorpus" / "a.txt", sentences)
    make_data(tmp_path / "downloads", tmp_path / "data", ["bookcorpus"])
    lines = read(tmp_path / "data" / "bookcorpus" / "books.jsonl")
    texts = [json.loads(line)["text"] for line in lines]
    assert " ".join(texts) == " ".join(sentences)
    assert [text.count("sentence") for text in texts] == [12, 12, 12, 12, 2]


def test_one_member_that_is_unpacked_does_not_hide_the_archive(tmp_path):
    tiny_downloads.write_tar(tmp_path / "a.tar.gz", {"x/b.tsv": ["1"], "x/c.tsv": ["2"]})
    (tmp_path / "b.tsv").write_text("1\n")
    wanted = Published("a.tar.gz", "", members=("b.tsv", "c.tsv"))
    archive = tmp_path / "a.tar.gz"
    assert find(tmp_path, wanted) == {name: [Source(archive, name)] for name in wanted.members}
