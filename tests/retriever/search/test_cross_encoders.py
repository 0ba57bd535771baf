"""Which logit a cross-encoder gives, and what of its folder counts."""

import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import CrossEncoder

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from tests.lines import whole

PAIRS = [("abcde fgh", "hgfed cba aaaaa bbbbb ccccc"), ("aaaaa", "ddddd " * 40)]
CAPITALS = [("ABCDE fgh", "HGFED cba aaaaa bbbbb ccccc " * 4), ("aaaaa", "DDDDD " * 9)]


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
    before = load_cross_encoder(open_network(saved)).predict(CAPITALS)
    change(saved / "sentence_bert_config.json", **settings)
    model = load_cross_encoder(open_network(saved))
    expected = CrossEncoder(str(saved)).predict(CAPITALS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(model.predict(CAPITALS), expected, atol=1e-6)
    assert np.abs(expected - before).max() > 1e-4
    model.save_pretrained(str(saved / "again"))
    again = load_cross_encoder(open_network(saved / "again")).predict(CAPITALS)
    np.testing.assert_array_equal(again, model.predict(CAPITALS))


def test_a_prompt_before_every_pair_is_refused(saved):
    settings = saved / "config_sentence_transformers.json"
    change(settings, prompts={"x": "rank: ", "query": "q: "})
    load_cross_encoder(open_network(saved))
    change(settings, default_prompt_name="x")
    with pytest.raises(
        UserError, match=whole("… puts 'rank: ' before every pair, which is not supported")
    ):
        load_cross_encoder(open_network(saved))


def logits(folder, pairs, max_length):
    """The scores by transformers alone, a pair at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [
            model(
                **tokenizer(*pair, truncation=True, max_length=max_length, return_tensors="pt")
            ).logits.item()
            for pair in pairs
        ]


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_a_cross_encoder_scores_with_its_logit(make_cross_encoder, kind, tmp_path):
    folder = make_cross_encoder(kind)
    model = load_cross_encoder(open_network(folder), max_length=20)
    expected = logits(folder, PAIRS, 20)
    np.testing.assert_allclose(model.predict(PAIRS), expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.1
    model.save_pretrained(str(tmp_path / "saved"))
    for again in (
        CrossEncoder(str(tmp_path / "saved")),
        load_cross_encoder(open_network((tmp_path / "saved").rename(tmp_path / "saved [a] 'é🙂"))),
    ):
        np.testing.assert_array_equal(again.predict(PAIRS), model.predict(PAIRS))


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_a_folder_without_a_head_gets_one_by_seed(make_model, kind):
    folder = make_model(kind)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    state = torch.get_rng_state()
    heads = []
    for seed in (1, 1, 2):
        model = load_cross_encoder(open_network(folder), head_seed=seed)
        assert model.num_labels == 1
        weights = model[0].model.state_dict()
        for name, weight in stored.items():
            assert torch.equal(weights[f"{kind.lower()}.{name}"], weight)
        heads.append(model.predict(PAIRS))
    np.testing.assert_array_equal(heads[0], heads[1])
    assert np.abs(heads[0] - heads[2]).min() > 1e-3
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_too_long_is_the_passage(cross_encoder_folder):
    model = load_cross_encoder(open_network(cross_encoder_folder), max_length=20)
    tokenizer = model.tokenizer
    query = tokenizer("abcde fgh", add_special_tokens=False)["input_ids"]
    assert 4 < len(query) <= (20 - 3) // 2
    ids = model.preprocess([("abcde fgh", "ddddd " * 40)])["input_ids"][0].tolist()
    assert ids[: len(query) + 2] == [tokenizer.cls_token_id, *query, tokenizer.sep_token_id]
    assert len(ids) == 20


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_logits_stay_in_single_precision_under_autocast(make_cross_encoder, kind):
    model = load_cross_encoder(open_network(make_cross_encoder(kind)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = model(model.preprocess(PAIRS))["scores"]
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, scores.bfloat16().float())


def test_folders_that_are_no_cross_encoder(model_folder, cross_encoder_folder, tmp_path):
    with pytest.raises(
        UserError,
        match=whole(
            "… is not a cross-encoder: expected a model for sequence classification, such as"
            " cocondenser finetune makes with configs/cross_encoder.py"
        ),
    ):
        load_cross_encoder(open_network(model_folder))
    with pytest.raises(
        UserError, match=whole("…none: no such folder, and not the name of a model on the hub")
    ):
        load_cross_encoder(open_network(tmp_path / "none"))
    # What its config.json calls a cross-encoder, but its weights have no head.
    folder = tmp_path / "headless"
    shutil.copytree(cross_encoder_folder, folder)
    shutil.copy(model_folder / "model.safetensors", folder)
    with pytest.raises(
        UserError,
        match=whole(
            "the weights of TMP/headless lack 4 parameters that its config.json "
            "implies: bert.pooler.dense.bias, bert.pooler.dense.weight, "
            "classifier.bias, ..."
        ),
    ):
        load_cross_encoder(open_network(folder), head_seed=1)
    # A head may be drawn, a layer may not.
    folder = tmp_path / "broken"
    shutil.copytree(model_folder, folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = whole(
        "the weights of TMP/broken lack 1 parameters that its config.json "
        "implies: bert.encoder.layer.1.output.dense.bias"
    )
    with pytest.raises(UserError, match=said):
        load_cross_encoder(open_network(folder), head_seed=1)
    folder = tmp_path / "two"
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    load(model_folder, num_labels=2).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    with pytest.raises(UserError, match=whole("… gives a pair of texts 2 scores: expected 1")):
        load_cross_encoder(open_network(folder))


@pytest.mark.parametrize(("kind", "limit"), [("Bert", 64), ("Roberta", 63)])
def test_pairs_beyond_the_positions_are_cut_or_refused(make_cross_encoder, kind, limit):
    folder = make_cross_encoder(kind)
    assert load_cross_encoder(open_network(folder)).predict([("abcde", "abcde " * 100)]).shape == (
        1,
    )
    for length in (7, limit + 1):
        with pytest.raises(UserError, match=f"max_length={length}: expected 8 to {limit}"):
            load_cross_encoder(open_network(folder), max_length=length)
