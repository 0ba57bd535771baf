"""Published collections by their names, fetched from places on this machine."""

import hashlib
import http.server
import json
import logging
import sys
import threading
import zipfile
from collections import namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data import named
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries, read_split
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import read_qrels, read_run
from tests.lines import whole
from tests.world import write_records

CORPUS = [{"_id": "d1", "title": "T", "text": "one two"}, {"_id": "d2", "text": "three"}]
QUERIES = [{"_id": "q1", "text": "two"}, {"_id": "q2", "text": "not judged"}]


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder that is served by HTTP in BEIR's place; the cache is new."""
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(named, "_BEIR_URL", f"http://127.0.0.1:{server.server_port}/{{}}.zip")
    yield folder
    server.shutdown()
    server.server_close()


@pytest.fixture
def serve_archive(served, tmp_path, monkeypatch):
    """Writes an archive of BEIR, with a collection at each of some places."""

    def write(name, *places):
        with zipfile.ZipFile(served / f"{name}.zip", "w") as archive:
            for place in places:
                for file, records in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES)):
                    path = write_records(tmp_path / file, records)
                    archive.write(path, f"{place}/{file}")
                judgments = "query-id\tcorpus-id\tscore\nq1\td1\t1\n"
                archive.writestr(f"{place}/qrels/test.tsv", judgments)
                archive.writestr(f"{place}/../../outside.txt", "not extracted")
        md5 = hashlib.md5((served / f"{name}.zip").read_bytes()).hexdigest()
        monkeypatch.setitem(named._BEIR, name, md5)
        return served / f"{name}.zip"

    return write


def require_collection(folder, *, judged=True):
    assert list(read_corpus(folder)) == [Passage("d1", "T", "one two"), Passage("d2", "", "three")]
    assert read_queries(folder) == {"q1": "two", "q2": "not judged"}
    if judged:
        assert read_split(folder, "test") == ({"q1": "two"}, {"q1": {"d1": 1}})


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_archive_of_beir_is_fetched_once(serve_archive, tmp_path, caplog):
    caplog.set_level(logging.INFO, named.__name__)
    archive = serve_archive("scifact", "scifact")
    folder = named.find_data("beir:scifact")
    assert caplog.messages == [f"beir:scifact is in {folder}"]
    assert folder == tmp_path / "cache" / "beir" / "scifact"
    require_collection(folder)
    assert files_in(tmp_path / "cache") == [
        f"beir/scifact/{name}" for name in ("corpus.jsonl", "qrels/test.tsv", "queries.jsonl")
    ]
    archive.unlink()
    assert named.find_data("beir:scifact") == folder
    assert named.find_data(Path("beir:scifact")) == folder


def test_a_forum_is_a_part_of_its_archive(serve_archive, tmp_path):
    serve_archive("cqadupstack", "cqadupstack/english", "cqadupstack/gis")
    require_collection(named.find_data("beir:cqadupstack/english"))
    assert [path.name for path in (tmp_path / "cache" / "beir").iterdir()] == [
        "cqadupstack%2Fenglish"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "beir:scifakt",
            "no collection of BEIR 'scifakt': did you mean scifact or scidocs or climate-fever?",
        ),
        (
            "beir:cqadupstack",
            "no forum of beir:cqadupstack/FORUM '': did you mean android or english or gaming?",
        ),
        ("beir:scifact/english", "beir:scifact has no parts: leave out /english"),
        ("beir:scifact/a:b", "beir:scifact has no parts: leave out /a:b"),
        ("beir:fiqa", "http://127.0.0.1:…/fiqa.zip cannot be fetched: File not found"),
        ("beir:", "beir:: expected beir:NAME, nano:NAME or ir:NAME (docs/data.md)"),
        (
            "nano:SciFakt",
            (
                "no collection of NanoBEIR 'scifakt': did you mean scifact or scidocs or "
                "climatefever?"
            ),
        ),
    ],
)
def test_a_wrong_name_is_one_line_and_leaves_nothing(served, tmp_path, name, message):
    with pytest.raises(UserError, match=whole(message)):
        named.find_data(name)
    assert files_in(tmp_path) == []


def test_an_archive_that_is_cut_short_or_changed_is_refused(serve_archive, tmp_path):
    archive = serve_archive("scifact", "scifact")
    cut = archive.read_bytes()[:-10]
    archive.write_bytes(cut)
    found, expected = hashlib.md5(cut).hexdigest(), named._BEIR["scifact"]
    said = f"…/scifact.zip has the MD5 {found}, expected {expected}: cut short, or changed"
    with pytest.raises(UserError, match=whole(said)):
        named.find_data("beir:scifact")
    assert files_in(tmp_path / "cache") == []


def test_no_network_is_one_line(served, monkeypatch):
    monkeypatch.setattr(named, "_BEIR_URL", "http://127.0.0.1:9/{}.zip")  # nothing listens there
    with pytest.raises(UserError, match=r"/scifact.zip cannot be fetched: .*refused"):
        named.find_data("beir:scifact")


def test_what_is_no_name_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in ("data", Path("data"), "hf:ag_news::train", "gs://bucket/x", "beir"):
        assert named.find_data(value) is value
    Path("beir:mine").mkdir()  # a folder of this name
    assert named.find_data("beir:mine") == "beir:mine"


def write_nano(tmp_path, monkeypatch, *judged):
    """Puts NanoSciFact, with these judgments, where the hub's NanoBEIR is; the cache is new."""
    hub = tmp_path / "hub"
    tables = {
        "corpus": CORPUS,
        "queries": QUERIES,
        "qrels": [{"query-id": "q1", "corpus-id": "d1"} | row for row in judged],
    }
    card = ["---", "configs:"]
    for config, records in tables.items():
        (hub / config).mkdir(parents=True)
        write_records(hub / config / "NanoSciFact.jsonl", records)
        card += [f"- config_name: {config}", "  data_files:", "  - split: NanoSciFact"]
        card += [f"    path: {config}/NanoSciFact.jsonl"]
    (hub / "README.md").write_text("\n".join([*card, "---", ""]))
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named, "_NANO_DATASET", str(hub))
    # datasets takes two folders of one name for the same data.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    return hub


def test_nanobeir_is_read_as_sentence_transformers_reads_it(tmp_path, monkeypatch):
    from sentence_transformers.sentence_transformer.evaluation import nano_beir

    assert {each.casefold() for each in named._NANO} == {*nano_beir.DATASET_NAME_TO_HUMAN_READABLE}
    assert {*named._NANO} == {*nano_beir.DATASET_NAME_TO_HUMAN_READABLE.values()}
    hub = write_nano(tmp_path, monkeypatch, {})
    folder = named.find_data("nano:scifact")
    require_collection(folder)
    evaluator = nano_beir.NanoBEIREvaluator(["scifact"], dataset_id=str(hub)).evaluators[0]
    assert dict(zip(evaluator.queries_ids, evaluator.queries, strict=True)) == {"q1": "two"}
    assert evaluator.relevant_docs == {"q1": {"d1"}}
    assert evaluator.corpus_ids == [passage.id for passage in read_corpus(folder)]
    monkeypatch.setattr(named, "_NANO_DATASET", str(tmp_path / "none"))
    with pytest.raises(UserError, match=whole("nano:NQ: …")):
        named.find_data("nano:NQ")


class Text(namedtuple("Text", "id_ body")):
    """A query, or a document without a title, whose text has a name of its own."""

    @property
    def query_id(self):
        return self.id_

    doc_id = query_id

    def default_text(self):
        return self.body


def fake_ir_datasets(**grades):
    """What ir_datasets has for one collection."""
    titled = namedtuple("Titled", "doc_id title text")
    judged = namedtuple("Judged", "query_id doc_id relevance iteration")
    dataset = SimpleNamespace(
        has_docs=lambda: True,
        has_queries=lambda: True,
        has_qrels=lambda: True,
        docs_count=lambda: 2,
        docs_iter=lambda: iter([titled("d1", "T", "one two"), Text("d2", "three")]),
        queries_iter=lambda: iter([Text(record["_id"], record["text"]) for record in QUERIES]),
        qrels_iter=lambda: (judged("q1", p, grade, "0") for p, grade in grades.items()),
    )
    return SimpleNamespace(load={"mine": dataset}.__getitem__)


def test_a_judgment_of_nanobeir_keeps_its_grade(tmp_path, monkeypatch):
    write_nano(tmp_path, monkeypatch, {"score": 0}, {"corpus-id": "d2", "score": 2})
    folder = named.find_data("nano:SciFact")
    assert read_qrels(folder / "qrels" / "test.tsv") == {"q1": {"d1": 0, "d2": 2}}


def test_a_judgment_of_nanobeir_may_list_several_passages(tmp_path, monkeypatch):
    write_nano(tmp_path, monkeypatch, {"corpus-id": ["d1", "d2"]})
    folder = named.find_data("nano:SciFact")
    assert read_qrels(folder / "qrels" / "test.tsv") == {"q1": {"d1": 1, "d2": 1}}


def test_a_collection_of_ir_datasets_becomes_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "ir_datasets", fake_ir_datasets(d1=1))
    require_collection(named.find_data("ir:mine"))
    with pytest.raises(
        UserError, match=whole("ir_datasets has no 'other': its names are at ir-datasets.com")
    ):
        named.find_data("ir:other")


@pytest.mark.parametrize("lacks", ["has_docs", "has_queries"])
def test_a_collection_without_documents_or_queries_is_refused(tmp_path, monkeypatch, lacks):
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    fake = fake_ir_datasets(d1=1)
    setattr(fake.load("mine"), lacks, lambda: False)
    monkeypatch.setitem(sys.modules, "ir_datasets", fake)
    said = "ir:mine has no documents or no queries, as ir:vaswani does"
    with pytest.raises(UserError, match=whole(said)):
        named.find_data("ir:mine")
    assert files_in(tmp_path) == []


def test_a_judgment_of_ir_datasets_keeps_its_grade(tmp_path, monkeypatch):
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "ir_datasets", fake_ir_datasets(d1=3, d2=-1))
    folder = named.find_data("ir:mine")
    assert read_qrels(folder / "qrels" / "test.tsv") == {"q1": {"d1": 3, "d2": -1}}


def test_a_collection_of_ir_datasets_may_have_no_judgments(tmp_path, monkeypatch):
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    fake = fake_ir_datasets()
    fake.load("mine").has_qrels = lambda: False
    monkeypatch.setitem(sys.modules, "ir_datasets", fake)
    folder = named.find_data("ir:mine")
    require_collection(folder, judged=False)
    assert files_in(folder) == ["corpus.jsonl", "queries.jsonl"]


def test_ir_datasets_itself_gives_the_same(tmp_path, monkeypatch):
    ir_datasets = pytest.importorskip("ir_datasets", reason="the extra [ir] is not installed")
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs.tsv").write_text("d1\tone two\nd2\tthree\n")
    (tmp_path / "queries.tsv").write_text("q1\ttwo\nq2\tnot judged\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\n")
    dataset = ir_datasets.create_dataset(
        docs_tsv=str(tmp_path / "docs.tsv"),
        queries_tsv=str(tmp_path / "queries.tsv"),
        qrels_trec=str(tmp_path / "qrels"),
    )
    ir_datasets.registry.register("cocondenser-test", dataset)
    folder = named.find_data("ir:cocondenser-test")
    assert list(read_corpus(folder)) == [Passage("d1", "", "one two"), Passage("d2", "", "three")]
    assert read_split(folder, "test") == ({"q1": "two"}, {"q1": {"d1": 1}})
    with pytest.raises(UserError, match=r"^ir_datasets has no 'nosuch'"):
        named.find_data("ir:nosuch")


def test_a_missing_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    assert main(["bm25", "--data=ir:vaswani", f"--run_out={tmp_path}/run"]) == 2
    message = "ir_datasets is missing; it comes with: pip install 'cocondenser-jax[ir]'"
    assert message in capsys.readouterr().err
    assert files_in(tmp_path) == []


def test_commands_take_names_for_data_corpora_and_settings(
    serve_archive, tmp_path, model_folder, capsys
):
    serve_archive("scifact", "scifact")
    out = tmp_path / "run.trec"
    assert main(["bm25", "--data=beir:scifact", f"--run_out={out}"]) == 0
    assert {query: {*found} for query, found in read_run(out).items()} == {"q1": {"d1"}}
    embeddings = tmp_path / "embeddings"
    encode = ["encode", f"--model={model_folder}", "--corpus=beir:scifact", f"--out={embeddings}"]
    assert main(encode) == 0
    corpus = json.loads((embeddings / "manifest.json").read_text())["corpus"]
    assert corpus == str(tmp_path / "cache" / "beir" / "scifact" / "corpus.jsonl")
    assert main(["search", "--corpus=beir:scifact", "--query=three"]) == 0
    assert "  1  d2  (" in capsys.readouterr().out
    words = ["finetune", "--config=configs/finetune.py", f"--workdir={tmp_path}/run"]
    words += [f"--config.model.folder={model_folder}", "--config.data.folder=beir:scifact"]
    words += ["--config.data.negatives_per_query=0", "--config.model.passage_length=64"]
    assert main(words) == 2  # it has no split `train`
    assert f"{tmp_path}/cache/beir/scifact has no judgments of split" in capsys.readouterr().err


def test_a_document_with_a_title_and_no_text_is_its_default_text(tmp_path, monkeypatch):
    """As those of CORD-19, which have an abstract."""
    monkeypatch.setenv("COCONDENSER_CACHE", str(tmp_path / "cache"))
    document = SimpleNamespace(doc_id="d1", title="T", default_text=lambda: "T and an abstract")
    fake = fake_ir_datasets(d1=1)
    fake.load("mine").docs_iter = lambda: iter([document])
    monkeypatch.setitem(sys.modules, "ir_datasets", fake)
    folder = named.find_data("ir:mine")
    assert list(read_corpus(folder)) == [Passage("d1", "", "T and an abstract")]


def test_cqadupstack_has_twelve_forums():
    names = "android english gaming gis mathematica physics programmers stats tex unix webmasters"
    assert sorted(named._FORUMS) == [*names.split(), "wordpress"]
