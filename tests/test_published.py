"""Published models, each as a tiny folder: encoding, adapting and exporting agree with the library.

The right answer is that of `SentenceTransformer(folder)`: `encode_query`, `encode_document` and
`similarity`, in float32, with the prompts and the similarity that only the model's card names.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from cocondenser_jax.convert import from_torch, names
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.flax_encoder import run_in_flax
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pipelines import adapt as adapt_module
from cocondenser_jax.representation import NOTHING_GIVEN, Given, Representation
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.search.opening import open_index
from cocondenser_jax.retriever.search.search import search_run
from tests.published import EXACT, ROWS, Case
from tests.published_folders import write_folder
from tests.published_networks import POSITIONS
from tests.published_table import published_table
from tests.published_tokenizers import PASSAGES, QUERIES
from tests.published_variations import VARIATIONS
from tests.retrieval_data import read_vectors
from tests.world import encode_in_flax, make_texts, write_beir, write_records

CASES = {name: case for cases in ROWS.values() for name, case in cases.items()} | VARIATIONS
TOLERANCE = 1e-5
BATCH_SIZE = 16  # texts


class Oracle(NamedTuple):
    """What sentence-transformers makes of a folder."""

    folder: Path
    model: SentenceTransformer
    queries_QxD: np.ndarray  # of length 1 where they are compared by their cosine
    passages_PxD: np.ndarray
    scores_QxP: np.ndarray


def ask(folder: Path, case: Case) -> Oracle:
    """Asks the library, in float32."""
    model = SentenceTransformer(
        str(folder), model_kwargs={"dtype": "float32"}, similarity_fn_name=case.similarity
    )
    options: dict[str, Any] = {"convert_to_tensor": True}
    queries = model.encode_query(list(QUERIES), prompt=case.prompts.get("query"), **options)
    passages = model.encode_document(list(PASSAGES), prompt=case.prompts.get("passage"), **options)
    scores = model.similarity(queries, passages)
    if model.similarity_fn_name == "cosine":
        queries, passages = (x / x.norm(dim=1, keepdim=True) for x in (queries, passages))
    return Oracle(folder, model, *(x.cpu().numpy() for x in (queries, passages, scores)))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Writes the folder of a case, once."""
    root = tmp_path_factory.mktemp("published")

    @functools.cache
    def write(name):
        return write_folder(CASES[name].folder, root / name)

    return write


@pytest.fixture(scope="module")
def oracle_of(folder_of):
    """Asks the library about a case, once."""
    return functools.cache(lambda name: ask(folder_of(name), CASES[name]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The texts as a collection and as a corpus to adapt to."""
    folder = tmp_path_factory.mktemp("data")
    write_beir(folder, PASSAGES, QUERIES, {"test": range(len(QUERIES))})
    write_records(folder / "text.jsonl", ({"text": text} for text in PASSAGES))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _zeros_for_what_is_missing():
    """Gives zeros as the MLM projection that most folders lack: to draw it takes a compilation."""

    @functools.cache
    def zeros(config):
        shapes = jax.eval_shape(functools.partial(init_params, config, 0))
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)

    def draw(config, seed):
        dense = config.representation.dense
        return zeros(dataclasses.replace(config, representation=Representation(dense=dense)))

    with pytest.MonkeyPatch.context() as patched:
        for module in (from_torch, names):
            patched.setattr(module, "init_params", draw)
        yield


class _BeforeTraining(Exception):
    """Stops `adapt` when it has written the model as published."""


def _stop(*_: object, **__: object) -> None:
    raise _BeforeTraining


@pytest.fixture(scope="module")
def start_of(folder_of, data, tmp_path_factory):
    """Lets `adapt` run without its token store, once; returns what training starts from."""
    root = tmp_path_factory.mktemp("adapt")

    @functools.cache
    def start(name):
        workdir = root / name
        model, corpus = str(folder_of(name)), str(data / "text.jsonl")
        length = f"--config.data.length={longest_input(CASES[name].folder)}"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(adapt_module, "build_store", _stop)
            given = given_of(CASES[name])
            with pytest.raises((_BeforeTraining, UserError)) as stopped:
                adapt_module.adapt(workdir, corpus, model, None, [length], given)
        if isinstance(stopped.value, UserError):
            return workdir, str(stopped.value)
        return workdir / "published", None

    return start


def given_of(case):
    """Returns what a user must say of a folder, for its model's card alone says it."""
    if (case.folder.settings or {}).get("prompts"):
        return NOTHING_GIVEN
    return Given(
        similarity=case.similarity,
        query_prompt=case.prompts.get("query"),
        passage_prompt=case.prompts.get("passage"),
    )


def longest_input(folder):
    """Returns the tokens that a folder says are read of a text."""
    of_tokenizer = folder.changes.get("tokenizer_config.json", {}).get(
        "model_max_length", POSITIONS
    )
    return min(POSITIONS, folder.max_length or of_tokenizer)


def assert_close(actual, expected):
    """Compares vectors or scores: to 1e-5 of 1, or of the largest where that is larger."""
    size = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * size)


def assert_refused(message, expected):
    """Asserts that a message is the one line that is expected."""
    assert expected != EXACT, message
    assert "\n" not in message
    assert expected in message


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_encode_and_retrieve_agree_with_the_library(
    name, backend, folder_of, oracle_of, data, tmp_path
):
    expected = getattr(CASES[name].expected, backend)
    out = tmp_path / "embeddings"

    def encode():
        model = open_model(folder_of(name), given_of(CASES[name]))
        encoding = Encoding(model, precision="float32", batch_size=BATCH_SIZE)
        if backend == "jax":
            encoding = encoding._replace(backend=run_in_flax)
        encode_corpus(encoding, data, out)

    if expected != EXACT:
        with pytest.raises(UserError) as error:
            encode()
        assert_refused(str(error.value), expected)
        assert not (out / "manifest.json").exists()
        return
    encode()
    oracle = oracle_of(name)
    assert_close(read_vectors(out), oracle.passages_PxD)
    if backend == "jax":
        return  # a search of these vectors is the same
    index = open_index(out, open_model(folder_of(name), None))
    run = search_run(index, dict(enumerate(QUERIES)), len(PASSAGES))
    for query, scores_P in enumerate(oracle.scores_QxP):
        rows = [int(passage.removeprefix("p")) for passage in run[query]]
        assert sorted(rows) == list(range(len(PASSAGES)))
        assert_close(list(run[query].values()), scores_P[rows])
        assert (np.diff(scores_P[rows]) < 2 * TOLERANCE * max(1.0, np.abs(scores_P).max())).all()


@pytest.mark.parametrize("name", CASES)
def test_adapt_starts_from_the_model_as_published(name, start_of, oracle_of):
    expected = CASES[name].expected.adapt
    start, message = start_of(name)
    if expected != EXACT:
        assert message is not None, "accepted"
        assert_refused(message, expected)
        assert not start.exists()
        return
    assert message is None, message
    oracle = oracle_of(name)
    model = load_retriever(start)
    assert_close(model.encode_query(list(QUERIES)), oracle.queries_QxD)
    assert_close(model.encode_document(list(PASSAGES)), oracle.passages_PxD)
    saved = ask(start, Case(CASES[name].folder))  # by the library, without this package
    assert_close(saved.scores_QxP, oracle.scores_QxP)
    query, passage = prompts_of(oracle.model, CASES[name])
    texts = [query + text for text in QUERIES] + [passage + text for text in PASSAGES]
    count = oracle.model[0]._get_prompt_length
    counts = [count(prompt) if prompt else 0 for prompt in (query, passage)]
    lengths = [counts[0]] * len(QUERIES) + [counts[1]] * len(PASSAGES)
    vectors_NxD = flax_vectors(start, texts, oracle.model.max_seq_length, lengths)
    assert_close(vectors_NxD, np.concatenate([oracle.queries_QxD, oracle.passages_PxD]))


def prompts_of(model, case):
    """Returns what is put before queries and before passages."""
    names = ("document", "passage", "corpus")
    passage = next((text for name in names if (text := model.prompts.get(name))), "")
    return case.prompts.get("query", model.prompts["query"]), case.prompts.get("passage", passage)


def flax_vectors(folder, texts, length, prompt_lengths):
    """Encodes texts as pre-training does before its first step."""
    tokenizer = load_tokenizer(str(folder))
    config, params = load_folder(str(folder), n_head_layers=0, init_head_seed=0)
    ids_NxL = np.full((len(texts), POSITIONS), tokenizer.pad_id, np.int32)
    mask_NxL = np.zeros((len(texts), POSITIONS), bool)
    for i, text in enumerate(texts):
        words = tokenizer.backend.encode(text, add_special_tokens=False).ids[: length - 2]
        ids = [tokenizer.cls_id, *words, tokenizer.sep_id]
        ids_NxL[i, : len(ids)] = ids
        mask_NxL[i, : len(ids)] = True
    # The network ignores them.
    without = {"prompts": (), "max_length": None, "scale": 0.0, "default_prompt": None}
    without |= {"query_length": None, "passage_length": None}
    shape = dataclasses.replace(config, representation=config.representation._replace(**without))
    # The library's own count, which `tests/corpus/test_prompts.py` compares with that of batches.
    inputs = ids_NxL, mask_NxL, None, np.array(prompt_lengths, np.int32)
    return np.asarray(encode_in_flax(shape, params, *inputs))


def test_a_whole_adaptation_compares_with_the_model_as_published(
    folder_of, oracle_of, data, tmp_path
):
    name = "e5-small-v2"  # its prompts are not in its folder
    corpus = write_records(tmp_path / "text.jsonl", ({"text": text} for text in make_texts(24)))
    length = longest_input(CASES[name].folder)
    settings = [f"--config.data.length={length}", "--config.train.steps=2"]
    workdir = tmp_path / "adapted"
    given = given_of(CASES[name])
    adapt_module.adapt(workdir, str(corpus), str(folder_of(name)), Trial(data), settings, given)
    oracle = oracle_of(name)
    run = {
        f"q{query}": {f"p{passage}": float(score) for passage, score in enumerate(scores_P)}
        for query, scores_P in enumerate(oracle.scores_QxP)
    }
    qrels = {query: {query.replace("q", "p"): 1} for query in run}
    expected = evaluate_run(qrels, run, ["nDCG@10"])["mean"]["nDCG@10"]
    rows = {row["name"]: row for row in json.loads((workdir / "test" / "results.json").read_text())}
    assert rows["published"]["metrics"]["nDCG@10"] == pytest.approx(expected)
    retriever = SentenceTransformer(str(workdir / "retriever"))  # as others will load it
    assert prompts_of(retriever, Case(CASES[name].folder)) == prompts_of(oracle.model, CASES[name])


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.expected.adapt == EXACT])
def test_an_export_without_training_is_the_model_as_published(name, start_of, oracle_of, tmp_path):
    start, message = start_of(name)
    assert message is None, message
    oracle = oracle_of(name)
    config, params = load_folder(str(start), n_head_layers=0, init_head_seed=0)
    out = tmp_path / "export"
    export_folder(params, config, start, out, {})
    plain = Case(CASES[name].folder)
    exported = ask(out, plain)
    assert_close(exported.queries_QxD, oracle.queries_QxD)
    assert_close(exported.passages_PxD, oracle.passages_PxD)
    assert_close(exported.scores_QxP, oracle.scores_QxP)
    assert described(exported.model, plain) == described(oracle.model, CASES[name])
    weights = weights_of(exported.model)
    for key, published in weights_of(oracle.model).items():
        assert (weights[key] == published).all(), key


def described(model, case):
    """Returns what a model says of itself beside its vectors."""
    config = model.transformers_model.config
    has_length_1 = any(isinstance(module, Normalize) for module in model)
    return {
        "similarity": "cosine" if has_length_1 else model.similarity_fn_name,
        "prompts": prompts_of(model, case),
        "other prompts": {
            name: text
            for name, text in model.prompts.items()
            if name not in ("query", "document", "passage", "corpus")
        },
        "default prompt": model.default_prompt_name,
        "size": model.truncate_dim,
        "length": model.max_seq_length,
        "rows": config.vocab_size,
        "padding": config.pad_token_id,
        "tokens": model.tokenizer(list(PASSAGES))["input_ids"],
    }


def weights_of(model):
    """Returns the weights of all modules, but for a pooler that no vector depends on."""
    tensors = model.state_dict()
    return {name: value for name, value in tensors.items() if "pooler" not in name}


def test_the_library_still_overlooks_a_prompt_named_passage(folder_of):
    """sentence-transformers 6.2.0 adds an empty "document", and reads that: the folder is right."""
    model = SentenceTransformer(str(folder_of("prompt named passage")))
    assert model.prompts["passage"] == "passage: "
    texts = list(PASSAGES)
    np.testing.assert_array_equal(model.encode_document(texts), model.encode(texts))


def test_the_page_of_backbones_has_the_table_of_these_models():
    page = Path(__file__).parents[1] / "docs" / "backbones.md"
    message = "python -m tests.published_table prints the table of docs/backbones.md"
    assert published_table() in page.read_text(encoding="utf-8"), message
