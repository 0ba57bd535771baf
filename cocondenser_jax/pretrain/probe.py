"""The probe: evaluates the model on held-out text during training.

Without labels: is a span nearer to the other span of its held-out document than to all others, how
well are held-out tokens predicted, do the CLS vectors still differ? With labels: how well do they
search a collection, without any fine-tuning? docs/probe.md says how to read it.
"""

import functools
import hashlib
import heapq
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cocondenser_jax.corpus.batches import (
    Batch,
    BatchSpec,
    held_out_batch,
    with_specials,
)
from cocondenser_jax.corpus.prompts import prompt_lengths
from cocondenser_jax.corpus.store import TokenStore
from cocondenser_jax.corpus.tokenizer import N_AROUND, load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain import hosts
from cocondenser_jax.pretrain.devices import Forward, mapped_forward
from cocondenser_jax.pretrain.experiment import Experiment, ProbeSettings
from cocondenser_jax.retriever.data import folder as collection
from cocondenser_jax.retriever.data.own_passages import find_own_passages
from cocondenser_jax.retriever.data.ranking import evaluate_run

logger = logging.getLogger(__name__)

# From a step and the parameters after it to values by name, none where no probe is due.
Probe = Callable[[int, Any], dict[str, float]]

N_ROWS = 64  # that a device encodes at a time
# Mean cosine. In configs/quickstart.py:condenser without `late_mlm` the vectors collapse: 0.9996 at
# step 350, effective rank 1.4 of 128; as shipped, 0.82 at step 125, effective rank 7.8. Those of a
# new model are as close (0.9998, 1.9), so nothing is said during the warm-up.
COLLAPSE_COSINE = 0.99
# The metrics of a search, and the names under which they are logged.
SEARCH_METRICS = {"nDCG@10": "ndcg_at_10", "Recall@100": "recall_at_100"}
_DEPTH = 100  # passages per query


def open_probe(experiment: Experiment, store: TokenStore, model_config: ModelConfig) -> Probe:
    """Returns the probe of an experiment: every host calls it, and gets the same values.

    It warns when the vectors collapse into one.

    Raises:
      UserError: if `probe.data` cannot be read.
    """
    every = experiment.probe.every
    n_steps = experiment.n_steps
    if not every and experiment.probe.data:
        raise UserError(
            f"config.probe.data is {experiment.probe.data!r}, but config.probe.every is 0: expected"
            " a number of steps between two probes"
        )
    if not every:
        return lambda step, params: {}
    forward = mapped_forward(model_config, experiment.step.loss.dtype, N_ROWS)
    measures: list[Callable[[Any], dict[str, float]]] = []
    is_pair = experiment.batches.kind.is_held_out or len(store.documents_of_pairs) > 0
    whole = held_out_batch(store, experiment.batches._replace(masked=False))
    if len(whole.input_ids_SxL) > 1:
        masked = held_out_batch(store, experiment.batches) if experiment.batches.masked else None
        measures.append(functools.partial(_measure_held_out, forward, whole, masked, is_pair))
    if experiment.probe.data:
        measures.append(_open_search(experiment.probe, experiment.batches, store, forward))
    n_warmup = experiment.step.optimizer.warmup_ratio * n_steps
    is_collapsed = False

    def probe(step: int, params: Any) -> dict[str, float]:
        nonlocal is_collapsed
        values: dict[str, float] = {}
        if step % every and step != n_steps:
            return values
        for measure in measures:
            values |= measure(params)
        was_collapsed = is_collapsed
        is_collapsed = step > n_warmup and values.get("mean_cosine", 0.0) > COLLAPSE_COSINE
        if is_collapsed and not was_collapsed and hosts.is_first():
            logger.warning(
                "step %d: CLS vectors have collapsed: mean cosine %.4f, effective rank %.1f",
                step,
                values["mean_cosine"],
                values["effective_rank"],
            )
        return {f"probe/{name}": float(value) for name, value in values.items()}

    return probe


def _measure_held_out(
    forward: Forward, whole: Batch, masked: Batch | None, is_pair: bool, params: Any
) -> dict[str, float]:
    """Measures the vectors of held-out spans, and how well their masked tokens are predicted."""
    n_spans = len(whole.input_ids_SxL)
    batch = whole
    if masked:
        batch = Batch(*map(np.concatenate, zip(whole, masked, strict=True)))
    vectors_SxD, sums = forward(params, batch)
    values = measure_vectors(vectors_SxD[:n_spans], is_pair)
    if masked:  # the loss of the Condenser head, where there is one
        total = sums["head_mlm"] if "head_mlm" in sums else sums.get("late_mlm", 0.0)
        values["mlm_loss"] = total / max(masked.weights_SxM.sum(), 1.0)
    return values


def measure_vectors(vectors_SxD: np.ndarray, is_pair: bool) -> dict[str, float]:
    """Measures the vectors of held-out spans; in pairs, rows 2i and 2i + 1 are positives.

    The rank of a positive is that of its inner product among those of all other spans; what is as
    near as the positive counts as nearer. `alignment` (α = 2) and `uniformity` (t = 2) are
    equations 1 and 2 of Wang & Isola, arXiv 2005.10242. `effective_rank` is exp of the entropy of
    the normalized singular values (Roy & Vetterli, "The effective rank", EUSIPCO 2007).
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


def _batch_of(texts: tuple[list[str], list[str]], spec: BatchSpec, store: TokenStore) -> Batch:
    """Returns queries and passages, read as those of a batch are: its prompts and limits."""
    tokenizer = load_tokenizer(str(store.tokenizer_folder)).backend
    ids: list[list[int]] = []
    prompts: list[str] = []
    for (prompt, length), of_kind in zip(spec.pair_specs, texts, strict=True):
        tokenizer.enable_truncation(length - N_AROUND)
        read = tokenizer.encode_batch_fast(
            [prompt + text for text in of_kind], add_special_tokens=False
        )
        ids += [encoding.ids for encoding in read]
        prompts += [prompt] * len(of_kind)
    n_tokens_S = np.array([len(row) for row in ids])
    inside_SxC = np.arange(n_tokens_S.max()) < n_tokens_S[:, None]
    ids_SxC = np.zeros(inside_SxC.shape, np.int32)
    ids_SxC[inside_SxC] = np.concatenate(ids)
    ids_SxL = with_specials(ids_SxC, n_tokens_S, store)
    mask_SxL = np.arange(ids_SxL.shape[1]) < n_tokens_S[:, None] + N_AROUND
    batch = Batch.of_texts(ids_SxL, mask_SxL)
    return batch._replace(prompt_lengths_S=prompt_lengths(prompts, store.tokenizer))


def _open_search(
    settings: ProbeSettings, spec: BatchSpec, store: TokenStore, forward: Forward
) -> Callable[[Any], dict[str, float]]:
    """Returns a function of parameters that searches a sample of the passages of `probe.data`.

    Texts are read as those of a batch are: as many tokens, behind the same prompts. What stands
    between a passage's title and its text is what `encode` puts there. Where queries are passages,
    they do not find themselves (see `own_passages`).
    """
    folder = Path(settings.data)
    split = settings.split
    size = settings.passages
    queries, qrels = collection.read_split(folder, split)
    relevant = collection.relevant_passages(qrels)
    source = collection.judgments_file(folder, split)
    if not relevant:
        raise UserError(f"{source} judges no passage relevant")
    # By a hash of their names. All that are relevant come last: of equal scores they lose.
    passages = heapq.nsmallest(
        max(size, len(relevant)) if size else sys.maxsize,
        collection.read_corpus(folder),
        key=lambda p: (p.id not in relevant, hashlib.sha256(p.id.encode()).digest()),
    )[::-1]
    ids = [passage.id for passage in passages]
    collection.require_known(relevant, set(ids), "passages", source)
    separator = settings.title_separator
    texts = {passage.id: collection.passage_text(passage, separator) for passage in passages}
    own = find_own_passages(queries, texts, qrels, settings.data)
    batch = _batch_of(([*queries.values()], [*texts.values()]), spec, store)
    hosts.broadcast_and_compare(
        {"probe.data": hashlib.sha256(batch.input_ids_SxL.tobytes()).hexdigest()}
    )

    def search(params: Any) -> dict[str, float]:
        queries_QxD, passages_PxD = np.split(forward(params, batch)[0], [len(queries)])
        run = {}
        for name, query_D in zip(queries, queries_QxD, strict=True):
            scores_P = passages_PxD @ query_D
            best = np.argsort(-scores_P, kind="stable")[: _DEPTH + 1]
            found = [i for i in best if ids[i] != name or name not in own][:_DEPTH]
            run[name] = {ids[i]: float(scores_P[i]) for i in found}
        mean = evaluate_run(qrels, run, list(SEARCH_METRICS))["mean"]
        return {SEARCH_METRICS[metric]: value for metric, value in mean.items()}

    return search
