"""A contrastive loss that remembers: a queue of the vectors of earlier batches.

As in MoCo (He et al., arXiv 1911.05722), but of the same network, whose vectors grow old in it.
"""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cocondenser_jax.configs.default import SETTINGS
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.pretrain import loop
from cocondenser_jax.pretrain.checkpoint import load_run, restore_latest
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.objectives import OBJECTIVES, Objective
from cocondenser_jax.pretrain.step import state_shapes
from cocondenser_jax.settings import check
from tests.world import batches_of, encode_in_flax, model_of, read_metrics, step_of

pytestmark = pytest.mark.usefixtures("one_length", "shared_steps")

N_QUEUE = 48  # the vectors of a batch and a half


def empty_queue(size):
    return {"vectors": jnp.zeros((N_QUEUE, size)), "origins": jnp.full((N_QUEUE, 2), -1)}


def queue_sum(vectors_SxD, origins_Sx2, memory, axis_name, scale):
    """Sums over rows a −log softmax of a's pair, among it and the queue's other documents."""
    positive_S = scale * jnp.sum(vectors_SxD * vectors_SxD[jnp.arange(len(vectors_SxD)) ^ 1], 1)
    is_other_SxQ = jnp.all(origins_Sx2[:, None] != memory["origins"][None], axis=2)
    logits_SxQ = jnp.where(is_other_SxQ, scale * vectors_SxD @ memory["vectors"].T, -jnp.inf)
    logits_SxQ = jnp.concatenate([positive_S[:, None], logits_SxQ], axis=1)
    total = jnp.sum(jax.nn.logsumexp(logits_SxQ, axis=1) - positive_S)
    new = {"vectors": vectors_SxD, "origins": origins_Sx2}
    of_all = {name: jax.lax.all_gather(x, axis_name, tiled=True) for name, x in new.items()}
    return total, {name: jnp.concatenate([of_all[name], memory[name]])[:N_QUEUE] for name in memory}


@pytest.fixture
def config(config, monkeypatch):
    """An experiment with such a loss, added where any objective is added."""
    queue = Objective(contrast=queue_sum, n_contrasted=2, new_memory=empty_queue)
    monkeypatch.setitem(OBJECTIVES, "queue", queue)
    objective = SETTINGS["train.objective"]
    allowed = (*objective.allowed, "queue")
    monkeypatch.setitem(SETTINGS, "train.objective", objective._replace(allowed=allowed))
    config = config.copy_and_resolve_references().unlock()
    config.train.objective = "queue"
    config.checkpoint.every = 1
    config.checkpoint.keep = 9
    check(config)
    return config


def test_a_step_compares_with_the_vectors_of_the_batches_before(config, tmp_path, monkeypatch):
    config.model.sizes = sizes = (16, 4)
    train(config, tmp_path / "whole")
    logged = read_metrics(tmp_path / "whole")
    store = open_store(config.data.store)
    model_config = model_of(config, store)
    states = [
        restore_step(config, tmp_path / "whole" / "checkpoints" / str(i)) for i in range(1, 7)
    ]
    for step, before, after in zip(range(1, 6), states, states[1:], strict=False):
        batch = make_batch(store, batches_of(config), step)
        inputs = batch.input_ids_SxL, batch.attention_mask_SxL
        whole = np.asarray(encode_in_flax(model_config, before.params, *inputs))
        expected = 0.0
        for size, memory, now in zip(sizes, before.memory, after.memory, strict=True):
            h = whole[:, :size]
            expected += expected_loss(h, batch.origins_Sx2, memory)
            np.testing.assert_allclose(now["vectors"][:32], h, atol=1e-5)
            np.testing.assert_array_equal(now["origins"][:32], batch.origins_Sx2)
            for name, array in now.items():
                np.testing.assert_array_equal(array[32:], memory[name][: N_QUEUE - 32])
        assert logged[step]["contrastive_loss"] == pytest.approx(expected, rel=1e-5)

    # It resumes to the bit.
    read = loop.read_batches

    def breaks_down(*args, **kwargs):
        for step, batch in enumerate(read(*args, **kwargs)):
            if step == 3:
                raise RuntimeError("power failure")
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(loop, "read_batches", breaks_down)
        with pytest.raises(RuntimeError, match="power failure"):
            train(config, tmp_path / "broken")
    assert load_run(tmp_path / "broken")[2]["step"] < 6
    train(config, tmp_path / "broken")
    for name in ("params.safetensors", "state.safetensors"):
        left, right = (tmp_path / run / "checkpoints" / "6" / name for run in ("whole", "broken"))
        assert left.read_bytes() == right.read_bytes()


def restore_step(config, checkpoint):
    """Reads a state out of a folder that holds one checkpoint."""
    like = state_shapes(model_of(config, open_store(config.data.store)), step_of(config, 6))
    alone = checkpoint.parents[1] / "alone" / checkpoint.name / "checkpoints"
    shutil.copytree(checkpoint, alone / checkpoint.name)
    return restore_latest(alone.parent, like)


def expected_loss(h_SxD, origins_Sx2, memory):
    """The mean loss of the rows, in float64."""
    losses = []
    for row, origin in enumerate(origins_Sx2):
        positive = h_SxD[row].astype(np.float64) @ h_SxD[row ^ 1]
        is_other = (memory["origins"] != origin).all(axis=1)
        negatives = memory["vectors"][is_other].astype(np.float64) @ h_SxD[row]
        losses.append(np.log(np.exp([positive, *negatives]).sum()) - positive)
    return np.mean(losses)
