"""A training step of `adapt`, compared with the same step in sentence-transformers, on CPUs.

Each side trains the model on the same tokens, pairs of a sentence and the rest of its span. Theirs
is a plain loop without their trainer: each column padded to its longest text, as their collator
pads it; their MultipleNegativesRankingLoss, with negatives of both columns, of queries and of
documents, which is our loss; clipping and PyTorch's fused AdamW. Batches are prepared ahead. Both
have dropout, except where loss and gradient are compared: nothing is timed if they differ.

  python -m benchmarks.adapt --model=MODEL --data=DATA --json_out=benchmarks/results/adapt.json

The sides take turns, with as many threads as this process has cores; rates are of the median step.
"""

import argparse
import dataclasses
import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from benchmarks.results import report
from benchmarks.step import device_name
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.batches import Batch, BatchSpec, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pipelines.proposals import propose_pretraining, with_overrides
from cocondenser_jax.pretrain.devices import batch_gradient, mapped_step, replicate
from cocondenser_jax.pretrain.experiment import Experiment, resolve
from cocondenser_jax.pretrain.optimizer import AdamW
from cocondenser_jax.pretrain.step import LossSettings, StepSettings, initial_state, new_memory

SCALE = 20.0  # of cosines, in their loss
TOLERANCE = 1e-4  # of loss and gradient norm, relative

TrainStep = Callable[[Batch], None]


def main() -> None:
    """Compares the losses of both sides, and times their steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="of sentence-transformers")
    parser.add_argument("--data", required=True, help="what corpus --source reads")
    parser.add_argument("--pairs", type=int, default=32, help="per step, default: %(default)s")
    parser.add_argument("--steps", type=int, default=8, help="in a round, default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many as XLA takes
    report(_rows(arguments), arguments.json_out)


def _rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    n_pairs = arguments.pairs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        length = propose_pretraining(n_pairs, n_devices=1, on_cpu=True).data.length
        build_store(arguments.data, str(arguments.model), path, max_tokens=length)
        store = open_store(path)
        experiment = _experiment(store, n_pairs)
        n_batches = 1 + arguments.rounds * arguments.steps
        batches = comparable_batches(store, experiment.batches, n_batches)
    settings = experiment.step
    seed = settings.loss.seed
    folder_name = str(arguments.model)
    config, params = load_folder(folder_name, n_head_layers=0, skip_from=0, init_head_seed=seed)
    model = SentenceTransformer(folder_name, device="cpu")
    loss = require_same_loss(config, settings.loss, params, model, batches[0])

    ours, theirs = "pairs/s", "pairs/s, sentence-transformers"
    sides = {
        ours: flax_side(config, settings, params),
        theirs: torch_side(model, settings.optimizer),
    }
    first = {name: _seconds(step, batches[0]) for name, step in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(arguments.rounds):
        begin = 1 + turn * arguments.steps
        for name in [*sides] if turn % 2 else [*sides][::-1]:
            for batch in batches[begin : begin + arguments.steps]:
                seconds[name].append(_seconds(sides[name], batch))
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    yield {
        "model": arguments.model.name,
        "pairs": n_pairs,
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "loss": loss,
        **{name: n_pairs / median for name, median in medians.items()},
        "times theirs": medians[theirs] / medians[ours],
        "seconds to compile": first[ours] - medians[ours],
    }


def _experiment(store: TokenStore, n_pairs: int) -> Experiment:
    """Returns what `adapt` proposes for a CPU, with batches of so many pairs."""
    proposed = propose_pretraining(store.n_spans, n_devices=1, on_cpu=True)
    config = with_overrides(proposed, [f"--config.data.batch_size={n_pairs}"], n_devices=1)
    return resolve(config, store)


def comparable_batches(store: TokenStore, spec: BatchSpec, n: int) -> list[Batch]:
    """Returns batches in which no two pairs share a document or a text: only we tell them apart."""
    tried = (make_batch(store, spec, step) for step in range(10 * n))
    batches = [*itertools.islice(filter(_is_comparable, tried), n)]
    if len(batches) < n:
        raise SystemExit(
            f"{len(batches)} of {10 * n} batches have {spec.batch_size} documents and no text"
            f" twice; expected {n}: choose more data, or fewer --pairs"
        )
    return batches


def _is_comparable(batch: Batch) -> bool:
    documents_S, texts_S = batch.origins_Sx2.T
    has_other_documents = len(np.unique(documents_S)) == len(documents_S) // 2
    return has_other_documents and len(np.unique(texts_S)) == len(texts_S)


def require_same_loss(
    config: ModelConfig,
    settings: LossSettings,
    params: Any,
    model: SentenceTransformer,
    batch: Batch,
) -> float:
    """Returns the loss of a batch, without dropout.

    Raises:
      SystemExit: if that of the other side, or the norm of its gradient, is another.
    """
    still = dataclasses.replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    losses, gradient = batch_gradient(still, settings, params, batch)
    ours = {"losses": float(losses["loss"]), "gradients": float(optax.global_norm(gradient))}
    model.eval()
    loss = contrastive_loss(model, batch)
    loss.backward()
    # A norm without a limit: the gradient stays as it is.
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
    model.zero_grad()
    theirs = {"losses": loss.item(), "gradients": norm.item()}
    for what, value in ours.items():
        if not math.isclose(value, theirs[what], rel_tol=TOLERANCE):
            raise SystemExit(f"the {what} differ: {value} and {theirs[what]}")
    return ours["losses"]


def contrastive_loss(model: SentenceTransformer, batch: Batch) -> torch.Tensor:
    """Returns the mean of their loss with either column as the queries."""
    loss = MultipleNegativesRankingLoss(
        model, scale=SCALE, directions=("query_to_doc", "query_to_query")
    )
    vectors = [model(_column(batch, first))["sentence_embedding"] for first in (0, 1)]
    no_labels = torch.empty(0)
    either_way = [loss.compute_loss_from_embeddings(v, no_labels) for v in (vectors, vectors[::-1])]
    return torch.stack(either_way).mean()


def _column(batch: Batch, first: int) -> dict[str, torch.Tensor]:
    """Returns every other row, padded to the longest of them."""
    mask_BxL = batch.attention_mask_SxL[first::2]
    longest = mask_BxL.sum(axis=1).max()
    return {
        "input_ids": torch.from_numpy(batch.input_ids_SxL[first::2, :longest]).long(),
        "attention_mask": torch.from_numpy(mask_BxL[:, :longest]).long(),
    }


def flax_side(config: ModelConfig, settings: StepSettings, params: Any) -> TrainStep:
    """Returns our step, on one device."""
    devices = jax.local_devices()[:1]
    step = mapped_step(config, settings, devices)
    memory = new_memory(config, settings.loss)
    state = replicate(initial_state(params, settings.optimizer, memory), devices)

    def train_step(batch: Batch) -> None:
        nonlocal state
        state, _ = step(state, batch)
        jax.block_until_ready(state)

    return train_step


def torch_side(model: SentenceTransformer, settings: AdamW) -> TrainStep:
    """Returns the step of sentence-transformers and PyTorch, at the peak of our learning rate."""
    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.b1, settings.b2),
        eps=settings.eps,
        fused=True,
    )
    model.train()

    def train_step(batch: Batch) -> None:
        contrastive_loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return train_step


def _seconds(step: TrainStep, batch: Batch) -> float:
    start = time.perf_counter()
    step(batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
