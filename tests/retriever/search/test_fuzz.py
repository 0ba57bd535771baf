"""Whatever a folder holds, it is read or refused with one clear line; and nothing in it is run."""

import json
import shutil

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model, open_network
from cocondenser_jax.retriever.data.folder import (
    read_candidates,
    read_corpus,
    read_queries,
    read_split,
    with_positives,
)
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.search import encode, models, opening, search
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from cocondenser_jax.retriever.search.encode import Encoding
from cocondenser_jax.retriever.search.index import build_index
from tests.lines import whole
from tests.mutations import Payload, assert_read_or_refused, broken_bytes, fuzz, fuzz_file

TEXT = "abcde fgh"


@pytest.fixture(scope="module")
def encoded(model_folder, beir, tmp_path_factory):
    """Embeddings, and the index of them."""
    folder = tmp_path_factory.mktemp("encoded")
    encode.encode_corpus(
        Encoding(open_model(model_folder), max_length=16),
        beir,
        folder / "embeddings",
        shard_size=40,
    )
    build_index(folder / "embeddings", folder / "index", "HNSW8")
    opening.open_index(folder / "index", open_model(model_folder), hybrid="rrf")
    return folder


@pytest.fixture
def same_model(model_folder, monkeypatch):
    """The model is loaded once, and not for each broken folder."""
    model = models.load_retriever(model_folder)
    monkeypatch.setattr(models, "load", lambda *args, **kwargs: model)


def search_with(searcher, folder):
    for result in search.search_text(searcher, TEXT, k=60):
        " ".join(result.passage).encode()
    write_run(folder / "run", search.search_run(searcher, {"q": TEXT}, 5))


@pytest.mark.usefixtures("same_model")
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "index.faiss",
        "passages.arrow",
        "bm25/sha256.json",
        "bm25/params.index.json",
        "bm25/indices.csc.index.npy",
    ],
)
def test_a_broken_index_is_searched_or_refused(name, encoded, model_folder, tmp_path):
    folder = shutil.copytree(encoded / "index", tmp_path / "index")

    def read(_):
        search_with(opening.open_index(folder, open_model(model_folder), hybrid="min_max"), folder)

    fuzz_file(folder, name, read)


@pytest.mark.usefixtures("same_model")
@pytest.mark.parametrize("name", ["manifest.json", "embeddings-00001.arrow"])
def test_broken_embeddings_are_searched_or_refused(name, encoded, model_folder, tmp_path):
    folder = shutil.copytree(encoded / "embeddings", tmp_path / "embeddings")

    def read(folder):
        search_with(opening.open_index(folder, open_model(model_folder)), folder)

    fuzz_file(folder, name, read)


@pytest.mark.usefixtures("same_model")
def test_one_flipped_bit_of_an_index_is_noticed(encoded, model_folder, tmp_path):
    folder = shutil.copytree(encoded / "index", tmp_path / "index")
    valid = (folder / "index.faiss").read_bytes()
    for place in (0, 8, 100, len(valid) // 2, len(valid) - 1):
        flipped = bytearray(valid)
        flipped[place] ^= 1
        (folder / "index.faiss").write_bytes(flipped)
        with pytest.raises(
            UserError,
            match=whole(
                "TMP/index/index.faiss is damaged, or its manifest is another's: build it again"
            ),
        ):
            opening.open_index(folder, open_model(model_folder))


LAYOUTS = {
    "BEIR": {
        "corpus.jsonl": '{"_id": "1", "title": "T", "text": "x"}\n{"_id": "2", "text": "y"}\n',
        "queries.jsonl": '{"_id": "1", "text": "who"}\n{"_id": "2", "text": "when"}\n',
        "qrels/dev.tsv": "query-id\tcorpus-id\tscore\n1\t1\t1\n2\t1\t2\n",
        "negatives.trec": "1 Q0 2 1 2.5 t\n2 Q0 2 1 1.5 t\n",
    },
    "MS MARCO": {
        "collection.tsv": "1\tone two\n2\tthree\n",
        "queries.dev.tsv": "1\twho\n2\twhen\n",
        "queries.train.tsv": "1\twho\n",
        "qrels.dev.tsv": "1\t0\t1\t1\n2\t0\t1\t1\n",
        "negatives.trec": "1 Q0 2 1 2.5 t\n2 Q0 2 1 1.5 t\n",
    },
    "header": {
        "psgs_w100.tsv": 'id\ttext\ttitle\n1\t"one ""two"""\tT\n2\tthree\tU\n',
        "queries.dev.tsv": "1\twho\n",
        "qrels.dev.tsv": "1\t0\t1\t1\n",
        "negatives.trec": "1 Q0 2 1 2.5 t\n",
    },
}


def read_all(folder, negatives):
    """Reads passages, queries, a split and its negatives, each whatever becomes of the others."""
    for read in (
        lambda: [" ".join(passage).encode() for passage in read_corpus(folder)],
        lambda: " ".join(read_queries(folder).values()).encode(),
        lambda: read_split(folder, "dev"),
        lambda: read_candidates(
            folder / negatives,
            with_positives(read_split(folder, "dev")[1]),
            {"1", "2"},
            5,
        ),
    ):
        assert_read_or_refused(read)


def spoil(path, how, other):
    """Replaces a file or folder by something else, which may be nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    match how:
        case bytes():
            path.write_bytes(how)
        case "folder":
            path.mkdir()
        case "itself" | "..":
            path.symlink_to(path.name if how == "itself" else "..")
        case "another":
            path.symlink_to(other)
        case "gzip":
            path.with_name(f"{path.name}.gz").write_bytes(b"\x1f\x8b\x08")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_broken_data_folder_is_read_or_refused(layout, tmp_path):
    files = LAYOUTS[layout]
    (negatives,) = [name for name in files if name.startswith("negatives")]
    entries = sorted({*files, *(name.partition("/")[0] for name in files)})

    @fuzz()
    @given(st.data())
    def check(drawn):
        folder = tmp_path / "data"
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for _ in range(drawn.draw(st.integers(1, 2))):
            entry = folder / drawn.draw(st.sampled_from(entries))
            whole = files.get(entry.relative_to(folder).as_posix(), "").encode()
            how = st.sampled_from(["nothing", "folder", "itself", "..", "another", "gzip", b""])
            if entry.parent.is_dir():
                other = folder / drawn.draw(st.sampled_from(entries))
                spoil(entry, drawn.draw(how | broken_bytes(whole)), other)
        read_all(folder, negatives)

    check()


@pytest.fixture(scope="module")
def sentence_folder(model_folder, tmp_path_factory):
    """A folder of sentence-transformers."""
    folder = tmp_path_factory.mktemp("sentences") / "encoder"
    models.load_retriever(model_folder).save_pretrained(str(folder))
    return folder


def encode_with(folder):
    models.load_retriever(folder).encode_query([TEXT])


def score_with(folder):
    load_cross_encoder(open_network(folder)).predict([(TEXT, TEXT)])


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"],
)
def test_a_broken_cross_encoder_scores_or_is_refused(name, cross_encoder_folder, tmp_path):
    folder = shutil.copytree(cross_encoder_folder, tmp_path / "model")
    fuzz_file(folder, name, score_with, 0.1)


@pytest.mark.parametrize(
    "name",
    [
        "1_Pooling/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
    ],
)
def test_a_broken_sentence_encoder_encodes_or_is_refused(name, sentence_folder, tmp_path):
    folder = shutil.copytree(sentence_folder, tmp_path / "model")
    fuzz_file(folder, name, encode_with, 0.1)


def without_one(weights):
    del weights["bert.encoder.layer.1.output.dense.bias"]


def misshapen(weights):
    weights["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(3)


def other_numbers(weights):
    weights["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(32, dtype=torch.int64)


def one_more(weights):
    weights["bert.encoder.layer.7.output.dense.bias"] = torch.zeros(32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without_one,
            whole(
                "the weights of TMP/model lack 1 parameters that its config.json "
                "implies: bert.encoder.layer.1.output.dense.bias"
            ),
        ),
        (
            misshapen,
            whole(
                "the weights of TMP/model have another shape than its config.json "
                "implies: bert.encoder.layer.1.output.dense.bias is (3,), expected (32,)"
            ),
        ),
        (other_numbers, None),
        (one_more, None),
    ],
)
def test_weights_of_a_cross_encoder(change, message, cross_encoder_folder, tmp_path):
    folder = shutil.copytree(cross_encoder_folder, tmp_path / "model")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    if message is None:
        score_with(folder)
    else:
        with pytest.raises(UserError, match=message):
            score_with(folder)


@pytest.mark.parametrize("read", [encode_with, score_with])
def test_a_broken_file_beside_the_weights_is_no_matter_or_refused(
    read, cross_encoder_folder, tmp_path
):
    folder = shutil.copytree(cross_encoder_folder, tmp_path / "model")
    (folder / "other.safetensors").write_bytes(b"no weights")
    assert_read_or_refused(read, folder)


def foreign_config(folder):
    change(folder / "config.json", model_type="foreign", auto_map=AUTO_MAP)


def foreign_model(folder):
    change(folder / "config.json", auto_map=AUTO_MAP)


def foreign_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="Foreign",
        auto_map={"AutoTokenizer": ["foreign.Foreign", "foreign.Foreign"]},
    )


def trusted(folder):
    foreign_config(folder)
    trust = {"trust_remote_code": True}
    keys = ("model", "config", "tokenizer", "processor")
    settings = {f"{key}_{end}": trust for key in keys for end in ("args", "kwargs")}
    if (folder / "sentence_bert_config.json").exists():
        change(folder / "sentence_bert_config.json", **settings, **trust)
        change(folder / "config_sentence_transformers.json", **trust)
    change(folder / "config.json", **trust)


def pickled(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"x": Payload(folder.parent / "ran")}, folder / "pytorch_model.bin")


MODULES = "sentence_transformers.models"
AUTO_MAP = dict.fromkeys(
    ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoTokenizer"),
    "foreign.Foreign",
)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "spoil", [foreign_config, foreign_model, foreign_tokenizer, trusted, pickled]
)
@pytest.mark.parametrize("kind", ["plain", "sentences", "cross-encoder"])
def test_code_in_a_model_folder_is_not_run(
    spoil, kind, model_folder, sentence_folder, cross_encoder_folder, tmp_path, monkeypatch
):
    folders = {"plain": model_folder, "sentences": sentence_folder}
    folder = shutil.copytree(folders.get(kind, cross_encoder_folder), tmp_path / "model")
    for place in (folder, tmp_path):
        (place / "foreign.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    asked = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or "y")
    spoil(folder)
    assert_read_or_refused(score_with if kind == "cross-encoder" else encode_with, folder)
    assert not (tmp_path / "ran").exists()
    assert not asked


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            {"path": "", "type": "foreign.Module"},
            whole(
                "TMP/model has a module 'foreign.Module', which needs code of its own: none is run"
            ),
        ),
        ({"path": "../../x", "type": f"{MODULES}.Transformer"}, "has no config.json"),
        ({"path": "/etc", "type": f"{MODULES}.Transformer"}, "has no config.json"),
    ],
)
def test_foreign_modules_are_refused_and_not_run(
    module, message, model_folder, tmp_path, monkeypatch
):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    for place in (folder, tmp_path):
        (place / "foreign.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    modules = [module, {"path": "1_Pooling", "type": f"{MODULES}.Pooling"}]
    modules = [{"idx": i, "name": str(i), **each} for i, each in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=message):
        models.load_retriever(folder)
    assert not (tmp_path / "ran").exists()
