import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from cocondenser_jax.corpus import records, sources
from cocondenser_jax.corpus.records import Document
from cocondenser_jax.corpus.sources import (
    documents_sha256,
    open_source,
    read_documents,
)
from cocondenser_jax.errors import UserError
from tests.lines import whole
from tests.world import COMPRESSIONS, write_records


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_jsonl_plain_and_compressed(tmp_path, suffix):
    plain = write_records(
        tmp_path / "plain.jsonl",
        [
            {"text": "no name"},
            {"_id": "b", "title": " Title ", "text": " and text\n"},
            {"id": 7, "title": "Title", "text": "\nTitle \ncomes again"},
            {"id": "c", "title": "", "text": ""},
            {"id": "d", "spans": ["one", "two"], "title": "ignored"},
        ],
    ).read_bytes()
    path = tmp_path / f"corpus.jsonl{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](plain.replace(b'{"id": 7', b'\n{"id": 7')))
    assert list(read_documents(str(path))) == [
        Document("1", "no name"),
        Document("b", "Title\nand text"),
        Document("7", "Title \ncomes again"),
        Document("c", ""),
        Document("d", "one\ntwo", ("one", "two")),
    ]


def test_frames_of_zstandard_are_read_to_the_last(tmp_path):
    path = tmp_path / "corpus.txt.zst"
    compress = zstd.compress
    path.write_bytes(compress(b"one\n") + compress(b"two\n"))
    assert [document.text for document in read_documents(str(path))] == ["one", "two"]


def test_text_is_a_document_per_line_or_per_block(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes("\ufefffirst é\r\nsecond\r\n\r\n".encode())
    assert list(read_documents(str(path))) == [Document("1", "first é"), Document("2", "second")]
    path.write_text("\nfirst\nsecond\n \n\nthird\n")
    assert list(read_documents(str(path))) == [
        Document("2", "first\nsecond"),
        Document("6", "third"),
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "tsv", "parquet"])
def test_a_title_of_another_name_is_not_dropped_without_a_word(suffix, tmp_path, caplog):
    path = tmp_path / f"docs.{suffix}"
    rows = {"id": ["7", "8"], "subject": ["a title", "b"], "text": ["some words", "more words"]}
    for title in ("subject", "title"):
        columns = {title if name == "subject" else name: value for name, value in rows.items()}
        columns |= {"created": ["2024", "2025"], "url": ["http://x", "http://y"]}
        rows_of_file = [*zip(*columns.values(), strict=True)]
        if suffix == "jsonl":
            write_records(path, [dict(zip(columns, row, strict=True)) for row in rows_of_file])
        elif suffix == "tsv":
            path.write_text("".join("\t".join(row) + "\n" for row in [[*columns], *rows_of_file]))
        else:
            pq.write_table(pa.table(columns), path)
        list(read_documents(str(path)))
        list(read_documents(str(path)))
    kind = "field" if suffix == "jsonl" else "column"
    said = f"not reading subject, created; a {kind} of titles must be named title"
    assert caplog.messages == [f"{path}: {said}"]


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_each_table_of_a_folder_has_names(names, tmp_path):
    first, second = (tmp_path / f"{name}.tsv" for name in names)
    first.write_text("text\tid\nwords of text\td1\n")
    second.write_text("words of text\td2\n")  # a piece of the same table
    with pytest.raises(
        UserError,
        match=whole(
            f"TMP/{second.name}:1: words of text, d2: expected a first line that names the"
            " columns, id"
            " and text among them; or, where passages are read, --columns=id,title,text"
        ),
    ):
        list(read_documents(str(tmp_path)))
    second.write_text("id\ttitle\ttext\nd2\tT\tother words\n")
    found = sorted(read_documents(str(tmp_path)))
    assert found == [Document("d1", "words of text"), Document("d2", "T\nother words")]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_tables_of_passages_are_documents(tmp_path, suffix):
    path = tmp_path / f"msmarco-docs.tsv{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](b"D1\thttp://x\tTitle\tA body.\nD2\t\t\tTitle.\n"))
    # A URL is no prose: it is not read.
    expected = [Document("D1", "Title\nA body."), Document("D2", "Title.")]
    assert list(read_documents(str(path))) == expected
    path.rename(tmp_path / f"any-name.tsv{suffix}")
    for named in (str(tmp_path), f"{tmp_path}/any-name.tsv{suffix}"):
        assert list(read_documents(f"{named}:id,url,title,text")) == expected
        assert next(iter(read_documents(f"{named}:id,-,-,text"))) == Document("D1", "A body.")
    with pytest.raises(
        UserError, match=whole("docs.jsonl: --columns says what the columns of .tsv files are")
    ):
        open_source("docs.jsonl:id,text")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("a text\n")
    said = "TMP/more: --columns says what the columns of .tsv files are"
    with pytest.raises(UserError, match=whole(said)):
        open_source(f"{tmp_path}/more:id,text")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<DOC>\n<DOCNO> 1", "a tag of TREC's topics or documents, '<DOC>': expected texts alone"),
        ("q Q0 d 1 3.5 x", "a result of a run, 'q Q0 d 1 3.5 x': expected texts alone"),
        (
            "1\tone\n2\ttwo\n",
            "a tab in each line, as in a table: expected texts alone, or a .tsv file whose first"
            " line names the columns, id and text among them",
        ),
    ],
)
def test_lines_that_are_no_texts_are_no_documents(tmp_path, text, said):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=whole(f"TMP/a.txt:1: {said}")):
        list(read_documents(str(tmp_path / "a.txt")))


def test_zero_and_no_text_are_ids_like_others(tmp_path):
    """Only a record without an id has that of its line."""
    records = [{"id": 0}, {"_id": 0, "id": "a"}, {"id": ""}, {"_id": None, "id": "b"}, {"id": None}]
    path = write_records(tmp_path / "texts.jsonl", (each | {"text": "words"} for each in records))
    assert [each.id for each in read_documents(str(path))] == ["0", "0", "", "b", "5"]


def test_half_characters_are_replaced(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "\\udc00", "text": "half \\ud83d of a smile"}')
    assert list(read_documents(str(path))) == [Document("?", "half ? of a smile")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "good"}\n{"text": "bad"\n', r"corpus\.jsonl:2 is not valid JSON"),
        (b'{"text": "good"}\n["bad"]\n', whole("TMP/corpus.jsonl:2: expected a JSON object")),
        (b'{"title": "only"}\n', r"corpus\.jsonl:1 has no `text`"),
        (b'{"text": 3}\n', r"corpus\.jsonl:1 has no `text`"),
        (b'{"spans": ["a", 3]}\n', whole("TMP/corpus.jsonl:1: `spans` must be a list of strings")),
        (
            b'{"text": "ab c", "spans": ["a", "bc"]}\n{"text": "a b", "spans": ["b"]}\n',
            whole(
                "TMP/corpus.jsonl:2 has a `text` other than its `spans`: expected one of the two"
            ),
        ),
        (b'{"text": "caf\xe9"}\n', whole("TMP/corpus.jsonl:1: not UTF-8")),
        (b"", "holds no documents"),
        (b"\n\n", "holds no documents"),
        (
            b"[" * 100_000,
            whole("TMP/corpus.jsonl:1 is not valid JSON: …"),
        ),
    ],
)
def test_a_broken_record_is_named_by_file_and_line(tmp_path, content, message):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_documents(str(path)))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_a_broken_archive_is_named(tmp_path, suffix, damage):
    packed = COMPRESSIONS[suffix](b"".join(b"line %d\n" % i for i in range(10_000)))
    path = tmp_path / f"corpus.txt{suffix}"
    path.write_bytes(packed[: len(packed) // 2] if damage == "cut" else b"no archive at all")
    with pytest.raises(UserError, match=r"cannot read .*corpus\.txt\.\w+: "):
        list(read_documents(str(path)))


@pytest.mark.parametrize(
    ("name", "unit"),
    [("corpus.txt", "1: a line"), ("corpus.jsonl", "1: a line"), ("blocks.txt", "3: a document")],
)
def test_a_giant_document_is_refused_and_never_held(tmp_path, monkeypatch, name, unit):
    for module in (records, sources):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 1_000_000)
    block = b"short\n\n" + (b"x" * 9_999 + b"\n") * 2000
    (tmp_path / name).write_bytes(block if name == "blocks.txt" else b"x" * 20_000_000)
    tracemalloc.start()
    with pytest.raises(
        UserError, match=whole(f"TMP/{name}:{unit} is larger than 1 MB; split it first")
    ):
        list(read_documents(str(tmp_path / name)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000
    records.check_size(1_000_000, "within the limit")


def test_the_size_of_a_document_is_that_of_its_bytes(monkeypatch):
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 1_000)
    for text, fits in (("x" * 1_000, True), ("é" * 500, True), ("é" * 501, False)):
        record = records.Record({"text": text}, "1", "a:1")
        if fits:
            assert records.to_document(record).text == text
            continue
        with pytest.raises(
            UserError, match=whole("a:1: a document is larger than 0 MB; split it first")
        ):
            records.to_document(record)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "missing.txt",
            whole(
                "missing.txt does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, "
                ".md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or "
                "pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
                "tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
        (
            "setup.py",
            whole(
                "unknown source 'setup.py': expected pydocs, pydocs:numpy,scipy, a .txt, "
                ".md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or "
                "pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
                "tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
        (
            "docs:numpy",
            whole(
                "docs:numpy does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, "
                ".md, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or "
                "pattern of them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or "
                "tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
        ("hf:", "expected a dataset's name"),
        ("tfds:", "expected a dataset's name"),
    ],
)
def test_an_unknown_source_gets_the_list_of_known_ones(source, message):
    with pytest.raises(UserError, match=message):
        list(read_documents(source))


PARQUET = {
    "id": [7, 8, None],
    "title": ["T", None, "U"],
    "text": ["a", "b", None],
    "vector": [[0.5], [0.5], [0.5]],
}


def test_each_row_group_of_parquet_is_a_piece(tmp_path):
    path = tmp_path / "aé.parquet"
    with path.open("wb") as file:
        pq.write_table(pa.table(PARQUET), file, row_group_size=2)
    # Numbers count from the start of the file.
    expected = [Document("7", "T\na"), Document("8", "b"), Document("3", "U\n")]
    assert list(read_documents(str(path))) == expected
    pieces = open_source(str(path))
    assert [list(piece()) for piece in pieces] == [expected[:2], expected[2:]]
    for name, record in (("b.jsonl", {"text": "c"}), ("c.jsonl", {"text": "d"})):
        write_records(tmp_path / name, [record])
    pq.write_table(pa.table({"text": ["s  t"], "spans": [["s", "t"]]}), tmp_path / "d.parquet")
    path.unlink()
    assert list(read_documents(f"{tmp_path}/*")) == [
        *(Document("b.jsonl:1", "c"), Document("c.jsonl:1", "d")),
        Document("d.parquet:1", "s\nt", ("s", "t")),
    ]


def test_a_column_whose_name_is_not_utf8_is_one_line(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": ["d1"], "text": ["One."], "word": ["w"]}), path, store_schema=False
    )
    path.write_bytes(path.read_bytes().replace(b"word", b"\x80ord"))
    with pytest.raises(UserError, match=r"a\.parquet: 'utf-8' codec can't decode byte 0x80"):
        list(read_documents(str(path)))


def test_broken_parquet_is_one_line(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(
        UserError,
        match=whole("TMP/a.parquet: …Parquet…"),
    ):
        list(read_documents(str(path)))
    pq.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/a.parquet, record 1 has no `text` (a string) and no `spans` (a list of strings)"
        ),
    ):
        list(read_documents(str(path)))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(UserError, match=whole("TMP/a.parquet holds no documents")):
        list(read_documents(str(path)))


def test_the_files_of_a_streamed_dataset_are_pieces(tmp_path):
    pytest.importorskip("datasets")
    odd = tmp_path / "a b"
    odd.mkdir()
    for k in range(2):
        pq.write_table(pa.table(PARQUET).slice(2 * k, 1), odd / f"train-{k}.parquet")
    expected = [Document("7", "T\na"), Document("1:1", "U\n")]
    assert list(read_documents(f"hf:{odd}")) == expected
    pieces = open_source(f"hf:{odd}")
    assert [list(piece()) for piece in pieces] == [expected[:1], expected[1:]]


def test_the_splits_of_a_folder_of_files(tmp_path):
    pytest.importorskip("datasets")
    loose = tmp_path / "loose é"
    loose.mkdir()
    write_records(loose / "train.jsonl", [{"text": "c"}, {"text": "d"}])
    write_records(loose / "test.jsonl", [{"text": "e"}])
    assert list(read_documents(f"hf:{loose}")) == [Document("1", "c"), Document("2", "d")]
    assert list(read_documents(f"hf:{loose}::test")) == [Document("1", "e")]
    configs = "".join(
        f"\n- config_name: {name}\n  data_files: [{{split: {split}, path: {name}.jsonl}}]"
        for name, split in (("train", "train"), ("test", "dev"))
    )
    (loose / "README.md").write_text(f"---\nconfigs:{configs}\n---\n")
    assert list(read_documents(f"hf:{loose}:test:dev")) == [Document("1", "e")]
    (loose / "README.md").unlink()
    with pytest.raises(
        UserError,
        match=whole("hf:TMP/loose é::nosuchsplit: …"),
    ):
        list(read_documents(f"hf:{loose}::nosuchsplit"))


def test_the_hash_of_documents_is_that_of_their_names_and_texts(tmp_path):
    path, other = tmp_path / "a.jsonl", tmp_path / "b.txt"
    path.write_text('{"text": "x"}\n{"text": "y"}\n')
    other.write_text("x\ny\n")
    whole = documents_sha256(str(path))
    assert documents_sha256(str(other)) == whole
    contents = ["y\nx\n", "x\n", "x\ny\nz\n", "xy\n", "x\n\ny\n"]
    hashes = {whole}
    for content in contents:
        other.write_text(content)
        hashes.add(documents_sha256(str(other)))
    for record in ('{"text": "x", "id": "7"}', '{"spans": ["x", "y"]}', '{"spans": ["x\\ny"]}'):
        path.write_text(f"{record}\n")
        hashes.add(documents_sha256(str(path)))
    assert len(hashes) == 1 + len(contents) + 3


CSV = "id,text,title,score\n007,NA,null,1.5\n1e3,1.0,,\n,true,None,NA\n"
CARD = """---
dataset_info:
  features:
  - name: id
    dtype: int64
  - name: text
    dtype: string
  - name: title
    dtype: string
  - name: score
    dtype: float64
---
"""


@pytest.mark.parametrize("card", ["", CARD])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_text_in_columns_of_a_dataset_stays_as_it_is_written(tmp_path, card, suffix):
    """Read by pandas, "NA" would be no text, 007 the number 7, and 1.0 a number."""
    pytest.importorskip("datasets")
    (tmp_path / f"a.{suffix}").write_text(CSV if suffix == "csv" else CSV.replace(",", "\t"))
    (tmp_path / "README.md").write_text(card)
    assert list(read_documents(f"hf:{tmp_path}")) == [
        Document("007", "null\nNA"),
        Document("1e3", "1.0"),
        Document("", "None\ntrue"),
    ]
    (tmp_path / f"a.{suffix}").write_text("text\n007\n010\n")
    if not card:
        assert [document.text for document in read_documents(f"hf:{tmp_path}")] == ["007", "010"]


def test_an_id_that_is_read_as_a_date_is_refused(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "a.json").write_text('{"id": "2020-01-02", "text": "x"}\n')
    with pytest.raises(
        UserError,
        match=whole(
            "hf:TMP TMP/a.json, record 1: `id` is read as a date, 2020-01-02 00:00:00: "
            "expected a string"
        ),
    ):
        list(read_documents(f"hf:{tmp_path}"))


def test_tensorflow_datasets_without_tensorflow(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Tiny(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({"title": text, "text": text})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": ((i, {"title": f"T{i}", "text": f"é{i}"}) for i in range(3))}

        def _generate_examples(self):
            raise NotImplementedError

    builder = Tiny(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    folder = Path(builder.data_dir).rename(tmp_path / "a [a]é")
    for source in (f"tfds:{folder}", f"tfds:{folder}:train"):
        documents = list(read_documents(source))
        assert {document.text for document in documents} == {"T0\né0", "T1\né1", "T2\né2"}
        assert [document.id for document in documents] == ["1", "2", "3"]
    monkeypatch.setattr(sources, "_RECORDS_PER_PIECE", 2)
    ids = [[document.id for document in piece()] for piece in open_source(f"tfds:{folder}")]
    assert ids == [["1", "2"], ["3"]]
    with pytest.raises(
        UserError,
        match=whole("tfds:TMP/a [a]é:nosuchsplit: …nosuchsplit…"),
    ):
        list(read_documents(f"tfds:{folder}:nosuchsplit"))
    with pytest.raises(
        UserError,
        match=whole("tfds:nosuchdataset: …nosuchdataset…"),
    ):
        list(read_documents("tfds:nosuchdataset"))
    opened = []
    monkeypatch.setattr(tfds, "data_source", lambda *of, split: opened.append((*of, split)) or [])
    for name in ("lm1b:test", "wikipedia/20230601.en:1.0.0", "a/b:1.0.0:test"):
        open_source(f"tfds:{name}")
    assert opened == [
        ("lm1b", "test"),
        ("wikipedia/20230601.en:1.0.0", "train"),
        ("a/b:1.0.0", "test"),
    ]


@pytest.mark.parametrize("paths", [[], ["a.csv", "b.csv", "c.csv"]])
def test_shards_are_named_by_their_files_or_numbered(paths):
    class Data:
        num_shards = 3

        def shard(self, n, k):
            return [{"text": f"{k} of {n}"}]

    names = paths or ["file 0", "file 1", "file 2"]
    pieces = sources._streamed_pieces("hf:x", Data(), paths)
    records = [record for piece in pieces for record in piece()]
    assert [(each.fields["text"], each.number, each.where) for each in records] == [
        (f"{k} of 3", f"{k}:1", f"hf:x {name}, record 1") for k, name in enumerate(names)
    ]


def test_the_files_of_a_dataset_of_the_hub_are_streamed(monkeypatch):
    """Only those of a folder here are read without the library."""
    datasets = pytest.importorskip("datasets")

    class Data:
        num_shards, features = 1, None

        def shard(self, n, k):
            return [{"text": "a"}]

    files = {"train": ["hf://datasets/me/texts@0123abc/train.jsonl"]}
    builder = SimpleNamespace(
        config=SimpleNamespace(data_files=files), as_streaming_dataset=lambda split: Data()
    )
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: builder)
    assert list(read_documents("hf:me/texts")) == [Document("1", "a")]


def test_the_columns_of_all_tables_of_a_folder_are_named(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.tsv").write_text(f"{name}1\tskipped\tA text of {name}.\n")
    expected = [Document("a1", "A text of a."), Document("b1", "A text of b.")]
    for source in (tmp_path, tmp_path / "*.tsv"):
        assert list(read_documents(f"{source}:id,-,text")) == expected


def test_half_characters_of_spans_are_replaced(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "a", "spans": ["half \\ud83d of a smile", "b"]}')
    spans = ("half ? of a smile", "b")
    assert list(read_documents(str(path))) == [Document("a", "half ? of a smile\nb", spans)]
