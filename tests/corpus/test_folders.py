import gzip
import os

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.folders import choose_files
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.folder import read_corpus
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
    (tmp_path / "a.txt").write_text("first\nsecond")
    (tmp_path / "README.md").write_text("not read")
    assert list(read_documents(str(tmp_path))) == [
        Document("a.txt:1", "first"),
        Document("a.txt:2", "second"),
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


def test_links_may_go_in_circles(tmp_path):
    docs = write_tree(tmp_path / "docs", "a.txt", "b/c.txt", "b/d/e.txt")
    write_tree(tmp_path / "elsewhere", "f.txt")
    write_tree(tmp_path, "outside.txt")
    (docs / "b/self").symlink_to(docs / "b")
    (docs / "a-top").symlink_to("..")
    (docs / "b/d/up").symlink_to("../..")
    (docs / "loop").symlink_to("loop")
    (docs / "broken.txt").symlink_to("nothing.txt")
    (docs / "linked").symlink_to("../elsewhere")
    (docs / "again").symlink_to("../elsewhere")
    assert ids(docs) == ["a.txt:1", "again/f.txt:1", "b/c.txt:1", "b/d/e.txt:1"]


def test_a_folder_has_its_own_name_and_not_that_of_a_link(tmp_path):
    write_tree(tmp_path, "v1/a.txt", "v2/b.txt")
    (tmp_path / "latest").symlink_to("v2")
    assert ids(tmp_path) == ["v1/a.txt:1", "v2/b.txt:1"]


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
    content = b"1\tPassage.\n" if corpus.endswith("tsv") else b'{"_id": "1", "text": "Passage."}\n'
    if corpus.endswith("gz"):
        content = gzip.compress(b"1\tPassage.\n")
    (tmp_path / corpus).write_bytes(content)
    write_records(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "Who?"}])
    write_tree(tmp_path, "a.queries.tsv", "qrels/test.tsv", "more/a.txt")
    assert list(read_documents(str(tmp_path))) == [Document("1", "Passage.")]
    # The plain file, not its archive.
    assert choose_files(["corpus.tsv.gz", "z.txt", "corpus.tsv"]) == ["corpus.tsv"]
    assert choose_files(["z.txt", "my.tsv", "README.md"]) == ["my.tsv", "z.txt"]
    assert choose_files(["a.txt", "a.txt.gz", "b/a.txt.gz"]) == ["a.txt", "b/a.txt.gz"]
    assert choose_files(["a.md.zst", "a.md.gz", "b.md"]) == ["a.md.gz", "b.md"]


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
    others = ["a.txt", "my-queries.jsonl", "qrels/notes.txt"]
    assert choose_files([*others, name]) == others


@pytest.mark.parametrize("other", ["a.txt", "a.jsonl", "more/a.tsv.gz", "a.parquet"])
@pytest.mark.parametrize("folder", ["", "guide/"])
def test_markdown_beside_other_files_is_refused(folder, other):
    message = rf"holds Markdown \({folder}NOTES\.md\) and other files \({other}\): expected"
    with pytest.raises(UserError, match=message):
        choose_files([f"{folder}NOTES.md", "README.md", other])
    # Files that describe others may be in each folder.
    assert choose_files([f"{folder}README.md", "README.md", other]) == [other]
    # A data set's passages are known by their name.
    assert choose_files([f"{folder}NOTES.md", "corpus.jsonl"]) == ["corpus.jsonl"]


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

    def listdir(path, list_folder=os.listdir):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr("cocondenser_jax.corpus.folders.os.listdir", listdir)
    with pytest.raises(UserError, match=f"cannot read {tmp_path}/b: Permission denied"):
        ids(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "adapt --corpus=docs --model=m --workdir=link/new",
        "compare --corpus=docs --data=log.txt --model=m --workdir=docs",
        "corpus --source=docs/ --tokenizer=t --out=docs/new",
        "corpus --source=docs --tokenizer=t --out=docs/b/new --tasks=2",
        "corpus --source=docs --tokenizer=t --out=new --json_out=docs/new.md",
        "vocabulary --source=pydocs --source=docs --out=docs/new",
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
    assert "lies in the folder of the documents, docs" in capsys.readouterr().err
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
    assert main(["corpus", f"--source={corpus}", "--tokenizer=gone", f"--out={out}"]) == 2
    assert "lies in the folder" not in capsys.readouterr().err


def test_a_file_whose_kind_is_not_read_may_lie_among_the_documents(tmp_path, monkeypatch):
    write_tree(tmp_path, "docs/a.txt", "docs/b/c.txt")
    monkeypatch.chdir(tmp_path)
    assert main(["search", "--corpus=docs", "--query=a", "--json_out=docs/found.json"]) == 0
    assert ids("docs") == ["a.txt:1", "b/c.txt:1"]
