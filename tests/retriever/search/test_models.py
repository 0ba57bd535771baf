"""Which vector or logit a model gives, and what survives saving."""

import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model, open_network
from cocondenser_jax.representation import AS_IN_PAPERS, Given
from cocondenser_jax.retriever.search import models
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from tests.lines import whole

TEXTS = ["abcde fgh", "hgfed cba aaaaa bbbbb ccccc ddddd eeeee"]


def hidden_states(folder, texts, max_length):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(
        texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.no_grad():
        return model(**batch)[0].numpy(), batch["attention_mask"].numpy()[..., None]


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_a_plain_folder_is_trained_by_its_cls_vector(make_model, kind):
    folder = make_model(kind)
    model = models.load_retriever(folder, 5, 12, plain=AS_IN_PAPERS)
    assert model.similarity_fn_name == "dot"
    assert not any("pooler" in name for name, _ in model.named_parameters())
    for encode, length in ((model.encode_query, 5), (model.encode_document, 12)):
        hidden, _ = hidden_states(folder, TEXTS, length)
        np.testing.assert_allclose(encode(TEXTS), hidden[:, 0], atol=2e-6)


def test_a_plain_folder_is_served_as_the_library_serves_it(make_model, caplog):
    folder = make_model("Roberta")
    library = SentenceTransformer(str(folder), model_kwargs={"add_pooling_layer": False})
    expected = library.similarity(library.encode_query(TEXTS), library.encode_document(TEXTS))
    model = models.load_retriever(folder)
    scores_QxP = model.encode_query(TEXTS) @ model.encode_document(TEXTS).T
    np.testing.assert_allclose(scores_QxP, expected, atol=1e-5)
    (record,) = caplog.records
    said = "pooling mean and similarity cosine are assumed, as in sentence-transformers; --pooling"
    assert said in record.getMessage()
    caplog.clear()
    models.load_retriever(folder, given=Given("cls", "dot"))
    assert not caplog.records


def test_a_plain_folder_that_generates_text_is_pooled_by_its_last_token(model_folder, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = models.load_retriever(tmp_path)
    assert models.pooling_of(model) == "lasttoken"
    library = SentenceTransformer(str(tmp_path))
    expected = library.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)


def test_saving_keeps_vectors_lengths_score_and_adds_no_pooler(model_folder, tmp_path):
    model = models.load_retriever(model_folder, 5, 12, plain=AS_IN_PAPERS)
    model.save_pretrained(str(tmp_path / "saved"))
    for again in (
        SentenceTransformer(str(tmp_path / "saved")),
        models.load_retriever(tmp_path / "saved"),
    ):
        np.testing.assert_array_equal(again.encode_query(TEXTS), model.encode_query(TEXTS))
        np.testing.assert_array_equal(again.encode_document(TEXTS), model.encode_document(TEXTS))
        assert again.similarity_fn_name == "dot"
        assert not any("pooler" in name for name, _ in again.named_parameters())


def test_saving_keeps_that_texts_are_lowered(make_model, tmp_path):
    """sentence-transformers 6.2.0 would save a model that reads capitals."""
    folder = tmp_path / "model"
    models.load_retriever(make_model()).save_pretrained(str(folder), create_model_card=False)
    for name, old in (("tokenizer.json", '"lowercase": true'), ("tokenizer_config.json", "true")):
        path = folder / name
        path.write_text(path.read_text().replace(old, old.replace("true", "false")))
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": True}))
    model = models.load_retriever(folder)
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    texts = ["ABC def", "abc DEF"]
    expected = model.tokenizer(texts)["input_ids"]
    assert expected[0] == expected[1]
    assert SentenceTransformer(str(tmp_path / "saved")).tokenizer(texts)["input_ids"] == expected


def test_another_pooling_keeps_what_follows_it(model_folder, tmp_path):
    saved = tmp_path / "mean"
    SentenceTransformer(
        modules=[Transformer(str(model_folder)), Pooling(32, "mean"), Normalize()],
        prompts={"query": "search: "},
        similarity_fn_name="cosine",
    ).save_pretrained(str(saved))
    hidden, mask = hidden_states(model_folder, TEXTS, 64)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    own = models.load_retriever(saved)
    assert models.pooling_of(own) == "mean"
    kept = own.encode_document(TEXTS)
    np.testing.assert_allclose(kept, mean / np.linalg.norm(mean, axis=1)[:, None], atol=2e-6)
    prompted = hidden_states(model_folder, [f"search: {text}" for text in TEXTS], 64)[0]
    for given in (Given("cls", "dot"), Given("cls")):
        replaced = models.load_retriever(saved, given=given)
        assert replaced.similarity_fn_name == (given.similarity or "cosine")
        assert models.pooling_of(replaced) == "cls"
        for vectors, expected in (
            (replaced.encode_document(TEXTS), hidden[:, 0]),
            (replaced.encode_query(TEXTS), prompted[:, 0]),
        ):
            if given.similarity is None:  # as the folder compares
                expected = expected / np.linalg.norm(expected, axis=1)[:, None]
            np.testing.assert_allclose(vectors, expected, atol=2e-6)


def test_one_pooling_instead_of_two_makes_shorter_vectors(model_folder, tmp_path):
    both = tmp_path / "both"
    modules = [Transformer(str(model_folder)), Pooling(32, ["cls", "mean"])]
    SentenceTransformer(modules=modules, similarity_fn_name="dot").save_pretrained(str(both))
    assert models.load_retriever(both).get_embedding_dimension() == 64
    mean = models.load_retriever(both, given=Given("mean"))
    assert mean.get_embedding_dimension() == 32
    np.testing.assert_array_equal(
        mean.encode_document(TEXTS), models.load_retriever(both).encode_document(TEXTS)[:, 32:]
    )


def test_vectors_of_another_size_than_the_folder_says_are_refused(model_folder, tmp_path):
    folder = tmp_path / "model"
    SentenceTransformer(
        modules=[Transformer(str(model_folder)), Pooling(32, "mean")]
    ).save_pretrained(str(folder))
    (config,) = folder.glob("*Pooling/config.json")
    for said in (16, 64):
        config.write_text(json.dumps({"word_embedding_dimension": said}))
        with pytest.raises(
            UserError, match=whole(f"… makes vectors of 32 dimensions, and its files say {said}")
        ):
            models.load_retriever(folder)


def load_pairs(folder):
    return load_cross_encoder(open_network(folder))


def test_folders_that_are_no_model(model_folder, tmp_path):
    with pytest.raises(
        UserError, match=whole("…none: no such folder, and not the name of a model on the hub")
    ):
        models.load_retriever(tmp_path / "none")
    for load in (models.load_retriever, load_pairs):
        with pytest.raises(UserError) as raised:
            load(tmp_path)
        assert "\n" not in str(raised.value)
    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(
        UserError,
        match=whole("TMP/broken cannot be loaded as a bi-encoder: …model.safetensors…"),
    ):
        models.load_retriever(broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match="cannot be loaded as a bi-encoder") as raised:
        models.load_retriever(broken)
    assert "\n" not in str(raised.value)


def test_a_model_is_loaded_once(model_folder, monkeypatch):
    n_loaded = []
    load = transformers.PreTrainedModel.from_pretrained.__func__

    def count(cls, *arguments, **options):
        n_loaded.append(cls)
        return load(cls, *arguments, **options)

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(count))
    models.load_retriever(model_folder)
    assert len(n_loaded) == 1
    assert transformers.PreTrainedModel.from_pretrained.__func__ is count


def test_parameters_left_at_random_are_an_error(model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    # Heads beside the backbone are no fault, nor is the prefix they come with.
    full = {f"bert.{name}": weight for name, weight in weights.items()} | {"cls.x": torch.ones(2)}
    safetensors.torch.save_file(full, folder / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(
        models.load_retriever(folder).encode_query(TEXTS),
        models.load_retriever(model_folder).encode_query(TEXTS),
    )
    del full["bert.encoder.layer.1.output.dense.bias"]
    safetensors.torch.save_file(full, folder / "model.safetensors", {"format": "pt"})
    said = whole(
        "the weights of TMP/model lack 1 parameters that its config.json "
        "implies: encoder.layer.1.output.dense.bias"
    )
    with pytest.raises(UserError, match=said):
        models.load_retriever(folder)
    torch.save(full, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=said):
        models.load_retriever(folder)


@pytest.mark.parametrize(("kind", "limit"), [("Bert", 64), ("Roberta", 63)])
def test_lengths_beyond_the_positions_are_refused(make_model, kind, limit):
    folder = make_model(kind)  # the padding id is 0, so RoBERTa counts positions from 1
    model = models.load_retriever(folder, passage_length=limit)
    assert model.encode_document(["abcde " * 100]).shape == (1, 32)
    with pytest.raises(UserError, match=f"passage_length={limit + 1}: expected 3 to {limit}"):
        models.load_retriever(folder, passage_length=limit + 1)
    with pytest.raises(UserError, match="query_length=2: expected 3"):
        models.load_retriever(folder, query_length=2)


@pytest.mark.parametrize("name", ["max_seq_length", "query_length", "document_length"])
def test_a_folder_that_reads_more_than_its_positions(make_model, research_folders, name, tmp_path):
    """A table ends; sentence-transformers computes rotary positions beyond it."""
    for kind, source in (("table", make_model()), ("rotary", research_folders["modernbert"])):
        folder = tmp_path / kind
        models.load_retriever(source).save_pretrained(str(folder), create_model_card=False)
        path = folder / "sentence_bert_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: 65}))
    model = models.load_retriever(tmp_path / "table")
    assert getattr(model[0], name) == 64
    assert model.encode_query(["ab " * 100]).shape == model.encode_document(["ab " * 100]).shape
    with pytest.raises(
        UserError,
        match=whole(f"… says of {name} 65, but its config.json that there are 24 positions"),
    ):
        models.load_retriever(tmp_path / "rotary")


def test_training_collects_nothing_for_a_model_card(model_folder, cross_encoder_folder):
    """The library would look up the model on the hub, and quote texts."""
    for model in (models.load_retriever(model_folder), load_pairs(cross_encoder_folder)):
        card = model.model_card_data
        assert (card.local_files_only, card.generate_widget_examples) == (True, False)


def test_the_hash_is_of_what_vectors_depend_on(model_folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model_folder, copy)
    (copy / "README.md").write_text("a card")
    assert open_model(copy).sha256() == open_model(model_folder).sha256()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content + b" ")
        assert open_model(copy).sha256() != open_model(model_folder).sha256()
        (copy / name).write_bytes(content)
    for name in ("vocab.txt", "merges.txt", "spiece.model"):
        before = open_model(copy).sha256()
        (copy / name).write_text("x")
        assert open_model(copy).sha256() != before
        (copy / name).unlink()
    assert open_model(copy).sha256() == open_model(model_folder).sha256()
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text("{}")
    assert open_model(copy).sha256() != open_model(model_folder).sha256()


def test_a_long_text_is_cut_to_the_positions_that_roberta_has(research_folders):
    model = models.load_retriever(research_folders["roberta"])  # whose tokenizer says no limit
    assert model.max_seq_length == 24
    assert np.isfinite(model.encode_document("a word " * 100)).all()


@pytest.mark.parametrize(("similarity", "norms"), [("cosine", [1.0, 1.0]), ("dot", [5.0, 2.0])])
def test_a_cut_vector_has_length_one_for_a_cosine_alone(model_folder, similarity, norms):
    model = SentenceTransformer(str(model_folder), similarity_fn_name=similarity)
    vectors_NxD = torch.tensor([[3.0, 4.0, 12.0], [0.0, 2.0, 1.0]])
    found = models.cut_vectors(vectors_NxD, 2, model.similarity_fn_name).norm(dim=1)
    np.testing.assert_allclose(found, norms, rtol=1e-6)


def test_two_towers_are_not_copied_again(model_folder, tmp_path):
    """A second round of a model of two towers, whose settings ask for two, trains the same two."""
    folder = tmp_path / "two"
    two = models.load_retriever(model_folder, two_towers=True)
    two.save_pretrained(str(folder), create_model_card=False)
    again = models.load_retriever(folder, two_towers=True)
    assert models.towers(again).keys() == {"document", "query"}
    np.testing.assert_array_equal(again.encode_query(TEXTS), two.encode_query(TEXTS))
