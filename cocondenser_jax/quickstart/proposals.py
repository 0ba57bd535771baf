"""The settings that `adapt` proposes for a corpus, a model and a machine, and what each rests on.

Measured: all-MiniLM-L6-v2 on 14,296 paragraphs of Wikipedia that have two spans of 64 tokens, in
450 steps of 32 documents on two CPU cores. The papers': coCondenser's (arXiv 2108.05540).
"""

from ml_collections import ConfigDict

from cocondenser_jax.configs import adapt, adapt_finetune
from cocondenser_jax.model.config import ModelConfig

MEASURED_STEPS = 450


def propose_pretraining(
    network: ModelConfig, n_documents: int, n_devices: int, on_cpu: bool
) -> ConfigDict:
    """Returns the settings of pre-training but for store and warm start.

    Args:
      network: the model's, with the Condenser head that it has, if it has one.
      n_documents: of two spans.
      n_devices: that train.
      on_cpu: whether these are CPUs.
    """
    config = adapt.get_config().unlock()
    # With a device's memory free, the papers' 2,048 on eight of them, as long as an epoch has 100
    # steps.
    n = config.data.batch_size
    if not on_cpu:
        n = min(256 * n_devices, max(n, n_documents // 100))
        config.train.dtype = "bfloat16"
    n = min(n, n_documents)
    config.data.batch_size = max(n // n_devices, 1) * n_devices
    if 2 * config.data.batch_size > 64 * n_devices:  # 64 spans at once, as the papers
        config.data.batch_size -= config.data.batch_size % (32 * n_devices)
        config.train.chunk_size = 64
    # As many as make the measured number of steps; the papers' 8 at most.
    epochs = MEASURED_STEPS * config.data.batch_size / max(n_documents, 1)
    config.train.epochs = min(max(epochs, 1.0), 8.0)
    if config.data.batch_size > 256:
        config.optimizer.learning_rate = 1e-4  # the papers' at 2,048
    config.model.skip_from = network.skip_from
    config.model.n_head_layers = network.n_head_layers or config.model.n_head_layers
    return config.lock()


def propose_finetuning(n_queries: int, max_length: int) -> ConfigDict:
    """Returns the settings of fine-tuning but for model and data, where there are labels.

    Args:
      n_queries: to train on.
      max_length: of the model's inputs, in tokens.
    """
    config = adapt_finetune.get_config().unlock()
    config.batch_size = max(min(config.batch_size, n_queries), 2)
    # Measured: 3 epochs of 809 queries, 1 of 2,000.
    config.epochs = min(max(2_500 // max(n_queries, 1), 1), config.epochs)
    config.query_length = min(config.query_length, max_length)
    config.passage_length = min(config.passage_length, max_length)
    return config.lock()
