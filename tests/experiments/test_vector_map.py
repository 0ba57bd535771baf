"""The map of vectors that a teacher's scores teach, against the formula in plain NumPy."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.models import load_retriever
from experiments import vector_map
from experiments.pseudo_queries import make_queries
from experiments.vector_map import LinearMap, Vectors, learn_map
from tests.world import write_records, write_retriever

SIZE, OF_TEACHER, N_QUERIES, N_PASSAGES = 5, 7, 6, 11


def draw(shape, seed, shift=0.0):
    vectors = np.random.default_rng(seed).normal(size=shape) + shift
    return vectors.astype(np.float32)


@pytest.fixture
def own():
    return Vectors(draw((N_QUERIES, SIZE), 0, 1.0), draw((N_PASSAGES, SIZE), 1, 1.0), 3.0)


@pytest.fixture
def teacher():
    return Vectors(draw((N_QUERIES, OF_TEACHER), 2), draw((N_PASSAGES, OF_TEACHER), 3), 0.5)


def divergence(weights, own, teacher, to_unit_length):
    """The mean of KL(T || S) over queries, as the head of the module has it."""

    def mapped(vectors):
        new = (vectors - own.passages_NxD.mean(axis=0)) @ weights.T
        return new / np.linalg.norm(new, axis=1, keepdims=True) if to_unit_length else new

    def softmax(scores):
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    target = softmax(teacher.scale * teacher.queries_QxD @ teacher.passages_NxD.T)
    found = softmax(own.scale * mapped(own.queries_QxD) @ mapped(own.passages_NxD).T)
    return (target * np.log(target / found)).sum(axis=1).mean()


@pytest.mark.parametrize("to_unit_length", [True, False])
def test_the_first_step_goes_down_the_divergence(own, teacher, to_unit_length, monkeypatch):
    """Adam's first step has the size of the rate, and the direction of the gradient's sign."""
    monkeypatch.setattr(vector_map, "EPOCHS", 1)
    learned = learn_map(own, teacher, to_unit_length=to_unit_length, seed=0)
    exact = [
        Vectors(*(np.float64(array) for array in each[:2]), each.scale) for each in (own, teacher)
    ]
    step = 1e-5
    gradient = np.zeros((SIZE, SIZE))
    for place in np.ndindex(gradient.shape):
        moved = np.eye(SIZE)
        moved[place] += step
        above = divergence(moved, *exact, to_unit_length)
        moved[place] -= 2 * step
        gradient[place] = (above - divergence(moved, *exact, to_unit_length)) / (2 * step)
    assert (np.abs(gradient) > 1e-4).all()
    expected = np.eye(SIZE) - vector_map.LEARNING_RATE * np.sign(gradient)
    np.testing.assert_allclose(learned.weights_DxD, expected, rtol=0, atol=2e-6)


def test_the_mean_of_the_passages_is_taken_off_all_vectors(own, teacher):
    weights, bias = learn_map(own, teacher, to_unit_length=True, seed=0)
    np.testing.assert_allclose(bias, -weights @ own.passages_NxD.mean(axis=0), rtol=0, atol=1e-6)
    assert np.abs(weights - np.eye(SIZE)).max() > vector_map.LEARNING_RATE


def test_the_map_of_a_teacher_that_is_a_map_of_the_model_is_found(own, monkeypatch):
    """The teacher's vectors are the model's own, turned and stretched: a map can equal them."""
    monkeypatch.setattr(vector_map, "EPOCHS", 1500)
    monkeypatch.setattr(vector_map, "LEARNING_RATE", 1e-2)
    true_map = np.float32(np.eye(SIZE) + 0.2 * draw((SIZE, SIZE), 4))
    mean = own.passages_NxD.mean(axis=0)
    own = own._replace(scale=1.0)
    taught = Vectors(
        (own.queries_QxD - mean) @ true_map.T, (own.passages_NxD - mean) @ true_map.T, own.scale
    )
    learned = learn_map(own, taught, to_unit_length=False, seed=0)
    start = divergence(np.eye(SIZE), own, taught, False)
    assert divergence(learned.weights_DxD, own, taught, False) < 1e-3 * start


def test_steps_have_all_queries_of_an_epoch_once_in_another_order(monkeypatch):
    monkeypatch.setattr(vector_map, "BATCH_SIZE", 3)
    monkeypatch.setattr(vector_map, "EPOCHS", 3)
    batches = vector_map._batches(8, seed=0)
    assert [len(batch) for batch in batches] == [3] * 6
    epochs = [torch.cat(batches[i : i + 2]).tolist() for i in (0, 2, 4)]
    assert all(len({*epoch}) == 6 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = vector_map._batches(8, seed=1)
    assert [b.tolist() for b in other] != [b.tolist() for b in batches]


def test_the_rate_falls_to_zero(own, teacher, monkeypatch):
    rates = []

    class Adam(torch.optim.Adam):
        def step(self, *arguments):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*arguments)

    monkeypatch.setattr(vector_map.torch.optim, "Adam", Adam)
    learn_map(own, teacher, to_unit_length=True, seed=0)
    expected = [vector_map.LEARNING_RATE * (1 - i / 8) for i in range(vector_map.EPOCHS)]
    np.testing.assert_allclose(rates, expected)


def test_a_seed_repeats_a_map_and_another_gives_another(own, teacher, monkeypatch):
    monkeypatch.setattr(vector_map, "BATCH_SIZE", 2)
    first, again, other = (
        learn_map(own, teacher, to_unit_length=True, seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.weights_DxD, again.weights_DxD)
    assert (first.weights_DxD != other.weights_DxD).any()


@pytest.fixture(scope="module")
def world(make_model, words, tmp_path_factory):
    """A model and its teacher, a collection, and its vectors by both."""
    folder = tmp_path_factory.mktemp("map")
    rng = np.random.default_rng(6)
    texts = [" ".join(rng.choice(words, 12)) for _ in range(N_PASSAGES)]
    passages = {f"p{i}": text for i, text in enumerate(texts)}
    write_records(
        folder / "data" / "corpus.jsonl", ({"_id": k, "text": v} for k, v in passages.items())
    )
    models = {}
    for name, similarity, size in (("model", "cosine", 0), ("teacher", "dot", 7)):
        layer = [{"out_features": size}] if size else []
        models[name] = write_retriever(
            make_model(seed=size), folder / name, "mean", layer, similarity_fn_name=similarity
        )
        encode_corpus(Encoding(models[name]), folder / "data", folder / f"{name}.vectors")
    return folder, passages


def by_hand(folder, texts, learned):
    vectors = SentenceTransformer(str(folder / "model")).encode(texts, normalize_embeddings=True)
    mapped = vectors @ learned.weights_DxD.T + learned.bias_D
    return mapped / np.linalg.norm(mapped, axis=1, keepdims=True)


def test_without_a_teacher_the_mean_of_the_passages_is_taken_off(world, tmp_path):
    folder, passages = world
    flags = [f"--model={folder / 'model'}", f"--embeddings={folder / 'model.vectors'}"]
    vector_map.main([*flags, f"--out={tmp_path / 'out'}"])
    texts = [*passages.values()]
    vectors = SentenceTransformer(str(folder / "model")).encode(texts, normalize_embeddings=True)
    expected = by_hand(folder, texts, LinearMap(np.eye(32), -vectors.mean(axis=0)))
    for model in (SentenceTransformer(str(tmp_path / "out")), load_retriever(tmp_path / "out")):
        np.testing.assert_allclose(model.encode(texts), expected, rtol=0, atol=1e-5)


def test_a_teacher_is_learned_from_by_queries_made_of_the_passages(world, tmp_path):
    folder, passages = world
    flags = [f"--model={folder / 'model'}", f"--embeddings={folder / 'model.vectors'}"]
    flags += [f"--teacher={folder / 'teacher'}"]
    flags += [f"--teacher_embeddings={folder / 'teacher.vectors'}"]
    vector_map.main([*flags, f"--out={tmp_path / 'out'}"])
    texts = [*passages.values()]
    queries = make_queries(texts, vector_map.N_QUERIES, seed=0)
    vectors = {}
    for name, scale in (("model", 20.0), ("teacher", 1.0)):
        library = SentenceTransformer(str(folder / name))
        unit = {"normalize_embeddings": name == "model"}
        vectors[name] = Vectors(*(library.encode(each, **unit) for each in (queries, texts)), scale)
    learned = learn_map(vectors["model"], vectors["teacher"], to_unit_length=True, seed=0)
    model = SentenceTransformer(str(tmp_path / "out"))
    np.testing.assert_allclose(model.encode(texts), by_hand(folder, texts, learned), atol=1e-3)
    for name, weights in load_file(folder / "model" / "model.safetensors").items():
        kept = load_file(tmp_path / "out" / "model.safetensors")[name]
        np.testing.assert_array_equal(kept, weights, name)


def test_other_passages_are_refused(world, tmp_path):
    folder, passages = world
    some = ({"_id": name, "text": text} for name, text in [*passages.items()][1:])
    write_records(tmp_path / "data" / "corpus.jsonl", some)
    encode_corpus(Encoding(folder / "teacher"), tmp_path / "data", tmp_path / "vectors")
    with pytest.raises(UserError, match="different passages"):
        vector_map.map_vectors(
            folder / "model",
            folder / "model.vectors",
            tmp_path / "out",
            (folder / "teacher", tmp_path / "vectors"),
        )
    assert not (tmp_path / "out").exists()


def test_embeddings_of_another_model_are_refused(world, tmp_path):
    folder, _ = world
    vectors = folder / "teacher.vectors"
    with pytest.raises(UserError, match="was built with another model"):
        vector_map.map_vectors(folder / "model", vectors, tmp_path / "out")
    with pytest.raises(UserError, match="was built with another model"):
        vector_map.map_vectors(
            folder / "model",
            folder / "model.vectors",
            tmp_path / "out",
            (folder / "model", vectors),
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["--teacher=here", "--teacher_embeddings=here"])
def test_a_teacher_comes_with_its_embeddings(flag):
    with pytest.raises(SystemExit, match="go together"):
        vector_map.main(["--model=m", "--embeddings=e", "--out=o", flag])
