"""Bag-of-words prediction, against PyTorch."""

from pathlib import Path

import jax
import pytest
import torch

from checks.reference import IGNORED, full_labels, mlm_sum, open_reference
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.batches import make_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.pretrain.devices import batch_gradient
from tests.pretrain.test_weak_decoder import assert_gradients, changed
from tests.world import batches_of, model_of, step_of

pytestmark = pytest.mark.usefixtures("one_length")


def bags(batch, n_prompt):
    """The distinct tokens of each span's text, as they were before some were masked."""
    found = []
    for row, ids in enumerate(batch.input_ids_SxL):
        ids = ids.copy()
        for slot, weight in enumerate(batch.weights_SxM[row]):
            if weight:
                ids[batch.masked_positions_SxM[row, slot]] = batch.labels_SxM[row, slot]
        n_tokens = batch.attention_mask_SxL[row].sum()
        found.append(sorted(set(ids[max(n_prompt, 1) : n_tokens - 1].tolist())))
    return found


@pytest.mark.parametrize("n_prompt", [0, 3])
@pytest.mark.parametrize("mlm_reduction", ["token_mean", "span_sum"])
def test_bag_of_words_prediction_equals_pytorch(config, tmp_path, mlm_reduction, n_prompt):
    config = changed(
        config,
        train__objective="bow",
        train__chunk_size=4,
        train__mlm_weight=0.5,
        train__mlm_reduction=mlm_reduction,
    )
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    params = jax.tree.map(lambda x: 4 * x if x.ndim == 2 else x, init_params(model_config, 0))
    batch = make_batch(store, batches_of(config), 0)
    batch.prompt_lengths_S[:] = n_prompt  # which is not predicted, though [CLS] reads it
    losses, grads = batch_gradient(model_config, step_of(config, 1).loss, params, batch)

    export_folder(params, model_config, store.tokenizer_folder, tmp_path / "model", {})
    reference = open_reference(tmp_path / "model")
    ids, mask = torch.from_numpy(batch.input_ids_SxL), torch.from_numpy(batch.attention_mask_SxL)
    logits_BxLxV = reference(ids, mask).late_logits_BxLxV
    log_softmax_BxV = logits_BxLxV[:, 0].log_softmax(dim=1)
    of_spans = [-log_softmax_BxV[i, bag].mean() for i, bag in enumerate(bags(batch, n_prompt))]
    bow = sum(of_spans) / len(of_spans)
    labels = full_labels(batch)
    mlm = mlm_sum(logits_BxLxV, labels)
    n_masked = (labels != IGNORED).sum()
    loss = 0.5 * (mlm / (n_masked if mlm_reduction == "token_mean" else len(ids)) + bow)
    loss.backward()

    assert float(losses["late_mlm_loss"]) == pytest.approx((mlm / n_masked).item(), rel=1e-5)
    assert float(losses["bag_of_words_loss"]) == pytest.approx(bow.item(), rel=1e-5)
    assert float(losses["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    assert_gradients(grads, reference.gradients(), model_config)
