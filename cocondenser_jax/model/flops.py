"""Floating-point operations of a forward pass, counted from the shapes: two per multiply-add.

As usual, only matrix products are counted, and only for rows that are computed. Training costs
three times the forward pass: one for the pass and two for its gradient.
"""

from cocondenser_jax.model.config import ModelConfig


def encode_flops(config: ModelConfig, length: int) -> int:
    """Returns the operations for encoding one span of `length` tokens, padding included."""
    return _backbone(config, length, rows=1) + _dense(config)


def forward_flops(config: ModelConfig, length: int, n_masked: int) -> int:
    """Returns the operations of the whole Condenser for one span with `n_masked` mask slots."""
    predictions = n_masked * prediction_flops(config)
    rows = 1
    flops = 0
    if config.late_mlm:
        rows += n_masked
        flops += predictions
    if config.n_head_layers:
        flops += (config.n_head_layers - 1) * _layer(config, length, length)
        flops += _layer(config, length, n_masked)
        flops += predictions
    return flops + _backbone(config, length, rows) + _dense(config)


def prediction_flops(config: ModelConfig) -> int:
    """Returns the operations of the MLM projection for one row."""
    return 2 * config.hidden_size * (config.hidden_size + config.vocab_size)


def _dense(config: ModelConfig) -> int:
    """The layers after the pooling."""
    layers = config.representation.dense
    return sum(2 * layer.in_features * layer.out_features for layer in layers)


def _backbone(config: ModelConfig, length: int, rows: int) -> int:
    is_mean = config.representation.pooling == "mean"
    if is_mean or config.skip_from == config.num_hidden_layers:
        rows = length  # the mean, or the head, reads all of the last layer
    last = config.num_hidden_layers - 1
    full = sum(_layer(config, length, length, index) for index in range(last))
    return full + _layer(config, length, rows, last)


def _layer(config: ModelConfig, length: int, rows: int, index: int | None = None) -> int:
    """One layer whose output is computed at `rows` of `length` positions."""
    keys = length
    near = 3 * (config.local_attention // 2)  # see `attention.attend_in_windows`
    if config.attends_locally(index) and rows == length > near > 0:
        keys = near
    size = config.hidden_size
    inner = config.intermediate_size
    keys_and_values = 2 * length * 2 * size * size
    queries_and_output = 2 * rows * 2 * size * size
    attention = 2 * rows * keys * 2 * size
    n_matrices = 3 if config.backbone.gated else 2
    feed_forward = 2 * rows * n_matrices * size * inner
    return keys_and_values + queries_and_output + attention + feed_forward
