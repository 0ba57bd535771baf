"""The comparison with Tevatron: is its step what it should be, and are the sides comparable?"""

import copy

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from benchmarks import tevatron
from benchmarks.step import Size

pytestmark = pytest.mark.usefixtures("one_length")

N_PAIRS = 5
CHUNK_SIZE = 2


def tiny_model(dropout):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.2,
    )
    return BertModel(config).train()


def columns():
    generator = torch.Generator().manual_seed(1)
    return [
        [
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            for ids in torch.randint(50, (N_PAIRS, 6), generator=generator).split(CHUNK_SIZE)
        ]
        for _ in range(2)
    ]


def test_the_loss_is_of_each_query_among_all_passages():
    rng = np.random.default_rng(0)
    queries_NxD, passages_NxD = rng.standard_normal((2, N_PAIRS, 4)).astype(np.float32)
    expected = 0.0
    for i, query_D in enumerate(queries_NxD):
        scores = [float(query_D @ passage_D) for passage_D in passages_NxD]
        expected -= (scores[i] - np.log(np.sum(np.exp(scores)))) / N_PAIRS
    loss = tevatron.pair_loss(torch.from_numpy(queries_NxD), torch.from_numpy(passages_NxD))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_cached_gradient_is_that_of_one_pass():
    cached = tiny_model(0.0)
    whole = copy.deepcopy(cached)
    loss = tevatron.cached_gradient(cached, columns())
    vectors = [torch.cat([tevatron.encode(whole, chunk) for chunk in each]) for each in columns()]
    expected = tevatron.pair_loss(*vectors)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for (name, ours), theirs in zip(cached.named_parameters(), whole.parameters(), strict=True):
        if name.startswith("pooler"):
            assert ours.grad is None
        else:
            np.testing.assert_allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_both_passes_have_the_same_dropout(monkeypatch):
    seen = []
    encode = tevatron.encode

    def watched(model, chunk):
        vectors_BxD = encode(model, chunk)
        seen.append(vectors_BxD.detach())
        return vectors_BxD

    monkeypatch.setattr(tevatron, "encode", watched)
    tevatron.cached_gradient(tiny_model(0.5), columns())
    first, second = torch.cat(seen).split(2 * N_PAIRS)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (first[0] - first[1]).abs().max() > 0.1


def test_sides_whose_vectors_give_one_loss_are_timed(monkeypatch):
    size = Size(2, 64, 4, 4)
    row = tevatron.compare("tiny", size, 1)
    assert (row["pairs"], row["chunk size"]) == (4, 4)
    assert row["seconds a step"] > 0
    assert row["seconds a step, Tevatron"] > 0
    monkeypatch.setattr(tevatron, "our_step", lambda *_: lambda: row["loss"] + 0.01)
    with pytest.raises(SystemExit, match="tiny: the losses differ"):
        tevatron.compare("tiny", size, 1)
