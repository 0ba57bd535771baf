"""Vectors after the pooling, beside sentence-transformers and torch: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.vectors import ACTIVATIONS, cut, to_unit_length
from cocondenser_jax.pretrain.objectives import corpus_contrastive_sum
from cocondenser_jax.representation import ACTIVATIONS as NAMED
from tests.conftest import TEXTS
from tests.world import write_retriever

IDENTITY = torch.nn.Identity()
# How published models make their vectors.
KINDS = {
    "labse": ("cls", [{"out_features": 32}, True], {}),
    "distiluse": ("mean", [{"out_features": 16}], {}),
    "leaf": (
        "mean",
        [{"out_features": 48, "bias": False, "activation_function": IDENTITY}],
        {"similarity_fn_name": "dot"},
    ),
    "gemma": (
        "mean",
        [
            {"out_features": 64, "bias": False, "activation_function": IDENTITY},
            {"out_features": 32, "bias": False, "activation_function": IDENTITY},
            True,
        ],
        {},
    ),
    "cut": ("mean", [{"out_features": 24}], {"truncate_dim": 10}),
}


def test_activations_are_those_of_torch():
    x = torch.linspace(-4, 4, 99)
    assert tuple(ACTIVATIONS) == NAMED
    for name, activate in ACTIVATIONS.items():
        theirs = getattr(torch.nn, name)()(x).numpy()
        np.testing.assert_allclose(activate(x.numpy()), theirs, rtol=0, atol=1e-6, err_msg=name)


def test_what_is_cut_has_length_one_for_a_cosine_alone():
    vectors_NxD = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], np.float32)
    np.testing.assert_array_equal(cut(vectors_NxD, 2, "dot"), [[3, 4], [0, 0]])
    np.testing.assert_allclose(cut(vectors_NxD, 2, "cosine"), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(cut(vectors_NxD, 3, "cosine"), vectors_NxD)
    np.testing.assert_allclose(to_unit_length(vectors_NxD), vectors_NxD / [[13], [1]], rtol=1e-6)


@pytest.fixture(params=KINDS)
def folder(request, research_folders, tmp_path):
    pooling, dense, settings = KINDS[request.param]
    return write_retriever(research_folders["bert"], tmp_path / "model", pooling, dense, **settings)


def test_vectors_and_gradients_are_those_of_sentence_transformers(folder):
    """Of the contrastive loss of a batch of two pairs, for every tensor of the encoder."""
    config, params = load_folder(str(folder), n_head_layers=0, init_head_seed=0)
    kwargs = {"add_pooling_layer": False}
    model = SentenceTransformer(str(folder), model_kwargs=kwargs).eval()
    tokens = model.tokenizer(list(TEXTS), padding=True, truncation=True, return_tensors="np")
    ids = tokens["input_ids"].astype(np.int32)
    mask = tokens["attention_mask"].astype(bool)
    scale = config.representation.score_scale
    origins = jnp.array([[0, 0], [0, 1], [1, 2], [1, 3]])
    positives = torch.tensor([1, 0, 3, 2])

    def ours(params):
        vectors = Condenser(config).apply({"params": params}, ids, mask, method="encode")
        loss = jax.vmap(lambda x: corpus_contrastive_sum(x, origins, "d", scale), axis_name="d")(
            vectors[None]
        )
        return loss[0], vectors

    (loss, vectors), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(params)

    published = model.encode(list(TEXTS), convert_to_tensor=True)
    if config.representation.similarity == "cosine":
        published = torch.nn.functional.normalize(published)
    np.testing.assert_allclose(vectors, published, rtol=0, atol=1e-5)

    features = {name: torch.from_numpy(np.asarray(x)) for name, x in tokens.items()}
    theirs = model(features)["sentence_embedding"][:, : model.truncate_dim]
    scores = scale * model.similarity(theirs, theirs).fill_diagonal_(-torch.inf)
    their_loss = torch.nn.functional.cross_entropy(scores, positives, reduction="sum")
    their_loss.backward()
    assert float(loss) == pytest.approx(their_loss.item(), rel=1e-5)
    found = to_tensors(gradients, config)
    named = {f"bert.{name}": p for name, p in model[0].auto_model.named_parameters()}
    layers = [layer for layer in model if hasattr(layer, "linear")]
    for number, layer in enumerate(layers):
        named |= {f"dense.{number}.{name}": p for name, p in layer.named_parameters()}
    assert len(layers) == len(config.representation.dense)
    assert {name for name in found if not name.startswith("cls.")} == named.keys()
    for name, parameter in named.items():
        if name.endswith(".key.bias"):  # zero in exact arithmetic: softmax ignores a common shift
            continue
        gradient = parameter.grad.numpy()
        error = np.linalg.norm(found[name] - gradient) / np.linalg.norm(gradient)
        assert error <= 1e-4, f"{name}: relative error {error:.1e}"
