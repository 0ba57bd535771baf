"""The losses against their formulas, written out with NumPy; the gradient cache."""

import math

import numpy as np
import pytest
import sentence_transformers.base.losses
import torch
from sentence_transformers.sentence_transformer.losses import (
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)

from cocondenser_jax.representation import AS_IN_PAPERS, Given
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.search import models
from cocondenser_jax.retriever.train import losses
from cocondenser_jax.retriever.train.training_data import to_judgments

Q, G = 4, 3
NAMES = ("contrastive", "soft_labels")
OWN_QxG = torch.arange(Q * G).view(Q, G)  # the columns of each query's group


@pytest.fixture
def scores_QxP():
    return np.random.default_rng(0).normal(0, 3, (Q, Q * G))


def softmax(row):
    return np.exp(row - row.max()) / np.exp(row - row.max()).sum()


def contrastive_by_hand(scores_QxP):
    return np.mean([-math.log(softmax(row)[q * G]) for q, row in enumerate(scores_QxP)])


def soft_labels_by_hand(scores_QxP, teacher_QxG):
    total = 0.0
    for q, row in enumerate(scores_QxP):
        group = slice(q * G, (q + 1) * G)
        student_G = softmax(row)[group]
        teacher_G = softmax(teacher_QxG[q])
        total += (teacher_G * np.log(teacher_G / student_G)).sum()
    return total / len(scores_QxP)


def test_contrastive_is_its_formula(scores_QxP):
    scores = torch.tensor(scores_QxP)
    expected = pytest.approx(contrastive_by_hand(scores_QxP), rel=1e-12)
    assert losses.contrastive(scores, OWN_QxG).item() == expected
    # Two processes have half the queries each, and all passages.
    halves = (slice(2), slice(2, 4))
    found = [losses.contrastive(scores[half], OWN_QxG[half]).item() for half in halves]
    assert np.mean(found) == expected


def test_soft_labels_are_their_formula(scores_QxP):
    teacher_QxG = np.random.default_rng(1).normal(0, 2, (Q, G))
    scores, teacher = torch.tensor(scores_QxP), torch.tensor(teacher_QxG)
    expected = soft_labels_by_hand(scores_QxP, teacher_QxG)
    loss = losses.soft_labels
    assert loss(scores, OWN_QxG, teacher).item() == pytest.approx(expected, rel=1e-12)
    halves = [
        loss(scores[half], OWN_QxG[half], teacher[half]).item() for half in (slice(2), slice(2, 4))
    ]
    assert np.mean(halves) == pytest.approx(expected, rel=1e-12)
    # A student that agrees with its teacher, and gives nothing to the rest, has nothing to learn.
    agreeing = torch.full((Q, Q * G), -1e4, dtype=torch.float64)
    for q in range(Q):
        agreeing[q, q * G : (q + 1) * G] = teacher[q] + 5
    assert loss(agreeing, OWN_QxG, teacher).item() == pytest.approx(0)


def test_scores_stay_in_single_precision_under_autocast():
    # 201.25 and 200.75 are the same bfloat16 number.
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    passages = torch.tensor([[201.25, 0.0], [0.0, 200.75]])
    with torch.autocast("cpu", torch.bfloat16):
        scores = losses.inner_products(queries, passages)
    assert scores.dtype == torch.float32
    assert scores.diag().tolist() == [201.25, 200.75]


@pytest.fixture(scope="module")
def step(make_model, beir):
    """A model without dropout, and texts of four groups: q1's positive is among q0's negatives."""
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = models.load_retriever(folder, 8, 16, plain=AS_IN_PAPERS)
    texts = {p.id: passage_text(p) for p in read_corpus(beir)}
    queries = read_queries(beir)
    groups = [
        ["d0", "d1", "d20"],
        ["d1", "d21", "d22"],
        ["d2", "d23", "d24"],
        ["d3", "d25", "d26"],
    ]
    qrels = {f"q{i}": {f"d{i}": 1} for i in range(Q)}
    teacher = {
        f"q{q}": {p: float(q - 2 * i) for i, p in enumerate(g)} for q, g in enumerate(groups)
    }
    judgments = to_judgments(qrels, teacher)
    labels = torch.tensor(
        [
            [judgments.queries[f"q{q}"], *(judgments.passages[p] for p in group)]
            for q, group in enumerate(groups)
        ]
    )
    columns = [[queries[f"q{q}"] for q in range(Q)]]
    columns += [[texts[group[i]] for group in groups] for i in range(G)]
    return model, columns, judgments, labels


def features(model, columns):
    return [
        model.preprocess(texts, task="document" if i else "query")
        for i, texts in enumerate(columns)
    ]


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_a_relevant_passage_is_never_a_negative(step, name, scale):
    model, columns, judgments, labels = step
    loss = losses.InBatchLoss(model, judgments, losses.LossSettings(name, scale, chunk_size=0))
    with torch.no_grad():
        value = loss(features(model, columns), labels).item()
    queries_QxD = model.encode_query(columns[0]).astype(np.float64)
    passages_PxD = [
        model.encode_document([columns[1 + i][q]])[0] for q in range(Q) for i in range(G)
    ]
    scores_QxP = queries_QxD @ np.array(passages_PxD, np.float64).T
    scores_QxP *= scale
    scores_QxP[1, 1] = -np.inf  # d1, in the group of q0
    teacher_QxG = np.array([[q - 2.0 * i for i in range(G)] for q in range(Q)])
    expected = {
        "contrastive": lambda: contrastive_by_hand(scores_QxP),
        "soft_labels": lambda: soft_labels_by_hand(scores_QxP, teacher_QxG),
    }[name]()
    assert value == pytest.approx(expected, rel=1e-5)


def test_nor_is_one_that_is_in_its_own_query_s_group(step):
    model, columns, judgments, labels = step
    relevant = judgments.relevant.tolil()
    relevant[labels[3, 0], labels[3, 2]] = True  # d25, the first negative of q3
    judgments = judgments._replace(relevant=relevant.tocsr())
    scores_QxP = torch.randn(Q, Q * G)
    settings = losses.LossSettings("contrastive", 1.0, chunk_size=0)
    loss = losses.InBatchLoss(model, judgments, settings)
    loss.score = lambda queries, passages: scores_QxP
    with torch.no_grad():
        value = loss(features(model, columns), labels).item()
    expected_QxP = scores_QxP.double().numpy().copy()
    expected_QxP[1, 1] = -np.inf  # d1, in the group of q0
    expected_QxP[3, 3 * G + 1] = -np.inf
    assert value == pytest.approx(contrastive_by_hand(expected_QxP), rel=1e-5)


def test_the_merging_of_columns_is_still_in_no_public_module():
    """Says when the import may change: see the table in CONTRIBUTING.md."""
    assert "embed_columns" not in sentence_transformers.base.losses.__all__


def gradient(loss, model, columns, labels):
    model.zero_grad()
    value = loss(features(model, columns), labels)
    value.backward()
    return value.item(), torch.cat([p.grad.flatten() for p in loss.parameters()])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(), (32, 16, 5)])
def test_the_gradient_cache_changes_nothing(step, name, sizes):
    model, columns, judgments, labels = step
    model.train()
    settings = losses.LossSettings(name, scale=1.0, chunk_size=0, sizes=sizes)
    whole = losses.InBatchLoss(model, judgments, settings)
    direct, expected = gradient(whole, model, columns, labels)
    for chunk_size in (1, 3, 4):
        loss = losses.InBatchLoss(model, judgments, settings._replace(chunk_size=chunk_size))
        loss.load_state_dict(whole.state_dict())
        value, found = gradient(loss, model, columns, labels)
        assert value == pytest.approx(direct, rel=1e-6)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    model.eval()


@pytest.mark.parametrize("sizes", [(32, 16, 5), (20, 10, 2)])
@pytest.mark.parametrize("chunk_size", [0, 3])
def test_the_loss_of_several_sizes_is_matryoshka_loss(step, make_model, sizes, chunk_size):
    """Its value and its gradient, of the cosines of queries and their positives alone."""
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    _, columns, judgments, labels = step
    pairs = columns[:2]
    given = Given("mean", "cosine", dimensions=sizes[0])
    model = models.load_retriever(folder, 8, 16, given)
    settings = losses.LossSettings("contrastive", 20.0, chunk_size, sizes)
    ours = losses.InBatchLoss(model, judgments, settings)
    value, found = gradient(ours, model, pairs, labels[:, :2])

    whole = models.load_retriever(folder, 8, 16, Given("mean", "cosine"))
    theirs = MatryoshkaLoss(whole, MultipleNegativesRankingLoss(whole, scale=20.0), sizes)
    their_value, expected = gradient(theirs, whole, pairs, None)
    assert value == pytest.approx(their_value, rel=1e-5)
    assert (found - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_loss_of_several_sizes_is_the_sum_of_those_of_each(step, make_model, name, similarity):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    _, columns, judgments, labels = step
    sizes = (30, 16, 5)

    def value(*sizes):
        given = Given("mean", similarity, dimensions=sizes[0])
        model = models.load_retriever(folder, 8, 16, given)
        settings = losses.LossSettings(name, 0.5, 0, sizes)
        with torch.no_grad():
            return losses.InBatchLoss(model, judgments, settings)(
                features(model, columns), labels
            ).item()

    alone = [value(size) for size in sizes]
    assert len(set(alone)) == 3
    assert value(*sizes) == pytest.approx(sum(alone), rel=1e-5)
