"""What a model folder's vectors are, in sentence-transformers' words and in ours."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cocondenser_jax.convert.from_torch import load_folder, read_shape
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.representation import SPELLINGS, Representation
from cocondenser_jax.storage.files import write_json
from cocondenser_jax.storage.model_folder import read_representation


@pytest.fixture
def bert_folder(research_folders, tmp_path):
    return Path(shutil.copytree(research_folders["bert"], tmp_path / "model"))


@pytest.mark.parametrize("representation", SPELLINGS.values(), ids=SPELLINGS)
def test_a_representation_goes_to_sentence_transformers_and_back(
    bert_folder, representation, monkeypatch
):
    config, params = load_folder(str(bert_folder))
    config = dataclasses.replace(config, representation=representation)
    out = bert_folder.parent / "out"
    export_folder(params, config, bert_folder, out, {})
    assert read_representation(out) == representation._replace(max_length=24)  # its positions
    assert read_shape(out).representation == representation
    model = SentenceTransformer(str(out))
    assert model.similarity_fn_name == ("cosine" if representation.is_cosine else "dot")
    saved = bert_folder.parent / "saved"
    model.save_pretrained(str(saved))  # the names of today's release
    assert read_shape(saved).representation == representation
    assert (
        load_folder(str(saved), n_head_layers=0, init_head_seed=0)[0].representation
        == representation
    )
    texts = ["the words of a text", "another"]
    tokens = model.tokenizer(texts, padding=True, return_tensors="np")
    ours = Condenser(config).apply(
        {"params": params}, tokens["input_ids"], tokens["attention_mask"], method="encode"
    )
    np.testing.assert_allclose(model.encode(texts), ours, rtol=0, atol=1e-5)

    # The card names the model by its folder.
    monkeypatch.chdir(out.parent)
    programs = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    found = [{}, {}]
    for program, names in zip(programs, found, strict=True):
        exec(program, names)
    vectors, with_transformers = (names["vectors"] for names in found)
    np.testing.assert_allclose(vectors, with_transformers.detach(), rtol=0, atol=1e-5)


def test_a_folder_without_modules_has_the_vectors_of_cls(bert_folder):
    (bert_folder / "modules.json").unlink(missing_ok=True)
    assert read_representation(bert_folder) == Representation()


@pytest.mark.parametrize(
    ("kinds", "pooling", "said"),
    [
        (
            ["Transformer", "Pooling", "Dense"],
            {"pooling_mode": "cls"},
            "has Dense layers after its",
        ),
        (
            ["Transformer", "Pooling", "LSTM"],
            {"pooling_mode": "cls"},
            "Transformer, Pooling, LSTM;",
        ),
        (
            ["Router"],
            {},
            "makes its vectors by Router; expected Transformer, Pooling, perhaps",
        ),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, "pools by max; expected cls or mean"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            "pools by max+mean",
        ),
    ],
)
def test_other_vectors_are_refused_unless_the_settings_name_one(bert_folder, kinds, pooling, said):
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": str(number)}
        for number, kind in enumerate(kinds)
    ]
    write_json(bert_folder / "modules.json", modules)
    write_json(bert_folder / "1" / "config.json", pooling)
    write_json(bert_folder / "2" / "config.json", {"in_features": 32, "out_features": 8})
    hint = re.escape("(or --config.model.representation=cls)")
    with pytest.raises(UserError, match=f"{re.escape(said)}.*{hint}"):
        load_folder(str(bert_folder))
    mean = SPELLINGS["mean"]
    assert load_folder(str(bert_folder), representation=mean)[0].representation == mean
