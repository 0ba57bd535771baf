"""Texts behind the prompts of a published model: sentence-transformers' vectors are the oracle."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.configs import default
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import held_out_batch, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.model_folder.modules import to_files
from cocondenser_jax.pipelines.pretraining import folder_probes
from cocondenser_jax.pretrain import loop, probe
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import VectorSettings
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.warm_start import load_warm_start
from cocondenser_jax.representation import SPELLINGS, Representation
from tests.conftest import TEXTS
from tests.world import encode_in_flax, read_metrics, write_beir, write_records, write_run

pytestmark = pytest.mark.usefixtures("one_length", "shared_steps")

QUERY, PASSAGE = "the text ", "Early "
WITHOUT_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
LENGTH = 24  # the models' positions
PUBLISHED = Representation(
    "mean",
    normalized=True,
    similarity="cosine",
    prompts=(("query", QUERY), ("document", PASSAGE)),
)


def write_published(model, folder, representation=PUBLISHED):
    """Copies a model, and writes what sentence-transformers reads of its vectors."""
    shutil.copytree(model, folder)
    for name, content in to_files(representation, 32, LENGTH, has_pooler=False).items():
        write_json(folder / name, content)
    return folder


@pytest.fixture
def published(research_folder, tmp_path):
    return write_published(research_folder, tmp_path / "model")


def write_store(folder, model):
    """Writes a store of texts whose words the tokenizers know; returns its folder."""
    words = [word for text in TEXTS for word in text.rstrip(".").split()]
    orders = itertools.islice(itertools.permutations(words[:9]), 0, 6000, 97)
    texts = [{"text": f"{' '.join(order)}. {' '.join(order[::-1])}."} for order in orders]
    write_records(folder / "texts.jsonl", texts)
    build_store(str(folder / "texts.jsonl"), str(model), folder / "store", max_length=LENGTH)
    return folder / "store"


def settings(store, start, **train_settings):
    """One step that changes nothing."""
    config = default.get_config().unlock()
    config.update_from_flattened_dict(
        {
            "data.store": str(store),
            "data.batch_size": 16,
            "data.length": LENGTH,
            "data.pairs": "crops",
            "warm_start": str(start),
            "init_head": True,
            "train.objective": "contrastive",
            "train.steps": 1,
            "train.chunk_size": 4,
            "train.dtype": "float32",
            "optimizer.learning_rate": 0.0,
            "probe.every": 0,
        }
        | train_settings
    )
    return config


def texts_of(batch, store):
    """What each row says, its prompt included."""
    spell = store.tokenizer.spell
    n_tokens_S = batch.attention_mask_SxL.sum(axis=1)
    rows = zip(batch.input_ids_SxL.tolist(), n_tokens_S, strict=True)
    return [spell(ids[1 : n - 1]).strip() for ids, n in rows]


def vectors_of_library(folder, texts):
    """The vectors of rows that are queries and passages in turn, by sentence-transformers."""
    model = SentenceTransformer(str(folder))
    vectors = []
    for row, text in enumerate(texts):
        prompt, encode = (QUERY, model.encode_query), (PASSAGE, model.encode_document)
        before, vector = encode if row % 2 else prompt
        assert text.startswith(before)
        vectors.append(vector(text.removeprefix(before)))
    return np.array(vectors)


def test_texts_are_cut_as_the_model_is_searched_with(research_folders, tmp_path, monkeypatch):
    """Prompt, text and specials reach the limits: the library reads the same tokens."""
    limits = {"query_length": 11, "passage_length": 13}
    representation = PUBLISHED._replace(**limits)
    published = write_published(research_folders["bert"], tmp_path / "model", representation)
    batch, store = assert_trained_as_published(published, representation, tmp_path, monkeypatch)
    n_tokens_S = batch.attention_mask_SxL.sum(axis=1)
    assert n_tokens_S[::2].max() == 11
    assert n_tokens_S[1::2].max() == 13
    spec = loop.resolve(settings(store.path, published), store).batches
    spec = spec._replace(query_prompt=QUERY, passage_prompt=PASSAGE)
    whole = make_batch(store, spec, 0)
    assert whole.attention_mask_SxL[::2].sum(axis=1).max() > 11
    # The library cuts within words, too: of the others it reads the same tokens.
    limit_S = np.tile([11, 13], len(n_tokens_S) // 2)
    is_cut_S = whole.attention_mask_SxL.sum(axis=1) > n_tokens_S
    same_S = ~is_cut_S | (n_tokens_S == limit_S)
    assert (is_cut_S & same_S).sum() > 4
    searched = vectors_of_library(published, texts_of(whole, store))
    trained = vectors_of_library(published, texts_of(batch, store))
    np.testing.assert_allclose(searched[same_S], trained[same_S], rtol=0, atol=1e-6)


def loss_of(vectors_SxD, origins_Sx2):
    """The contrastive loss at the scale of cosines, by a loop."""
    scores_SxS = 20 * vectors_SxD @ vectors_SxD.T
    losses = []
    for row, scores_S in enumerate(scores_SxS):
        shares_S = (origins_Sx2 == origins_Sx2[row]).any(axis=1)
        shares_S[row ^ 1] = False
        losses.append(np.log(np.exp(scores_S[~shares_S]).sum()) - scores_S[row ^ 1])
    return np.mean(losses)


# Other ways to cut words than BERT's, whose texts are cut above; MPNet has those.
@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "modernbert"], indirect=True)
def test_the_vectors_that_are_trained_are_those_of_queries_and_passages(
    published, tmp_path, monkeypatch
):
    assert_trained_as_published(published, PUBLISHED, tmp_path, monkeypatch)


# A space is a token, and one of the next.
@pytest.mark.parametrize(("family", "pooling"), [("bert", "mean"), ("roberta", "cls")])
def test_prompts_are_left_out_where_the_model_does_not_pool_them(
    research_folders, family, pooling, tmp_path, monkeypatch
):
    representation = PUBLISHED._replace(include_prompt=False, pooling=pooling)
    published = write_published(research_folders[family], tmp_path / "model", representation)
    assert_trained_as_published(published, representation, tmp_path, monkeypatch)


def assert_trained_as_published(published, representation, tmp_path, monkeypatch):
    """Trains a step that changes nothing, and compares its vectors, its loss and its export."""
    store = open_store(write_store(tmp_path, published))
    batches = []
    read = loop.read_batches

    def noted(*arguments, **options):
        for batch in read(*arguments, **options):
            batches.append(batch)
            yield batch

    monkeypatch.setattr(loop, "read_batches", noted)
    train(settings(store.path, published, **WITHOUT_DROPOUT), tmp_path / "run")
    config, params, _ = load_run(tmp_path / "run")
    (batch,) = batches
    inputs = batch.input_ids_SxL, batch.attention_mask_SxL, None, batch.prompt_lengths_S
    ours = encode_in_flax(config, params, *inputs)
    theirs = vectors_of_library(published, texts_of(batch, store))
    assert np.abs(theirs - theirs[::-1]).max() > 0.1
    cosines = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, theirs, rtol=0, atol=1e-5)
    (loss,) = (line["loss"] for line in read_metrics(tmp_path / "run"))
    assert loss == pytest.approx(loss_of(theirs, batch.origins_Sx2), rel=1e-4)

    export_folder(params, config, store.tokenizer_folder, tmp_path / "out", {})
    assert open_model(tmp_path / "out").representation == representation._replace(max_length=LENGTH)
    return batch, store


@pytest.mark.parametrize("include_prompt", [True, False])
def test_the_probe_measures_the_vectors_of_queries_and_passages(
    research_folders, tmp_path, monkeypatch, include_prompt
):
    limits = {"query_length": 11, "passage_length": 17}
    representation = PUBLISHED._replace(**limits, include_prompt=include_prompt)
    published = write_published(research_folders["bert"], tmp_path / "model", representation)
    store = open_store(write_store(tmp_path, published))
    passages = ["late layers know the text", "the CLS vector", "Search", "a span of a document"]
    queries = ["layers", "vector"]
    for texts in (passages, queries):
        texts.append(" ".join(["know", "the", "span", "layers", "text", "words"] * 4))
    data = write_beir(tmp_path / "data", passages, queries, {"dev": [0, 1, 2]})
    measured = []
    measure = probe.measure_vectors

    def noted(vectors_SxD, is_pair):
        measured.append(vectors_SxD)
        return measure(vectors_SxD, is_pair)

    monkeypatch.setattr(probe, "measure_vectors", noted)
    searched = []
    monkeypatch.setattr(
        "cocondenser_jax.retriever.data.probe.evaluate_run",
        lambda qrels, run, metrics: searched.append(run) or {"mean": {}},
    )
    probing = {
        "probe.every": 1,
        "probe.documents": 4,
        "probe.data": str(data),
        "probe.split": "dev",
    }
    config = settings(store.path, published, **probing)
    train(config, tmp_path / "run", folder_probes(config))
    spec = loop.resolve(config, store).batches
    spec = spec._replace(query_prompt=QUERY, passage_prompt=PASSAGE, **limits)
    texts = texts_of(held_out_batch(store, spec), store)
    theirs = vectors_of_library(published, texts)
    np.testing.assert_allclose(measured[0], theirs, rtol=0, atol=1e-5)

    model = SentenceTransformer(str(published))
    of_queries, documents = model.encode_query(queries), model.encode_document(passages)
    for query, vector in enumerate(of_queries):
        expected = {f"p{n}": float(vector @ document) for n, document in enumerate(documents)}
        assert searched[0][f"q{query}"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("settings_of_run", "representation", "said"),
    [
        (
            {"data.length": 11},
            PUBLISHED,
            "config.data.length 11 is too short for the model's prompt 'the text ', of 2 tokens",
        ),
        (
            {"data.length": 24},
            PUBLISHED._replace(max_length=20),
            "config.data.length 24 is longer than the 20 tokens that the model reads of a text",
        ),
    ],
)
def test_what_training_cannot_read_is_refused(
    research_folders, tmp_path, settings_of_run, representation, said
):
    published = write_published(research_folders["bert"], tmp_path / "model", representation)
    store = write_store(tmp_path, published)
    with pytest.raises(UserError, match=said):
        train(settings(store, published, **settings_of_run), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_vectors_are_of_texts_behind_the_same_prompts(research_folders, tmp_path):
    read = {"prompts": PUBLISHED.prompts, "default_prompt": "query"}
    read |= {"max_length": 20, "query_length": 15, "passage_length": 18}
    described = PUBLISHED._replace(**read)
    published = write_published(research_folders["bert"], tmp_path / "model", described)
    model, params = load_folder(str(published), n_head_layers=0)
    write_run(tmp_path / "run", model, params, published)
    network = {"n_head_layers": 0, "skip_from": 1, "late_mlm": True}
    network |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for start in (open_model(published), tmp_path / "run"):
        chosen = VectorSettings(SPELLINGS["cls"])
        config, _ = load_warm_start(start, network, None, chosen)
        assert config.representation == Representation("cls", **read)


def test_a_run_that_resumes_reads_the_same_texts(research_folders, tmp_path):
    """Though the model that it started from is gone."""
    published = write_published(research_folders["bert"], tmp_path / "model")
    store = write_store(tmp_path, published)
    config = settings(store, published, **{"train.steps": 2, "optimizer.learning_rate": 1e-2})
    config.checkpoint.every = 1
    config.log_every = 1
    train(config, tmp_path / "run")
    whole = read_metrics(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    shutil.rmtree(published)
    train(config, tmp_path / "run")
    for before, after in zip(whole, read_metrics(tmp_path / "run"), strict=True):
        assert before["loss"] == after["loss"]
    run = json.loads(Path(tmp_path / "run" / "run.json").read_text())
    assert run["model"]["representation"]["prompts"] == dict(PUBLISHED.prompts)
