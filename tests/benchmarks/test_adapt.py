"""The benchmark of a step of `adapt`, on a tiny model and corpus: are the sides the same?"""

import json
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from benchmarks import adapt
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import write_records

N_PAIRS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory, make_model):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    loaded = load_retriever(make_model(max_position_embeddings=128), given=Given("mean", "dot"))
    loaded.similarity_fn_name = "cosine"
    loaded.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, words):
    """Texts of one span or more, of up to twelve sentences."""
    rng = np.random.default_rng(2)
    texts = []
    for number in range(90):
        sentences = [" ".join(rng.choice(words, 7)).capitalize() for _ in range(3 + number % 10)]
        texts.append({"id": str(number), "text": ". ".join(sentences) + "."})
    return write_records(tmp_path_factory.mktemp("corpus") / "texts.jsonl", texts)


@pytest.fixture
def run(model, corpus, tmp_path, monkeypatch):
    """Gives a function that runs the benchmark and returns its rows."""
    n_threads = torch.get_num_threads()

    def run(*flags):
        out = tmp_path / "adapt.json"
        words = [f"--model={model}", f"--data={corpus}", f"--pairs={N_PAIRS}", f"--json_out={out}"]
        monkeypatch.setattr(sys, "argv", ["adapt", *words, *flags])
        adapt.main()
        return json.loads(out.read_text())

    yield run
    torch.set_num_threads(n_threads)


def test_both_sides_take_turns_with_the_same_batches(run, monkeypatch):
    seen = []

    def watched(name):
        make = getattr(adapt, name)

        def side(*arguments):
            step = make(*arguments)

            def train_step(batch):
                seen.append((name, batch))
                step(batch)

            return train_step

        monkeypatch.setattr(adapt, name, side)

    watched("flax_side")
    watched("torch_side")
    (row,) = run("--steps=2", "--rounds=3")
    ours, theirs = (
        [batch for name, batch in seen if name == f"{side}_side"] for side in ("flax", "torch")
    )
    assert len(ours) == 1 + 2 * 3
    for left, right in zip(ours, theirs, strict=True):
        assert left is right
    for batch in ours:
        assert len(batch.input_ids_SxL) == 2 * N_PAIRS
        assert len({*batch.origins_Sx2[:, 0]}) == N_PAIRS
        assert len({*map(bytes, batch.input_ids_SxL)}) == 2 * N_PAIRS
    assert "".join(name[0] for name, _ in seen) == "ft" + "ttff" + "fftt" + "ttff"
    rates = [row["pairs/s"], row["pairs/s, sentence-transformers"]]
    assert row["times theirs"] == pytest.approx(rates[0] / rates[1])
    assert row["pairs"] == N_PAIRS


@pytest.mark.parametrize("what", ["losses", "gradients"])
def test_another_computation_is_refused_before_anything_is_timed(run, monkeypatch, capsys, what):
    def load(folder, device):
        loaded = SentenceTransformer(folder, device=device)
        next(loaded.parameters()).requires_grad_(False)  # the word embeddings
        return loaded

    if what == "losses":
        monkeypatch.setattr(adapt, "SCALE", 20.1)
    else:
        monkeypatch.setattr(adapt, "SentenceTransformer", load)
    monkeypatch.setattr(adapt, "_seconds", pytest.fail)
    with pytest.raises(SystemExit, match=f"the {what} differ: "):
        run()
    assert capsys.readouterr().out == ""


def test_batches_that_only_we_can_compare_are_refused(run, corpus):
    one = corpus.with_name("one.jsonl")
    one.write_text(corpus.read_text().splitlines()[9] + "\n")
    with pytest.raises(SystemExit, match=r"^0 of 40 batches have 2 documents and no text twice"):
        run(f"--data={one}", "--pairs=2", "--steps=1")
