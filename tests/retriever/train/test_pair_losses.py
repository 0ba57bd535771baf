"""The losses of pairs against their formulas, written out in loops; the gradient cache."""

import math

import numpy as np
import pytest
import torch

from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.train.pair_losses import PAIR_LOSSES, PairLoss, PairLossSettings

N = 8
# Texts 0 and 5 are of copies of a document, 2 and 7 are the same text.
ORIGINS = torch.tensor([[0, 9], [0, 1], [1, 2], [1, 3], [2, 4], [0, 5], [3, 6], [3, 2]])


def share(i, j):
    return bool((ORIGINS[i] == ORIGINS[j]).any())


def contrastive_by_hand(vectors, scale):
    total = 0.0
    for i in range(N):
        others = [j for j in range(N) if j != i and (j == i ^ 1 or not share(i, j))]
        logits = [scale * float(vectors[i] @ vectors[j]) for j in others]
        positive = scale * float(vectors[i] @ vectors[i ^ 1])
        total += math.log(sum(map(math.exp, logits))) - positive
    return total / N


def cloze_by_hand(vectors, scale):
    total = 0.0
    for i in range(0, N, 2):
        texts = [j for j in range(1, N, 2) if j == i + 1 or not share(i, j)]
        logits = [scale * float(vectors[i] @ vectors[j]) for j in texts]
        total += math.log(sum(map(math.exp, logits))) - scale * float(vectors[i] @ vectors[i + 1])
    return total / (N // 2)


BY_HAND = {"contrastive": contrastive_by_hand, "ict": cloze_by_hand}


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_loss_is_its_formula(name):
    vectors = np.random.default_rng(0).normal(size=(N, 4))
    for scale in (1.0, 3.0):
        found = PAIR_LOSSES[name](torch.tensor(vectors, dtype=torch.float32), ORIGINS, scale)
        assert found.item() == pytest.approx(BY_HAND[name](vectors, scale), rel=1e-6)


class Table(torch.nn.Module):
    """A model whose vector of a text is the mean of its tokens' rows in a table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(20, 4)
        self.n_rows = []

    def forward(self, features):
        ids, mask = features["input_ids"], features["attention_mask"][..., None]
        self.n_rows.append(len(ids))
        vectors = (self.table(ids) * mask).sum(1) / mask.sum(1)
        return features | {"sentence_embedding": vectors}


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_the_gradient_does_not_depend_on_chunks(name):
    ids = torch.randint(0, 20, (N, 5), generator=torch.Generator().manual_seed(1))
    places = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    labels = torch.cat([ORIGINS, places[:, None]], dim=1)
    found = {}
    for chunk_size in (0, 3, N):
        model = Table()
        loss = PairLoss(model, Representation(scale=2.0), PairLossSettings(name, chunk_size))
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        value = loss([features], labels)
        value.backward()
        found[chunk_size] = value.item(), model.table.weight.grad
        assert model.n_rows == ([3, 3, 2, 3, 3, 2] if chunk_size == 3 else [N])
        ordered = model.table(ids).mean(1)[places]
        expected = BY_HAND[name](ordered.detach().numpy(), 2.0)
        assert value.item() == pytest.approx(expected, rel=1e-5)
    for value, gradient in found.values():
        assert value == pytest.approx(found[0][0], rel=1e-6)
        torch.testing.assert_close(gradient, found[0][1])


@pytest.mark.parametrize("is_cosine", [True, False])
def test_the_losses_of_all_sizes_are_added(is_cosine):
    ids = torch.randint(0, 20, (N, 5), generator=torch.Generator().manual_seed(1))
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    labels = torch.cat([ORIGINS, torch.arange(N)[:, None]], dim=1)
    sizes = (4, 3, 1)
    own = Representation(sizes=sizes, similarity="cosine" if is_cosine else "dot")
    model = Table()
    found = PairLoss(model, own, PairLossSettings("contrastive", 0))([features], labels)
    vectors = model.table(ids).mean(1).detach().numpy()
    expected = 0.0
    for size in sizes:
        cut = vectors[:, :size]
        if is_cosine:
            cut = cut / np.linalg.norm(cut, axis=1)[:, None]
        expected += contrastive_by_hand(cut, 20.0 if is_cosine else 1.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)
