import gzip
import os
import re

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.folders import find_files, find_place
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import read_corpus
from tests.lines import refusal, whole
from tests.world import write_records


def write_tree(folder, *names):
    """Writes files whose text is their name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return folder


def ids(folder):
    return [document.id for document in read_documents(str(folder))]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    write_records(tmp_path / "b.jsonl", [{"text": "last"}])
    write_records(tmp_path / "a.jsonl", [{"text": "first"}, {"text": "second"}])
    (tmp_path / "notes.pdf").write_text("not read")
    assert list(read_documents(str(tmp_path))) == [
        Document("a.jsonl:1", "first"),
        Document("a.jsonl:2", "second"),
        Document("b.jsonl:1", "last"),
    ]


def test_files_in_subfolders_are_named_by_their_relative_paths(tmp_path):
    write_tree(tmp_path, "a.md", "guide/b.md", "guide/more/c.md", "z.md", "guide/README.md")
    expected = ["a.md", "guide/README.md", "guide/b.md", "guide/more/c.md", "z.md"]
    assert list(read_documents(str(tmp_path))) == [Document(f"{name}:1", name) for name in expected]
    # The passages that encode and search read are the same.
    assert [passage.id for passage in read_corpus(f"{tmp_path}/")] == ids(tmp_path)


def test_hidden_files_and_folders_are_not_read(tmp_path):
    write_tree(tmp_path, "a.txt", "b/c.txt", ".git/d.txt", "b/.venv/e/f.txt", ".g.txt")
    assert ids(tmp_path) == ["a.txt:1", "b/c.txt:1"]
    # Where the folder itself is in a hidden one, it was meant.
    write_tree(tmp_path / ".venv", "x.txt", "y.txt")
    assert ids(tmp_path / ".venv") == ["x.txt:1", "y.txt:1"]


def test_links_to_folders_are_not_followed(tmp_path, caplog):
    caplog.set_level("INFO")
    docs = write_tree(tmp_path / "docs", "a.txt", "b/c.txt")
    (docs / "b/up").symlink_to("..")
    (docs / "d.txt").symlink_to("a.txt")
    assert ids(docs) == ["a.txt:1", "b/c.txt:1", "d.txt:1"]
    assert caplog.messages == [f"{docs}: reading a.txt, b/c.txt, d.txt; not b/up"]
    assert caplog.records[0].levelname == "INFO"  # nothing is wrong
    (tmp_path / "link").symlink_to("docs")
    assert ids(tmp_path / "link") == ["a.txt:1", "b/c.txt:1", "d.txt:1"]


def test_thousands_of_folders_are_read(tmp_path):
    write_tree(tmp_path, *(f"{i % 40}/{i}/a.txt" for i in range(2000)))
    deep = "/".join(["d"] * 300)
    write_tree(tmp_path, f"{deep}/a.txt")
    found = ids(tmp_path)
    assert len(found) == 2001
    assert f"{deep}/a.txt:1" in found


def test_what_is_not_read_of_a_folder_is_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "a.txt").write_text("first")
    list(read_documents(str(tmp_path)))
    assert caplog.messages == []
    write_tree(tmp_path, "b.csv", "more/c.pdf", ".hidden")
    list(read_documents(str(tmp_path)))
    assert caplog.messages == [f"{tmp_path}: reading a.txt; not b.csv, more/c.pdf"]


@pytest.mark.parametrize(
    "corpus",
    ["corpus.jsonl", "corpus.tsv", "collection.tsv.gz", "psgs_w100.tsv", "msmarco-docs.tsv"],
)
def test_of_a_data_set_the_passages_alone_are_read(tmp_path, corpus):
    rows = {
        "corpus.jsonl": b'{"_id": "1", "text": "Passage."}\n',
        "corpus.tsv": b"1\t\tPassage.\n",
        "collection.tsv.gz": gzip.compress(b"1\tPassage.\n"),
        "psgs_w100.tsv": b"id\ttext\n1\tPassage.\n",
        "msmarco-docs.tsv": b"1\thttp://x\t\tPassage.\n",
    }
    (tmp_path / corpus).write_bytes(rows[corpus])
    write_records(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "Who?"}])
    write_tree(tmp_path, "a.queries.tsv", "qrels/test.tsv", "more/a.txt")
    assert list(read_documents(str(tmp_path))) == [Document("1", "Passage.")]
    # The plain file, not its archive.
    write_tree(tmp_path, f"{corpus}.xz")
    assert list(read_documents(str(tmp_path))) == [Document("1", "Passage.")]
    write_tree(tmp_path / "notes", "z.txt", "README.md")
    assert find_files(tmp_path, "notes/*.txt") == ["notes/z.txt"]


@pytest.mark.parametrize(
    "name",
    [
        *("scifact/corpus.jsonl", "a/b/collection.tsv.gz", "queries.jsonl", "a/queries.jsonl.xz"),
        *("qrels/test.tsv", "a/qrels/dev.tsv", "qrels.train.tsv", "a/queries.dev.tsv"),
    ],
)
def test_queries_and_judgments_are_no_documents(name, tmp_path, caplog):
    """Nor are the passages of a data set in a folder: its ids are those of another collection."""
    caplog.set_level("INFO")
    write_tree(tmp_path, "a.txt", name)
    assert ids(tmp_path) == ["1"]
    assert caplog.messages == [f"{tmp_path}: reading a.txt; not {name}"]
    write_tree(tmp_path, "my-queries.txt", "qrels/notes.txt")
    assert find_files(tmp_path, pattern="") == ["a.txt", "my-queries.txt", "qrels/notes.txt"]


def test_of_a_data_set_of_the_hub_the_passages_alone_are_read(tmp_path):
    parts = [f"{kind}/test-00000-of-00001.parquet" for kind in ("corpus", "qrels", "queries")]
    write_tree(tmp_path, *parts)
    assert find_files(tmp_path, pattern="") == parts[:1]
    assert find_files(tmp_path, pattern="q*/*") == parts[1:]
    write_tree(tmp_path / "docs", "news/a.jsonl", "queries/b.jsonl", "topics/c.jsonl")
    found = ["news/a.jsonl", "queries/b.jsonl", "topics/c.jsonl"]
    assert find_files(tmp_path / "docs", pattern="") == found


@pytest.mark.parametrize("other", ["a.txt", "a.jsonl", "more/a.tsv.gz", "a.parquet", "z.md.gz"])
@pytest.mark.parametrize("folder", ["", "guide/"])
def test_files_of_several_kinds_are_refused_with_a_pattern(folder, other, tmp_path, capsys):
    write_tree(tmp_path, f"{folder}NOTES.md", other)
    command = ["search", f"--corpus={tmp_path}", "--query=a"]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"folder {tmp_path} holds documents of 2 kinds (" in line
    assert all(name in line for name in (other, f"{folder}NOTES.md"))
    pattern = line.split("such as ")[1].strip("'")
    chosen = min(f"{folder}NOTES.md", other)
    assert find_files(*find_place(pattern)[:2]) == [chosen]
    assert find_files(tmp_path, "**/*") == sorted([f"{folder}NOTES.md", other])


def test_a_pattern_chooses_files(tmp_path):
    names = ["a.md", "a.txt", "b/a.md", "b/c/d.md", "b/c/e.md.gz", "b[1]/f.md", ".g/h.md"]
    write_tree(tmp_path, *names)
    for pattern, expected in (
        ("*.md", ["a.md"]),
        ("**/*.md", ["a.md", "b/a.md", "b/c/d.md", "b[1]/f.md"]),
        ("b/**/*.md", ["b/a.md", "b/c/d.md"]),
        ("*/a.*", ["b/a.md"]),
        ("b[1]/?.md", ["b[1]/f.md"]),
        ("**/e*", ["b/c/e.md.gz"]),
    ):
        place = find_place(f"{tmp_path}/{pattern}")
        found = [str((place.path / name).relative_to(tmp_path)) for name in find_files(*place[:2])]
        assert found == expected, pattern
    assert ids(f"{tmp_path}/b/*.md") == ["1"]
    assert ids(f"{tmp_path}/**/?.md")[:2] == ["a.md:1", "b/a.md:1"]
    assert [passage.text for passage in read_corpus(f"{tmp_path}/b/**/d.md")] == ["b/c/d.md"]
    with pytest.raises(
        UserError,
        match=whole(
            "folder TMP holds no .txt, .md, .jsonl, .tsv or .parquet file of the "
            "pattern *.tsv, and no folder in it does (there is only a.md, a.txt, "
            "b/a.md, ...)"
        ),
    ):
        ids(f"{tmp_path}/*.tsv")
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/none/*.md does not exist: expected pydocs, pydocs:numpy,scipy, a "
            ".txt, .md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder "
            "or pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
            "tfds:NAME_OR_FOLDER[:SPLIT]"
        ),
    ):
        ids(f"{tmp_path}/none/*.md")
    write_tree(tmp_path, "what?.txt")
    assert ids(f"{tmp_path}/what?.txt") == ["1"]


def test_names_of_files_become_ids_whatever_they_are(tmp_path):
    for name in ("a\n.txt", "b\udcff.txt"):
        (tmp_path / name).write_text("text\n")
    assert ids(tmp_path) == [r"a\x0a.txt:1", r"b\xff.txt:1"]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ((), r"nothing that is not hidden"),
        ((".git/a.txt",), r"nothing that is not hidden"),
        (("a.pdf", "more/b.docx"), r"only a\.pdf, more/b\.docx"),
    ],
)
def test_a_folder_without_text_is_refused(tmp_path, names, what, capsys):
    write_tree(tmp_path, *names)
    kinds = r"no \.txt, \.md, \.jsonl, \.tsv or \.parquet file"
    with pytest.raises(UserError, match=rf"holds {kinds}, and no folder in it does.* {what}"):
        ids(tmp_path)
    assert main(["search", f"--corpus={tmp_path}", "--query=a"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write_tree(tmp_path, "a.txt", "b/c.txt")

    def scandir(path, list_folder=os.scandir):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/b: Permission denied"):
        ids(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "adapt --corpus=docs --model=m --workdir=link/new",
        "compare --corpus=docs --data=log.txt --model=m --workdir=docs",
        "corpus --corpus=docs/ --tokenizer=t --out=docs/new",
        "corpus --corpus=docs --tokenizer=t --out=docs/b/new --tasks=2",
        "corpus --corpus=docs --tokenizer=t --out=new --json_out=docs/new.md",
        "vocabulary --corpus=pydocs --corpus=docs --out=docs/new",
        "encode --corpus=docs --model=m --out=new --parquet=docs/b/new.parquet",
        "bm25 --corpus=docs --data=log.txt --run_out=docs/new.tsv",
        "rerank --corpus=docs --data=log.txt --model=m --run=r --run_out=link/new.txt",
        "search --corpus=docs --query=a --json_out=docs/new.jsonl.gz",
    ],
)
def test_an_output_among_the_documents_is_refused(command, tmp_path, monkeypatch, capsys):
    """The next command would read its vocabulary, its names and its queries as documents."""
    write_tree(tmp_path, "docs/a.txt", "docs/b/c.txt", "log.txt")
    (tmp_path / "link").symlink_to("docs")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    out = (
        command.partition("workdir=")[2]
        or re.search(r"(?:out|parquet)=(docs\S*|link\S*)", command)[1]
    )
    source = "docs/" if "--corpus=docs/" in command else "docs"
    assert refusal(capsys) == (
        f"{out} is in the folder of the documents, {source}, and would be read as one of them:"
        " choose another place"
    )
    assert ids("docs") == ["a.txt:1", "b/c.txt:1"]


@pytest.mark.parametrize(
    ("tree", "corpus", "out"),
    [
        ((), "docs", "docs-1/new"),
        ((), "docs", "docs/.runs/new"),
        ((), "docs/a.txt", "docs/new"),
        (("docs/corpus.jsonl",), "docs", "docs/new"),
    ],
)
def test_an_output_elsewhere_is_not(tree, corpus, out, tmp_path, monkeypatch, capsys):
    write_tree(tmp_path, "docs/a.txt", *tree)
    monkeypatch.chdir(tmp_path)
    assert main(["corpus", f"--corpus={corpus}", "--tokenizer=gone", f"--out={out}"]) == 2
    assert refusal(capsys).startswith("no folder gone, and no tokenizer of that name")


def test_a_file_whose_kind_is_not_read_may_lie_among_the_documents(tmp_path, monkeypatch):
    write_tree(tmp_path, "docs/a.txt", "docs/b/c.txt")
    monkeypatch.chdir(tmp_path)
    assert main(["search", "--corpus=docs", "--query=a", "--json_out=docs/found.json"]) == 0
    assert ids("docs") == ["a.txt:1", "b/c.txt:1"]
