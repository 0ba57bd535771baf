"""What is broken in a source is named by file, record and field, whatever its library raises."""

import gzip
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from cocondenser_jax.corpus.records import Document, record_piece
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.errors import UserError
from tests.lines import whole
from tests.world import write_records

LATIN = b"caf\xe9"  # no UTF-8
JSON_LINES = {
    "truncated": (b'{"text": "a"}\n{"text": "b', r"a\.jsonl:2 is not valid JSON"),
    "no object": (b"[1]\n", whole("TMP/a.jsonl:1: expected a JSON object")),
    "latin": (b'{"text": "a"}\n{"text": "%s"}\n' % LATIN, whole("TMP/a.jsonl:2: not UTF-8")),
    "a number": (
        b'{"text": "a"}\n{"text": 3}\n',
        whole("TMP/a.jsonl:2 has no `text` (a string) and no `spans` (a list of strings)"),
    ),
    "nested": (b'{"text": {"x": "a"}}\n', r"a\.jsonl:1 has no `text` \(a string\)"),
    "a list": (b'{"text": ["a"]}\n', r"a\.jsonl:1 has no `text` \(a string\)"),
    "a title": (b'{"text": "a", "title": 3}\n', whole("TMP/a.jsonl:1: `title` must be a string")),
    "a number first": (
        b'{"spans": [3, "a"]}\n',
        whole("TMP/a.jsonl:1: `spans` must be a list of strings"),
    ),
    "a null": (
        b'{"spans": ["a", null]}\n',
        whole("TMP/a.jsonl:1: `spans` must be a list of strings, without nulls"),
    ),
    "empty": (b"", "holds no documents"),
}
AS_LATIN = pa.array([b"a", LATIN]).view(pa.string())
PARQUETS = {
    "latin": ({"text": AS_LATIN}, r"a\.parquet, record 2: `text` is not UTF-8"),
    "bytes": ({"text": [b"a", LATIN]}, r"a\.parquet, record 2: `text` is not UTF-8"),
    "large": (
        {"text": ["a", "b"], "title": AS_LATIN.cast(pa.large_string(), safe=False)},
        whole("TMP/a.parquet, record 2: `title` is not UTF-8"),
    ),
    "an id": (
        {"text": ["a", "b"], "id": AS_LATIN},
        whole("TMP/a.parquet, record 2: `id` is not UTF-8"),
    ),
    "spans": (
        {"spans": [[b"a", b"b"], [b"a", LATIN]]},
        whole("TMP/a.parquet, record 2: `spans` is not UTF-8"),
    ),
    "numbers": ({"text": [1, 2]}, r"a\.parquet, record 1 has no `text` \(a string\)"),
    "nested": ({"text": [{"x": "a"}]}, r"a\.parquet, record 1 has no `text` \(a string\)"),
    "lists": ({"text": [["a"]]}, r"a\.parquet, record 1 has no `text` \(a string\)"),
    "titles": (
        {"text": ["a"], "title": [1.5]},
        whole("TMP/a.parquet, record 1: `title` must be a string"),
    ),
    "nulls": (
        {"spans": [["a"], ["a", None]]},
        whole("TMP/a.parquet, record 2: `spans` must be a list of strings, without nulls"),
    ),
}


TEXT = b"One text.\nAnd another one.\n" * 50
ARCHIVES = {
    "gzip, cut short": ("a.txt.gz", gzip.compress(TEXT)[:-9], "Compressed file ended before"),
    "gzip, plain": (
        "a.txt.gz",
        TEXT,
        whole("cannot read TMP/a.txt.gz: Not a gzipped file…"),
    ),
    "lzma, cut short": ("a.txt.xz", lzma.compress(TEXT)[:-9], "Compressed file ended before"),
    "lzma, plain": (
        "a.txt.xz",
        TEXT,
        whole("cannot read TMP/a.txt.xz: Input format not supported…"),
    ),
    "zstd, cut short": ("a.txt.zst", zstd.compress(TEXT)[:-9], "Compressed file ended before"),
    "zstd, plain": (
        "a.txt.zst",
        TEXT,
        whole("cannot read TMP/a.txt.zst: Unable to decompress Zstandard data…"),
    ),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_broken_archive_is_named(case, tmp_path):
    name, content, message = ARCHIVES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        list(read_documents(str(tmp_path / name)))
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", JSON_LINES)
@pytest.mark.parametrize("scheme", ["", "hf:"])
def test_broken_lines_are_named_by_file_line_and_field(scheme, case, tmp_path):
    content, message = JSON_LINES[case]
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        list(read_documents(f"{scheme}{tmp_path}"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", PARQUETS)
@pytest.mark.parametrize("scheme", ["", "hf:"])
def test_broken_parquet_is_named_by_file_record_and_field(scheme, case, tmp_path):
    columns, message = PARQUETS[case]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        list(read_documents(f"{scheme}{tmp_path}"))


def test_a_damaged_page_of_parquet_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"text {i}" for i in range(100)]})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    content = path.read_bytes()
    column = pq.read_metadata(path).row_group(0).column(0)
    middle = column.data_page_offset + column.total_compressed_size // 2
    path.write_bytes(content[:middle] + b"\xff" * 40 + content[middle + 40 :])
    with pytest.raises(UserError, match=whole("TMP/a.parquet: ZSTD decompression failed…")):
        list(read_documents(str(path)))


@pytest.mark.parametrize("error", [TypeError, IndexError, EOFError, AttributeError])
def test_whatever_a_library_raises_is_one_line_with_the_last_record(error):
    def records():
        yield {"text": "a"}
        yield {"text": "b"}
        raise error("what failed:\n  in\n\n  which column")

    piece = record_piece("hf:x", records, "0:", first=7)()
    assert [next(piece).number, next(piece).number] == ["0:7", "0:8"]
    with pytest.raises(
        UserError, match=whole("hf:x, after record 8: what failed: in which column")
    ):
        next(piece)


@pytest.mark.parametrize(
    "write", [write_records, lambda p, r: pq.write_table(pa.Table.from_pylist(r), p)]
)
def test_columns_that_are_not_read_may_differ_between_files(write, tmp_path):
    suffix = "jsonl" if write is write_records else "parquet"
    records = [
        {"text": "a", "title": None, "more": 1},
        {"text": "b", "title": "T", "more": {"x": ["y"]}},
        {"text": "c"},
    ]
    for k, record in enumerate(records):
        write(tmp_path / f"train-{k}.{suffix}", [record])
    expected = [Document("0:1", "a"), Document("1:1", "T\nb"), Document("2:1", "c")]
    assert list(read_documents(f"hf:{tmp_path}")) == expected


def test_what_datasets_reads_is_read_or_named_with_its_file(tmp_path, caplog):
    """Files that only datasets reads: a column without a value in the first file is of strings."""
    pytest.importorskip("datasets")
    for name, title in (("a", None), ("b", "T")):
        write_records(tmp_path / f"{name}.json", [{"text": name, "title": title}])
    expected = [Document("0:1", "a"), Document("1:1", "T\nb")]
    assert list(read_documents(f"hf:{tmp_path}")) == expected
    (tmp_path / "c.json").write_text('{"text": "c", "other": 1}\n')
    with pytest.raises(
        UserError,
        match=whole("hf:TMP TMP/c.json: Couldn't cast …other… match"),
    ):
        list(read_documents(f"hf:{tmp_path}"))
    (tmp_path / "c.json").write_text('{"text": "c"}\n{"text": "never closed')
    with pytest.raises(
        UserError,
        match=whole("hf:TMP TMP/c.json: …JSON…"),
    ):
        list(read_documents(f"hf:{tmp_path}"))
    (tmp_path / "c.json").write_text('{"text": ["c"], "title": 3}\n')
    with pytest.raises(
        UserError,
        match=r"^hf:.*c\.json(: |, record 1 )",
    ):
        list(read_documents(f"hf:{tmp_path}"))
    for path in tmp_path.iterdir():
        path.write_text("")
    with pytest.raises(UserError, match=whole("hf:TMP: …")):
        list(read_documents(f"hf:{tmp_path}"))
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"id,text\n1,a\n2,b,c\n", r"a\.csv: Error tokenizing data.* in line 3, saw 3"),
        ("a.csv", b"id,text\n1,%s\n" % LATIN, r"a\.csv: 'utf-8' codec can't decode byte 0xe9"),
        ("a.csv", b"a,b\n1,2\n", r"a\.csv, record 1 has no `text`"),
        ("a.csv", b"", r"a\.csv: No columns to parse"),
        ("a.tsv", b'id\ttext\n1\t"never closed\n', r"a\.tsv: .*EOF inside string"),
        ("a.json", b'[{"text": "a"}, {"text":', r"a\.json: "),
        ("a.json", b'{"text": "a"}\n{"text": ["b"]}\n', r"a\.json, record 2 has no `text`"),
        ("a.arrow", b"ARROW1\0\0\xff", "File is too small"),
        ("a.zip", b"PK\3\4 and no more", "not a zip file"),
        ("a.txt.gz", b"plain", r"a\.txt\.gz: Not a gzipped file"),
    ],
)
def test_what_only_datasets_reads_is_named_with_its_file(name, content, message, tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^hf:{tmp_path}.*{message}"):
        list(read_documents(f"hf:{tmp_path}"))
