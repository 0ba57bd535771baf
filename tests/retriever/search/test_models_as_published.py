"""What folders of published models say is what their vectors are."""

import json

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)

from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import (
    PASSAGE_PROMPTS,
    Given,
    passage_prompt,
    query_prompt,
)
from cocondenser_jax.retriever.search import models
from tests.lines import whole

TEXTS = ["abcde fgh", "hgfed cba aaaaa bbbbb ccccc ddddd eeeee"]
SILENT = {"prompts": {"query": "hgf: "}}


@pytest.fixture
def as_published(model_folder, tmp_path):
    """Makes a folder of sentence-transformers that pools by the mean, and says what it is given."""

    def make(says, *layers):
        folder = tmp_path / "published"
        modules = [Transformer(str(model_folder)), Pooling(32, "mean"), *layers]
        SentenceTransformer(modules=modules).save_pretrained(str(folder))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(says))
        return folder

    return make


def test_inner_products_leave_out_the_last_scaling_alone(as_published):
    """What a dense layer reads is a part of the vector; the length of the vector is not."""
    torch.manual_seed(0)
    layers = [Normalize(), Dense(32, 12), Normalize()]
    folder = as_published(SILENT, *layers)
    model = models.load_retriever(folder, given=Given(similarity="dot"))
    library = SentenceTransformer(str(folder))
    expected = torch.nn.Sequential(*[*library][:-1])(library.preprocess(TEXTS))
    vectors = expected["sentence_embedding"].detach()
    np.testing.assert_allclose(model.encode_document(TEXTS), vectors, rtol=0, atol=1e-6)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.01


@pytest.mark.parametrize("two_towers", [False, True])
def test_what_is_given_is_what_the_library_is_told(as_published, tmp_path, two_towers):
    says = {"prompts": {"query": "hgf: ", "other": "fed "}, "default_prompt_name": "other"}
    folder = as_published({**says, "similarity_fn_name": "dot"})
    prompts = {"query": "cab: ", "document": "abc ", "other": "fed "}
    library = SentenceTransformer(
        str(folder), prompts=prompts, truncate_dim=8, similarity_fn_name="cosine"
    )
    library[1].pooling_mode = "cls"
    expected = library.similarity(library.encode_query(TEXTS), library.encode_document(TEXTS))
    given = Given(
        pooling="cls",
        similarity="cosine",
        query_prompt="cab: ",
        passage_prompt="abc ",
        dimensions=8,
    )
    loaded = [models.load_retriever(folder, given=given, two_towers=two_towers)]
    if two_towers:
        models.load_retriever(folder, two_towers=True).save_pretrained(str(tmp_path / "two"))
        folder = tmp_path / "two"
        loaded.append(models.load_retriever(folder, given=given))
    for model in loaded:
        scores_QxP = model.encode_query(TEXTS) @ model.encode_document(TEXTS).T
        np.testing.assert_allclose(scores_QxP, expected, rtol=1e-5, atol=1e-5)
        prompted = library.encode(TEXTS[0], normalize_embeddings=True)  # by the default prompt
        np.testing.assert_allclose(model.encode(TEXTS[0]), prompted, atol=1e-5)
    without = models.load_retriever(folder, given=Given(query_prompt=""))
    np.testing.assert_array_equal(without.encode_query(TEXTS), without.encode_document(TEXTS))


@pytest.mark.parametrize("name", PASSAGE_PROMPTS)
def test_a_prompt_that_is_taken_away_is_found_under_no_other_name(as_published, name):
    folder = as_published({"prompts": {"query": "hgf: ", name: "abc ", "other": "cab "}})
    assert passage_prompt(models.load_retriever(folder).prompts) == "abc "
    model = models.load_retriever(folder, given=Given(passage_prompt=""))
    assert (query_prompt(model.prompts), passage_prompt(model.prompts)) == ("hgf: ", "")
    assert model.prompts["other"] == "cab "


def test_more_dimensions_than_a_vector_has_are_refused(as_published):
    folder = as_published(SILENT)
    with pytest.raises(UserError, match=whole("… makes vectors of 32 dimensions: cannot keep 33")):
        models.load_retriever(folder, given=Given(dimensions=33))


def test_a_network_with_relative_positions_has_no_limit(model_folder, tmp_path):
    folder = tmp_path / "t5"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    transformers.T5EncoderModel(config).save_pretrained(str(folder))
    tokenizer.model_max_length = int(1e30)
    tokenizer.save_pretrained(str(folder))
    model = models.load_retriever(folder, passage_length=200, given=Given("mean", "dot"))
    library = SentenceTransformer(
        modules=[Transformer(str(folder), max_seq_length=200), Pooling(32, "mean")]
    )
    texts = ["abcde " * 300]
    np.testing.assert_allclose(model.encode_document(texts), library.encode(texts), atol=1e-5)
