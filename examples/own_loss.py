r"""Trains with a contrastive loss of your own, through the gradient cache.

python examples/own_loss.py --store=runs/quickstart/store

The loss sees the vectors of the whole batch; memory contains the activations of one chunk.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import cocondenser_jax as cj


def info_nce(vectors_SxD: jax.Array, temperature: float = 0.05) -> tuple[jax.Array, tuple]:
    """Returns the cross-entropy of cosines: spans 2i and 2i + 1 come from one document.

    It keeps no memory for the next batch.
    """
    unit_SxD = vectors_SxD / jnp.linalg.norm(vectors_SxD, axis=1, keepdims=True)
    cosines_SxS = unit_SxD @ unit_SxD.T
    n_spans = len(vectors_SxD)
    logits_SxS = jnp.where(jnp.eye(n_spans, dtype=bool), -jnp.inf, cosines_SxS / temperature)
    positive_S = jnp.arange(n_spans) ^ 1
    return optax.softmax_cross_entropy_with_integer_labels(logits_SxS, positive_S).mean(), ()


def train(store: cj.TokenStore, *, n_steps: int, n_documents: int, chunk_size: int) -> list[float]:
    """Trains a small encoder from scratch; returns the loss of every step."""
    config = cj.ModelConfig(
        vocab_size=store.vocab_size, pad_token_id=store.pad_id, hidden_size=64,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        n_head_layers=1, skip_from=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model, optimizer = cj.Condenser(config), optax.adamw(1e-3)
    params = cj.init_params(config, seed=0)
    state = optimizer.init(params)

    def encode(params: optax.Params, chunk: cj.Batch) -> jax.Array:
        inputs = chunk.input_ids_SxL, chunk.attention_mask_SxL
        return model.apply({"params": params}, *inputs, method="encode")

    def forward(params: optax.Params, chunk: cj.Batch) -> tuple[jax.Array, jax.Array, dict]:
        return encode(params, chunk), jnp.zeros(()), {}  # a chunk has no loss of its own

    @jax.jit
    def step(params: optax.Params, state: optax.OptState, batch: cj.Batch) -> tuple:
        chunks = jax.tree.map(lambda x: x.reshape(-1, chunk_size, *x.shape[1:]), batch)
        loss, _, _, grads = cj.loss_gradient(
            params, chunks, forward=forward, encode=encode, contrast=info_nce
        )
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    spec = cj.BatchSpec(seed=0, batch_size=n_documents, length=store.max_length)
    for i in range(n_steps):
        params, state, loss = step(params, state, cj.make_batch(store, spec, i))
        losses.append(float(loss))
        print(f"step {i + 1:4d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    train(cj.open_store(arguments.store), n_steps=arguments.steps, n_documents=64, chunk_size=16)
