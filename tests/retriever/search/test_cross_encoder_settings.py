"""A cross-encoder scores as sentence-transformers does by the settings in its folder."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.search.models import load_cross_encoder

PAIRS = [("ABCDE fgh", "HGFED cba aaaaa bbbbb ccccc " * 4), ("aaaaa", "DDDDD " * 9)]


@pytest.fixture
def saved(cross_encoder_folder, tmp_path):
    """A folder of the library; its tokenizer keeps capitals."""
    CrossEncoder(str(cross_encoder_folder)).save_pretrained(str(tmp_path / "saved"))
    change(tmp_path / "saved" / "tokenizer_config.json", do_lower_case=False)
    return tmp_path / "saved"


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("settings", [{"max_seq_length": 16}, {"do_lower_case": True}])
def test_lengths_and_capitals_are_those_of_the_folder(saved, settings):
    before = load_cross_encoder(open_network(saved)).predict(PAIRS)
    change(saved / "sentence_bert_config.json", **settings)
    model = load_cross_encoder(open_network(saved))
    expected = CrossEncoder(str(saved)).predict(PAIRS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(model.predict(PAIRS), expected, atol=1e-6)
    assert np.abs(expected - before).max() > 1e-4
    model.save_pretrained(str(saved / "again"))
    again = load_cross_encoder(open_network(saved / "again")).predict(PAIRS)
    np.testing.assert_array_equal(again, model.predict(PAIRS))


def test_a_prompt_before_every_pair_is_refused(saved):
    settings = saved / "config_sentence_transformers.json"
    change(settings, prompts={"x": "rank: ", "query": "q: "})
    load_cross_encoder(open_network(saved))
    change(settings, default_prompt_name="x")
    with pytest.raises(UserError, match="puts 'rank: ' before every pair, which is not supported"):
        load_cross_encoder(open_network(saved))
