"""Each backbone from text to a model, through the command line: what the table in docs says."""

import jax
import numpy as np
import pytest

from checks.verify import main as verify
from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.pretrain.checkpoint import load_run
from tests.world import write_records

WORDS = "The CLS vector has to carry meaning of whole passage Early layers know words text".split()
SIZES = (
    "model.hidden_size=32 model.num_hidden_layers=3 model.num_attention_heads=4 model.skip_from=1"
    " model.intermediate_size=48 model.max_position_embeddings=26 model.n_head_layers=1"
    " data.length=24 data.batch_size=8 train.chunk_size=1 train.dtype=float32 train.steps=1"
    " probe.every=0"
).split()


@pytest.fixture
def store(research_folder, tmp_path):
    """Twelve documents, with the tokenizer of a published model of this type."""
    rng = np.random.default_rng(0)
    texts = (". ".join(" ".join(rng.choice(WORDS, 8)) for _ in range(9)) + "." for _ in range(12))
    source, out = tmp_path / "text.jsonl", tmp_path / "store"
    write_records(source, ({"text": text} for text in texts))
    command = ["corpus", f"--source={source}", f"--tokenizer={research_folder}", f"--out={out}"]
    assert main([*command, "--max_tokens=24"]) == 0
    return out


def test_from_text_to_a_model_and_on_from_it(model_type, store, tmp_path):
    pretrain = ["pretrain", "--config=configs/default.py", f"--config.data.store={store}"]
    pretrain += [f"--config.{setting}" for setting in SIZES]
    scratch, model, again = (tmp_path / x for x in ("scratch", "model", "again"))
    assert main([*pretrain, f"--workdir={scratch}", f"--config.model.model_type={model_type}"]) == 0
    assert verify([f"--checkpoint={scratch}", "--documents=4"]) == 0
    assert main(["convert", f"--checkpoint={scratch}", f"--out={model}"]) == 0
    pretrain += [f"--config.warm_start={model}", "--config.optimizer.learning_rate=0"]
    assert main([*pretrain, f"--workdir={again}"]) == 0

    config, params, _ = load_run(scratch)
    assert config.model_type == model_type
    for found, others in (load_folder(str(model)), load_run(again)[:2]):
        assert found == config
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
            np.testing.assert_array_equal(a, b)
