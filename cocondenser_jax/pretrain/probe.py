"""Probes: measurements of the model during training.

The built-in probe measures whether a span is closer to the other span of its held-out document than
to all other spans, how well held-out tokens are predicted, and whether the CLS vectors still
differ. Callers can add others, such as how well the vectors search a collection without
fine-tuning. docs/probe.md says how to read them.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cocondenser_jax.corpus.batches import Batch, BatchSpec, held_out_batch, with_specials
from cocondenser_jax.corpus.examples import EXAMPLES
from cocondenser_jax.corpus.order import held_out_kind
from cocondenser_jax.corpus.prompts import prompt_lengths
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import N_AROUND
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain import hosts
from cocondenser_jax.pretrain.devices import Forward, mapped_forward
from cocondenser_jax.pretrain.experiment import Experiment
from cocondenser_jax.representation import join_title

logger = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """The model after a step."""

    params: Any
    # Maps queries, and passages as (title, text), to `queries_QxD` and `passages_PxD`. Texts are
    # read like those of a batch: with the same lengths and prompts.
    encode: Callable[[Sequence[str], Sequence[tuple[str, str]]], tuple[np.ndarray, np.ndarray]]


class Probe(NamedTuple):
    """A measurement of the model during training; every host has the same probes."""

    measure: Callable[[Snapshot], Mapping[str, float]]  # values by name, the same on every host
    every: int  # steps between measurements; there is one after the last step, too
    # Checksums, by name, of the data that it reads; a resumed run must have the same.
    record: Mapping[str, str] = MappingProxyType({})


N_ROWS = 64  # encoded at a time by a device
# Mean cosine. In configs/quickstart.py:condenser without `late_mlm` the vectors collapse at 1e-3:
# 0.9996 at step 350, effective rank 1.4 of 128; with it, 0.82 at step 125, effective rank 7.8.
# Those of a new model are as close (0.9998, 1.9), so nothing is said during the warm-up.
COLLAPSE_COSINE = 0.99


def open_probes(
    experiment: Experiment, store: TokenStore, model_config: ModelConfig, probes: Sequence[Probe]
) -> Callable[[int, Any], dict[str, float]]:
    """Returns a function of a step and the parameters after it to what is measured then, by name.

    It measures the held-out documents and what `probes` are, each when it is due. Every host calls
    it, and gets the same values. It warns when the vectors collapse into one.
    """
    n_steps = experiment.n_steps
    forward = mapped_forward(model_config, experiment.step.loss.dtype, N_ROWS)
    probes = [*_held_out_probes(experiment, store, forward), *probes]
    n_warmup = experiment.step.optimizer.warmup_ratio * n_steps
    is_collapsed = False

    @functools.lru_cache(maxsize=4)  # otherwise each probe would tokenize its texts again
    def read(queries: tuple[str, ...], passages: tuple[str, ...]) -> Batch:
        return _batch_of((queries, passages), experiment.batches, store)

    def encode(
        params: Any, queries: Sequence[str], passages: Sequence[tuple[str, str]]
    ) -> tuple[np.ndarray, np.ndarray]:
        separator = experiment.title_separator
        texts = tuple(join_title(title, text, separator) for title, text in passages)
        vectors_SxD, _ = forward(params, read(tuple(queries), texts))
        return vectors_SxD[: len(queries)], vectors_SxD[len(queries) :]

    def measure(step: int, params: Any) -> dict[str, float]:
        nonlocal is_collapsed
        snapshot = Snapshot(params, functools.partial(encode, params))
        values: dict[str, float] = {}
        for probe in probes:
            if step % probe.every == 0 or step == n_steps:
                values |= probe.measure(snapshot)
        if "mean_cosine" in values:
            was_collapsed = is_collapsed
            is_collapsed = step > n_warmup and values["mean_cosine"] > COLLAPSE_COSINE
            if is_collapsed and not was_collapsed and hosts.is_first():
                logger.warning(
                    "step %d: CLS vectors have collapsed: mean cosine %.4f, effective rank %.1f",
                    step,
                    values["mean_cosine"],
                    values["effective_rank"],
                )
        return {f"probe/{name}": float(value) for name, value in values.items()}

    return measure


def _held_out_probes(experiment: Experiment, store: TokenStore, forward: Forward) -> list[Probe]:
    """Returns the probe of the held-out documents, if there are any."""
    spec = experiment.batches
    if not experiment.probe_every:
        return []
    whole = held_out_batch(store, spec._replace(masked=False))
    if len(whole.input_ids_SxL) < 2:
        return []
    is_pair = EXAMPLES[held_out_kind(store, spec)].n_rows == 2
    masked = held_out_batch(store, spec) if spec.masked else None

    def measure(snapshot: Snapshot) -> dict[str, float]:
        return _measure_held_out(forward, whole, masked, is_pair, snapshot.params)

    return [Probe(measure, experiment.probe_every)]


def _measure_held_out(
    forward: Forward, whole: Batch, masked: Batch | None, is_pair: bool, params: Any
) -> dict[str, float]:
    """Measures the vectors of held-out spans, and the prediction of their masked tokens."""
    n_spans = len(whole.input_ids_SxL)
    batch = whole
    if masked:
        batch = Batch(*map(np.concatenate, zip(whole, masked, strict=True)))
    vectors_SxD, sums = forward(params, batch)
    values = measure_vectors(vectors_SxD[:n_spans], is_pair)
    if masked:  # the loss of the Condenser head, if there is one
        total = sums["head_mlm"] if "head_mlm" in sums else sums.get("late_mlm", 0.0)
        values["mlm_loss"] = total / max(masked.weights_SxM.sum(), 1.0)
    return values


def measure_vectors(vectors_SxD: np.ndarray, is_pair: bool) -> dict[str, float]:
    """Measures the vectors of held-out spans; in pairs, rows 2i and 2i + 1 are positives.

    The rank of a positive is that of its inner product among those of all other spans; ties count
    against it. `alignment` (α = 2) and `uniformity` (t = 2) are equations 1 and 2 of Wang & Isola,
    arXiv 2005.10242. `effective_rank` is exp of the entropy of the normalized singular values (Roy
    & Vetterli, "The effective rank", EUSIPCO 2007).
    """
    vectors_SxD = vectors_SxD.astype(np.float64)
    unit_SxD = vectors_SxD / np.maximum(np.linalg.norm(vectors_SxD, axis=1), 1e-12)[:, None]
    cosines_SxS = unit_SxD @ unit_SxD.T
    cosines = cosines_SxS[np.triu_indices(len(unit_SxD), 1)]
    singular = np.linalg.svd(vectors_SxD, compute_uv=False)
    normalized = singular[singular > 0] / singular.sum()
    values = {
        "uniformity": np.log(np.mean(np.exp(4 * cosines - 4))),
        "effective_rank": np.exp(-np.sum(normalized * np.log(normalized))),
        "mean_cosine": np.mean(cosines),
    }
    if is_pair:
        rows_S = np.arange(len(unit_SxD))
        scores_SxS = vectors_SxD @ vectors_SxD.T
        positive_S = scores_SxS[rows_S, rows_S ^ 1]
        np.fill_diagonal(scores_SxS, -np.inf)
        ranks_S = np.sum(scores_SxS >= positive_S[:, None], axis=1)
        values["positive_mrr"] = np.mean(1 / ranks_S)
        values["positive_recall_at_1"] = np.mean(ranks_S <= 1)
        values["positive_recall_at_10"] = np.mean(ranks_S <= 10)
        values["alignment"] = np.mean(2 - 2 * cosines_SxS[rows_S, rows_S ^ 1])
    return values


def _batch_of(
    texts: tuple[Sequence[str], Sequence[str]], spec: BatchSpec, store: TokenStore
) -> Batch:
    """Tokenizes queries and passages like the texts of a batch, with its prompts and limits."""
    ids: list[list[int]] = []
    prompts: list[str] = []
    for (prompt, length), of_kind in zip(spec.pair_specs, texts, strict=True):
        read = store.tokenizer.backend.encode_batch_fast(
            [prompt + text for text in of_kind], add_special_tokens=False
        )
        ids += [encoding.ids[: length - N_AROUND] for encoding in read]
        prompts += [prompt] * len(of_kind)
    n_tokens_S = np.array([len(row) for row in ids])
    inside_SxC = np.arange(n_tokens_S.max()) < n_tokens_S[:, None]
    ids_SxC = np.zeros(inside_SxC.shape, np.int32)
    ids_SxC[inside_SxC] = np.concatenate(ids)
    ids_SxL = with_specials(ids_SxC, n_tokens_S, store)
    mask_SxL = np.arange(ids_SxL.shape[1]) < n_tokens_S[:, None] + N_AROUND
    batch = Batch.of_texts(ids_SxL, mask_SxL)
    return batch._replace(prompt_lengths_S=prompt_lengths(prompts, store.tokenizer))
