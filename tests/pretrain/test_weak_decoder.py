"""The weak decoder of RetroMAE, against PyTorch."""

from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from checks.reference import IGNORED, full_labels, mlm_sum, open_reference
from cocondenser_jax.convert.names import to_tensors
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain.devices import batch_gradient
from cocondenser_jax.pretrain.step import check_batch
from tests.lines import whole
from tests.world import batches_of, model_of, step_of

pytestmark = pytest.mark.usefixtures("one_length")


def changed(config, **settings):
    config = config.copy_and_resolve_references().unlock()
    config.train.objective = "retromae"
    for key, value in settings.items():
        section, name = key.split("__")
        config[section][name] = value
    return config.lock()


def assert_gradients(found, expected, model_config):
    found = to_tensors(found, model_config)
    assert found.keys() == expected.keys()
    whole = np.linalg.norm([np.linalg.norm(gradient) for gradient in expected.values()])
    for name, gradient in expected.items():
        assert np.linalg.norm(found[name] - gradient) <= 1e-5 * whole, name


@pytest.mark.effect("pretrain data.mask_probability", "pretrain data.decoder_mask_probability")
@pytest.mark.parametrize("mlm_reduction", ["token_mean", "span_sum"])
@pytest.mark.parametrize("chunk_size", [0, 4])
def test_the_weak_decoder_equals_pytorch(config, tmp_path, mlm_reduction, chunk_size):
    config = changed(
        config,
        train__chunk_size=chunk_size,
        train__mlm_reduction=mlm_reduction,
        data__mask_probability=0.3,
        data__decoder_mask_probability=0.6,
    )
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    params = jax.tree.map(lambda x: 4 * x if x.ndim == 2 else x, init_params(model_config, 0))
    batch = make_batch(store, batches_of(config), 0)
    losses, grads = batch_gradient(model_config, step_of(config, 1).loss, params, batch)

    export_folder(params, model_config, store.tokenizer_folder, tmp_path / "model", {})
    reference = open_reference(tmp_path / "model")
    ids, mask = torch.from_numpy(batch.input_ids_SxL), torch.from_numpy(batch.attention_mask_SxL)
    labels = full_labels(batch)
    output = reference(ids[::2], mask[::2], decoder_ids_BxL=ids[1::2])
    late = mlm_sum(output.late_logits_BxLxV, labels[::2])
    head = mlm_sum(output.head_logits_BxLxV, labels[1::2])
    late_mean = late / (labels[::2] != IGNORED).sum()
    head_mean = head / (labels[1::2] != IGNORED).sum()
    loss = late_mean + head_mean if mlm_reduction == "token_mean" else (late + head) / 16
    loss.backward()

    assert float(losses["late_mlm_loss"]) == pytest.approx(late_mean.item(), rel=1e-5)
    assert float(losses["head_mlm_loss"]) == pytest.approx(head_mean.item(), rel=1e-5)
    assert float(losses["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert_gradients(grads, reference.gradients(), model_config)


def test_two_copies_of_a_span_share_a_chunk(config):
    spec = batches_of(changed(config, data__batch_size=12))
    check_batch(spec, 6, max_length=16, n_devices=4, kept_chunks=0)
    with pytest.raises(
        UserError,
        match=whole("config.train.chunk_size 3 is odd, but each span has two rows (retromae)"),
    ):
        check_batch(spec, 3, max_length=16, n_devices=4, kept_chunks=0)
