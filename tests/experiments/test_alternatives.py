"""TSDAE and SimCSE: what they are trained on, and that they train the vector of the folder."""

import itertools

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from cocondenser_jax.retriever.search.models import load_retriever
from experiments import alternatives
from tests.world import WORDS, write_beir


def test_six_of_ten_words_are_deleted_and_one_is_kept():
    words = [f"w{i}" for i in range(1000)]
    kept = alternatives.without_words(" ".join(words)).split()
    assert 340 <= len(kept) <= 460
    assert kept == [word for word in words if word in {*kept}]
    assert alternatives.without_words("one") == "one"
    assert alternatives.without_words("") == ""


def test_tsdae_writes_the_whole_text_and_simcse_reads_it_twice():
    texts = [" ".join(WORDS)] * 2
    assert alternatives.pairs("simcse", {"text": texts}) == {"read": texts, "target": texts}
    noisy = alternatives.pairs("tsdae", {"text": texts})
    assert noisy["target"] == texts
    assert all(len(read) < len(text) for read, text in zip(noisy["read"], texts, strict=True))
    assert noisy["read"][0] != noisy["read"][1]


@pytest.fixture
def start(model_folder, tmp_path):
    """A folder whose vector is the mean, of length 1."""
    model = load_retriever(model_folder)
    dimension = model.get_embedding_dimension()
    layers = [model[0], Pooling(dimension, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=layers, similarity_fn_name="cosine").save_pretrained(
        str(tmp_path / "start"), create_model_card=False
    )
    return tmp_path / "start"


@pytest.mark.parametrize("method", ["tsdae", "simcse"])
def test_training_ends_in_time_and_leaves_a_drop_in(method, start, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    texts = [" ".join(WORDS[i : i + 6]) for i in range(10)]
    write_beir(data, texts, [], {})
    monkeypatch.setattr(alternatives, "BATCH_SIZE", 4)
    words = [method, f"--model={start}", f"--corpus={data}"]
    clock = itertools.count()
    monkeypatch.setattr(alternatives.time, "process_time", lambda: next(clock))
    steps = []
    for out, minutes in (("one", 0), ("out", 0.1)):
        alternatives.main([*words, f"--out={tmp_path / out}", f"--core_minutes={minutes}"])
        *_, last = capsys.readouterr().out.splitlines()
        steps.append(int(last.removesuffix(" steps of 4 passages")))
    assert steps == [1, 6]  # of a second each
    before = SentenceTransformer(str(start))
    after = SentenceTransformer(str(tmp_path / "out"))
    assert [type(layer) for layer in after] == [type(layer) for layer in before]
    assert after.similarity_fn_name == "cosine"
    assert after.max_seq_length == before.max_seq_length
    vectors = [model.encode(texts) for model in (before, after)]
    assert not np.array_equal(*vectors)
    changed = {
        name
        for name, value in after.state_dict().items()
        if not torch.equal(value, before.state_dict()[name])
    }
    assert any("layer.0.attention" in name for name in changed)
