"""Shards of vectors: their content, their order, and resuming after an interruption."""

import json
import logging
import resource
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import transformers

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import LOCK
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import Given, Representation
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus
from cocondenser_jax.retriever.search import embeddings, encode, models
from cocondenser_jax.retriever.search.embeddings import Manifest
from cocondenser_jax.retriever.search.encode import Encoding
from tests.lines import whole
from tests.retrieval_data import read_shard, read_vectors
from tests.world import write_records


def names(folder):
    rows = [row for path in sorted(folder.glob("*.arrow")) for row in read_shard(path)[1]]
    return [row[0] for row in rows]


def test_vectors_are_the_models_in_the_order_of_the_corpus(model_folder, beir, tmp_path):
    manifest = encode.encode_corpus(
        Encoding(open_model(model_folder), batch_size=7, max_length=16),
        beir,
        tmp_path / "out",
        shard_size=25,
    )
    model = models.load_retriever(model_folder, passage_length=16)
    passages = list(read_corpus(beir))
    alone = np.stack([model.encode_document(passage_text(p)) for p in passages])
    np.testing.assert_allclose(read_vectors(tmp_path / "out"), alone, atol=5e-6)
    assert names(tmp_path / "out") == [p.id for p in passages]
    shapes = [read_shard(p)[0].shape for p in sorted((tmp_path / "out").glob("*.arrow"))]
    assert shapes == [(25, 32), (25, 32), (10, 32)]
    assert manifest == Manifest(
        model=str(model_folder),
        model_sha256=open_model(model_folder).sha256(),
        representation=Representation("mean", similarity="cosine"),
        max_length=16,
        precision="float32",
        backend="torch",
        batch_size=7,
        dimension=32,
        dtype="float32",
        corpus=str(beir / "corpus.jsonl"),
        corpus_sha256=manifest.corpus_sha256,
        passages=60,
        shard_size=25,
    )
    assert manifest.n_shards == 3
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest.to_json()


def encode_on_machines(n, model_folder, *arguments, **options):
    encoding = Encoding(open_model(model_folder))
    return [encode.encode_corpus(encoding, *arguments, task=(i, n), **options) for i in range(n)]


def test_machines_share_a_corpus(model_folder, beir, tmp_path):
    alone = encode.encode_corpus(
        Encoding(open_model(model_folder)), beir, tmp_path / "alone", shard_size=7
    )
    assert alone.max_length == models.load_retriever(model_folder).max_seq_length  # as it says
    # Whose model and corpus lie elsewhere.
    copy = Path(shutil.copytree(model_folder, tmp_path / "copy"))
    encode.encode_corpus(
        Encoding(open_model(copy)),
        beir / "corpus.jsonl",
        tmp_path / "out",
        shard_size=7,
        task=(2, 4),
    )
    with pytest.raises(
        UserError,
        match=whole("TMP/out lacks task-00000-of-00004, task-00001-of-00004, task-00003-of-00004"),
    ):
        embeddings.read_manifest(tmp_path / "out")
    of_tasks = encode_on_machines(4, model_folder, beir, tmp_path / "out", shard_size=7)
    assert {
        path.name: len(list(path.glob("*.arrow"))) for path in (tmp_path / "out").iterdir()
    } == {f"task-{i:05d}-of-00004": n for i, n in enumerate((3, 2, 2, 2))}
    assert {each._replace(model=alone.model, corpus=alone.corpus) for each in of_tasks} == {alone}
    both = [tmp_path / "alone", tmp_path / "out"]
    manifests = [embeddings.read_manifest(folder) for folder in both]
    assert manifests[0] == manifests[1]
    of_one, of_four = map(embeddings.open_shards, both, manifests)
    assert of_one.num_rows == 60
    assert of_four.equals(of_one)


def test_a_machine_resumes_alone_and_others_do_not_fit_it(
    model_folder, make_model, beir, tmp_path, hold
):
    out = tmp_path / "out"
    encode_on_machines(3, model_folder, beir, out, shard_size=20)
    vectors_file = out / "task-00001-of-00003" / "embeddings-00001.arrow"
    before = vectors_file.read_bytes()
    vectors_file.write_bytes(before[:-4])
    with pytest.raises(UserError, match=f"{vectors_file} is missing or damaged"):
        embeddings.open_shards(out, embeddings.read_manifest(out))
    hold(out / "task-00000-of-00003")  # another machine at work is in nobody's way
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20, task=(1, 3))
    assert vectors_file.read_bytes() == before
    (out / "task-00002-of-00003" / "embeddings-00002.arrow").unlink()
    with pytest.raises(
        UserError,
        match=whole(
            "…-00003/embeddings-00002.arrow is missing or damaged: encode again with the same"
            " flags, which renews such shards only"
        ),
    ):
        embeddings.open_shards(out, embeddings.read_manifest(out))
    (out / "task-00002-of-00003" / "manifest.json").unlink()
    with pytest.raises(
        UserError,
        match=whole(
            "…/task-00002-of-00003 holds no manifest.json: encode the corpus first, until it"
            " ends, then build the index"
        ),
    ):
        embeddings.read_manifest(out)
    shutil.rmtree(out / "task-00002-of-00003")
    encode.encode_corpus(
        Encoding(open_model(make_model(seed=1))), beir, out, shard_size=20, task=(2, 3)
    )
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/out/task-00002-of-00003 differs from TMP/out/task-00000-of-00003 in its"
            " model_sha256"
        ),
    ):
        embeddings.read_manifest(out)
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20, task=(0, 2))
    with pytest.raises(
        UserError,
        match=whole("TMP/out also holds task-00000-of-00002, from another number of tasks"),
    ):
        embeddings.read_manifest(out)
    with pytest.raises(UserError, match=whole("task 2/2: expected i/n with 0 <= i < n")):
        encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, task=(2, 2))
    with pytest.raises(
        UserError, match=whole("TMP/out already exists: choose a new folder, or remove it first")
    ):
        encode.encode_corpus(Encoding(open_model(model_folder)), beir, out)
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "alone")
    with pytest.raises(
        UserError, match=whole("TMP/alone holds the embeddings of one task: choose a new folder")
    ):
        encode.encode_corpus(
            Encoding(open_model(model_folder)), beir, tmp_path / "alone", task=(0, 2)
        )


def test_a_machine_without_a_shard(model_folder, beir, tmp_path):
    for i in range(3):
        out = tmp_path / "out"
        encode.encode_corpus(
            Encoding(open_model(model_folder)), beir, out, task=(i, 3), shard_size=40
        )
    manifest = embeddings.read_manifest(tmp_path / "out")
    table = embeddings.open_shards(tmp_path / "out", manifest)
    assert table["id"].to_pylist() == [passage.id for passage in read_corpus(beir)]
    assert [len(vectors_NxD) for vectors_NxD in embeddings.shard_vectors(table)] == [40, 20]


def test_a_forward_pass_has_passages_of_about_as_many_tokens(model_folder, tmp_path, monkeypatch):
    widths = []
    forward = transformers.BertModel.forward

    def note_width(self, input_ids, *arguments, **options):
        widths.append(input_ids.shape[1])
        return forward(self, input_ids, *arguments, **options)

    monkeypatch.setattr(transformers.BertModel, "forward", note_width)
    words = "a b c d e f g h"  # 8 tokens; a word that is unknown is one, however long
    texts = ["z" * 30, words, words, "z" * 9, words, "z" * 30, "z" * 9, words]
    records = [{"_id": f"{i}", "text": text} for i, text in enumerate(texts)]
    write_records(tmp_path / "corpus.jsonl", records)
    encode.encode_corpus(
        Encoding(open_model(model_folder), batch_size=4), tmp_path, tmp_path / "out"
    )
    assert widths[-2:] == [8 + 2, 1 + 2]
    vectors_NxD = read_vectors(tmp_path / "out")
    same = [[np.allclose(x, y, atol=1e-5) for y in vectors_NxD] for x in vectors_NxD]
    assert same == [[(x == words) == (y == words) for y in texts] for x in texts]


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"passage": "the word"}, None),
        ({"corpus": "the word", "other": "no"}, "other"),
        ({"document": "", "other": "no"}, "other"),  # as the library fills prompts on loading
        ({"other": "no"}, None),
    ],
)
def test_vectors_have_the_prompt_and_length_of_encode_document(
    model_folder, beir, prompts, default
):
    model = models.load_retriever(model_folder, given=Given(dimensions=20))
    model.prompts = prompts
    model.default_prompt_name = default
    passages = list(read_corpus(beir))[:9]
    expected = model.encode_document([passage_text(passage) for passage in passages])
    made = encode._encode(model, passages, 4, encode.tqdm(disable=True))
    np.testing.assert_allclose(made, expected, atol=5e-6)
    assert made.shape == (9, 20)


@pytest.mark.effect("encode --batch_size")
def test_forward_passes_are_smaller_on_a_cpu(model_folder, beir, tmp_path, forward_sizes):
    encode.encode_corpus(
        Encoding(open_model(model_folder)), beir, tmp_path / "torch"
    )  # 60 passages
    assert max(forward_sizes) == (60 if torch.cuda.is_available() else 32)
    sizes = []
    of_accelerator = lambda model, folder, batch_size, dtype: sizes.append(batch_size)  # noqa: E731
    encode.encode_corpus(
        Encoding(open_model(model_folder), backend=of_accelerator), beir, tmp_path / "jax"
    )
    assert sizes == [128]


def test_half_precision_on_disk(model_folder, beir, tmp_path):
    encode.encode_corpus(
        Encoding(open_model(model_folder), dtype="float16"), beir, tmp_path / "f16"
    )
    encode.encode_corpus(
        Encoding(open_model(model_folder)), beir / "corpus.jsonl", tmp_path / "f32"
    )
    half, single = read_vectors(tmp_path / "f16"), read_vectors(tmp_path / "f32")
    assert (half.dtype, single.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(half, single.astype(np.float16))


def test_products_in_half_precision(model_folder, beir, tmp_path):
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "single")
    encode.encode_corpus(
        Encoding(open_model(model_folder), precision="bfloat16"), beir, tmp_path / "half"
    )
    single_NxD, half_NxD = read_vectors(tmp_path / "single"), read_vectors(tmp_path / "half")
    assert half_NxD.dtype == np.float32
    errors_N = np.linalg.norm(half_NxD - single_NxD, axis=1) / np.linalg.norm(single_NxD, axis=1)
    assert (errors_N > 0).all()
    assert (errors_N < 0.02).all()


def test_a_cpu_with_bfloat16_is_used_by_default(model_folder, beir, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_cpu_has_bfloat16", lambda: True)
    manifest = encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "auto")
    assert manifest.precision == "bfloat16"
    encode.encode_corpus(
        Encoding(open_model(model_folder), precision="bfloat16"), beir, tmp_path / "half"
    )
    np.testing.assert_array_equal(read_vectors(tmp_path / "auto"), read_vectors(tmp_path / "half"))
    asked = []

    def backend(model, folder, batch_size, precision):
        asked.append(precision)
        return "float32"

    for precision in ("auto", "bfloat16"):  # another backend decides, whatever PyTorch could do
        encoding = Encoding(open_model(model_folder), precision=precision, backend=backend)
        manifest = encode.encode_corpus(encoding, beir, tmp_path / f"jax {precision}")
        assert (manifest.precision, asked[-1]) == ("float32", precision)


def test_an_interrupted_run_resumes_with_the_missing_shards(
    model_folder, beir, tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, encode.__name__)
    out = tmp_path / "out"
    encoded = []
    compute = encode._encode

    def stop_at_third(model, passages, *rest):
        if len(encoded) == 2:
            raise RuntimeError("killed")
        encoded.append(passages[0].id)
        return compute(model, passages, *rest)

    monkeypatch.setattr(encode, "_encode", stop_at_third)
    with pytest.raises(RuntimeError, match="killed"):
        encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20)
    assert not [line for line in caplog.messages if "resuming" in line]
    with pytest.raises(
        UserError,
        match=whole(
            "TMP/out/embeddings-00002.arrow is missing or damaged: encode again with the same"
            " flags, which renews such shards only"
        ),
    ):
        embeddings.open_shards(out, embeddings.read_manifest(out))
    assert len(list(out.glob("*.arrow"))) == 2

    with pytest.raises(
        UserError,
        match=whole(
            "TMP/out was started with shard_size=20, now it is 30: choose a new folder, or"
            " remove it first"
        ),
    ):
        encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=30)

    encoded.clear()
    caplog.clear()
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20)
    assert encoded == ["d40"]
    said = f"resuming with the shards in {out}"
    assert [line for line in caplog.messages if "resuming" in line] == [said]
    monkeypatch.setattr(encode, "_encode", compute)
    monkeypatch.setattr(encode, "_BLOCK", 1)  # as many as passages
    encode.encode_corpus(
        Encoding(open_model(model_folder)), beir, tmp_path / "whole", shard_size=1000
    )
    np.testing.assert_allclose(read_vectors(out), read_vectors(tmp_path / "whole"), atol=5e-6)
    assert names(out) == names(tmp_path / "whole")


def cut(path):
    path.write_bytes(path.read_bytes()[:-4])


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"more")


def empty(path):
    path.write_bytes(b"")


def keep_half_the_rows(path):
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all()[:10]
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def lose_the_vectors(path):
    table = pyarrow.ipc.open_file(path.read_bytes()).read_all().drop_columns("vector")
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def change_a_text(path):
    content = path.read_bytes()
    text = read_shard(path)[1][3][2].encode()
    assert content.count(text) == 1
    path.write_bytes(content.replace(text, text.swapcase()))


@pytest.mark.parametrize(
    "damage",
    [cut, lengthen, empty, keep_half_the_rows, lose_the_vectors, change_a_text, Path.unlink],
)
def test_a_damaged_shard_alone_is_encoded_again(
    model_folder, beir, tmp_path, monkeypatch, damage, caplog
):
    out = tmp_path / "out"
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    damage(out / "embeddings-00001.arrow")
    encoded = []
    compute = encode._encode

    def note(model, passages, *rest):
        encoded.append(passages[0].id)
        return compute(model, passages, *rest)

    monkeypatch.setattr(encode, "_encode", note)
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, out, shard_size=20)
    assert encoded == ["d20"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    said = [line for line in caplog.messages if "damaged" in line]
    shard = out / "embeddings-00001.arrow"
    assert said == [f"{shard} is damaged: encoding it again"] * (damage is not Path.unlink)


@pytest.mark.parametrize(
    ("n_passages", "shards"), [(1, 1), (1_000, 2), (10_000, 20), (20_000, 20), (8_841_823, 1_769)]
)
def test_a_corpus_is_many_shards(n_passages, shards):
    assert -(-n_passages // encode.default_shard_size(n_passages)) == shards


def test_a_full_disk_ends_in_one_line_and_the_run_resumes(model_folder, tmp_path, small_disk):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"_id": "d{i}", "text": "{i}"}}\n' for i in range(100)))
    encode.encode_corpus(
        Encoding(open_model(model_folder)), corpus, tmp_path / "whole", shard_size=50
    )
    name = "embeddings-00000.arrow"
    small_disk((tmp_path / "whole" / name).stat().st_size - 1)
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/out/{name}: [^\n]+$"):
        encode.encode_corpus(
            Encoding(open_model(model_folder)), corpus, tmp_path / "out", shard_size=50
        )
    small_disk(resource.RLIM_INFINITY)
    assert [path.name for path in (tmp_path / "out").glob("*.arrow")] == []
    encode.encode_corpus(
        Encoding(open_model(model_folder)), corpus, tmp_path / "out", shard_size=50
    )
    np.testing.assert_array_equal(read_vectors(tmp_path / "out"), read_vectors(tmp_path / "whole"))


def test_a_second_process_is_refused(model_folder, beir, tmp_path, hold):
    first = hold(tmp_path / "out")
    with pytest.raises(UserError, match=f"out is in use by process {first.pid} on "):
        encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]


def test_another_model_does_not_resume(model_folder, make_model, beir, tmp_path):
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "out")
    with pytest.raises(UserError, match="was started with model_sha256="):
        encode.encode_corpus(Encoding(open_model(make_model(seed=1))), beir, tmp_path / "out")


def test_the_same_passages_resume_and_others_do_not(model_folder, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "title": "a", "text": "b c"}\n{"_id": "2", "text": "d"}\n')
    encode.encode_corpus(Encoding(open_model(model_folder)), corpus, tmp_path / "out")
    (tmp_path / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\tb c\ta\n2\td\t\n")
    before = (tmp_path / "out" / "embeddings-00000.arrow").stat().st_mtime_ns
    encode.encode_corpus(
        Encoding(open_model(model_folder)), tmp_path / "psgs_w100.tsv", tmp_path / "out"
    )
    assert (tmp_path / "out" / "embeddings-00000.arrow").stat().st_mtime_ns == before
    for other in (
        '{"_id": "1", "title": "a b", "text": "c"}\n{"_id": "2", "text": "d"}\n',
        '{"_id": "1", "title": "a", "text": "b c"}\n{"_id": "3", "text": "d"}\n',
        '{"_id": "1", "title": "a", "text": "b e"}\n{"_id": "2", "text": "d"}\n',
    ):
        corpus.write_text(other)
        with pytest.raises(UserError, match="was started with corpus_sha256="):
            encode.encode_corpus(Encoding(open_model(model_folder)), corpus, tmp_path / "out")


def test_other_settings_do_not_resume(model_folder, beir, tmp_path):
    encode.encode_corpus(Encoding(open_model(model_folder)), beir, tmp_path / "out")
    for name, value in (
        ("precision", "bfloat16"),
        ("max_length", 12),
        ("dtype", "float16"),
    ):
        other = Encoding(open_model(model_folder))._replace(**{name: value})
        with pytest.raises(UserError, match=f"was started with {name}=.*, now it is '?{value}"):
            encode.encode_corpus(other, beir, tmp_path / "out")
    with pytest.raises(
        UserError,
        match=whole(
            "TMP… was started with shard_size=500, now it is 30: choose a new folder, or"
            " remove it first"
        ),
    ):
        encode.encode_corpus(
            Encoding(open_model(model_folder)), beir, tmp_path / "out", shard_size=30
        )
    with pytest.raises(
        UserError,
        match=whole(
            "TMP… was started with backend='torch', now it is 'jax': choose a new folder, or"
            " remove it first"
        ),
    ):
        encode.encode_corpus(
            Encoding(open_model(model_folder), backend=lambda *_: "float32"), beir, tmp_path / "out"
        )
    for given, said in (
        (Given(pooling="cls"), "pooling='mean', now it is 'cls'"),
        (Given(similarity="dot"), "similarity='cosine', now it is 'dot'"),
        (Given(query_prompt="q: "), "prompts.query=None, now it is 'q: '"),
        (Given(passage_prompt="p: "), "prompts.document=None, now it is 'p: '"),
        (Given(title_separator="|"), r"prompts.title_separator=None, now it is '\|'"),
        (Given(dimensions=8), r"sizes=\[\], now it is \[8\]"),
    ):
        other = Encoding(open_model(model_folder, given))
        with pytest.raises(UserError, match=rf"was started with representation\.{said}"):
            encode.encode_corpus(other, beir, tmp_path / "out")
    # What is given is what the folder says.
    same = Encoding(open_model(model_folder, Given(pooling="mean", query_prompt="")))
    encode.encode_corpus(same, beir, tmp_path / "out")
    resumed = encode.encode_corpus(
        Encoding(open_model(model_folder), batch_size=7), beir, tmp_path / "out"
    )
    assert resumed.batch_size == 7


def test_bad_input_leaves_nothing(model_folder, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "d1", "text": "x"}\n{"_id": \n')
    with pytest.raises(UserError, match=r"corpus\.jsonl:2 is not valid JSON"):
        encode.encode_corpus(
            Encoding(open_model(model_folder)), corpus, tmp_path / "out", shard_size=1
        )
    corpus.write_text('{"_id": "d1", "text": "x"}\n')
    with pytest.raises(
        UserError, match=whole("…none: no such folder, and not the name of a model on the hub")
    ):
        encode.encode_corpus(Encoding(open_model(tmp_path / "none")), corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        UserError, match=whole("… already exists: choose a new folder, or remove it first")
    ):
        encode.encode_corpus(Encoding(open_model(model_folder)), corpus, tmp_path)
