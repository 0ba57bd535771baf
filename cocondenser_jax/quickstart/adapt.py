"""A model adapted to a corpus, and tested against itself without that.

DIR/pretraining/  the run folder of the coCondenser stage
DIR/data/         held-out spans, where no data folder with judgments is given
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.configs import adapt as pretraining
from cocondenser_jax.configs import adapt_finetune as finetuning
from cocondenser_jax.convert.from_torch import read_shape
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import resolve, resolve_without_store
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.quickstart.pipeline import (
    Candidate,
    can_train,
    compare_models,
    pretrain_once,
    write_beir,
    write_report,
)
from cocondenser_jax.quickstart.report import ResultRow
from cocondenser_jax.quickstart.steps import make_once
from cocondenser_jax.retrieval.models import load_retriever, model_sha256
from cocondenser_jax.settings import override
from cocondenser_jax.storage.files import new_folder
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.runs import lock_folder, start_or_compare
from cocondenser_jax.warm_start import require_same_head

MAX_PASSAGES = 20_000  # of other documents than those held out
CHANCE = 0.05  # a difference whose p-value is not below it counts as none
MEASURED_STEPS = 450  # of 32 documents: see the head of configs/adapt.py


def adapt(
    workdir: Path, corpus: str, model: str, data: Path | None = None, overrides: Sequence[str] = ()
) -> tuple[list[ResultRow], str]:
    """Pre-trains a model on a corpus, and says whether that paid; resumes an earlier call.

    Where `data` has judgments of `train`, adapted and given model are fine-tuned in the same way
    before they are compared on `test`. Where it has none, they are compared as they are, and
    without `data` on held-out spans: one span of a document is to be found by another.

    Args:
      workdir: `pipeline.py` and the head of this file say what it will hold.
      corpus: see `sources.read_documents`.
      model: see `convert.from_torch.load_folder`.
      data: a folder of passages, queries and judgments of `test`.
      overrides: of the settings that `propose_pretraining` returns.

    Returns:
      The rows of the comparison, and what they say.
    """
    start = find_folder(model)
    network = read_shape(start)
    load_retriever(start)
    propose = partial(
        propose_pretraining,
        network,
        n_devices=jax.device_count(),
        on_cpu=jax.default_backend() == "cpu",
    )
    expected = override(propose(10_000_000), overrides)
    _require_fit(model, network, expected)
    next(read_documents(corpus))
    if data is not None and len(read_split(data, "test")[1]) < 2:
        raise UserError(f"{data} has one judged query of test: a comparison needs two")
    started = {
        "command": "adapt",
        "model": model_sha256(start),
        "corpus": corpus,
        "data": str(data),
        "overrides": [*overrides],
    }
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", started)
        tokenize = partial(build_store, corpus, str(start), max_tokens=expected.data.length)
        store = open_store(make_once(workdir, workdir / "store", tokenize))
        n_documents = len(store.documents_of_pairs) * 9 // 10  # a tenth at most is held out
        config = override(propose(n_documents), overrides).unlock()
        config.warm_start = str(start)
        config.data.store = str(store.path)
        test = str(data)
        if data is None:
            hold_out = partial(_write_held_out, store, config)
            data = make_once(workdir, workdir / "data", hold_out)
            test = "held-out spans of the corpus"
        run = workdir / "pretraining"
        adapted = pretrain_once(workdir, config, run, workdir / "model")
        candidates = [
            Candidate("unadapted", workdir / "compare" / "unadapted", start),
            Candidate("adapted", workdir, adapted, {run: adapted}),
        ]
        n_queries = 0
        tuning = "without fine-tuning"
        if can_train(data):
            n_queries = len(read_split(data, "train")[0])
            tuning = "after the same fine-tuning"
        tuned = propose_finetuning(n_queries, network.max_length)
        rows = compare_models(workdir, data, candidates, tuned)
        summary = f"{verdict(rows)}. Test: {test}, {tuning}."
        write_report(workdir, f"{model}, adapted to {corpus}", summary, rows, candidates)
        return rows, summary


def verdict(rows: Sequence[ResultRow]) -> str:
    """Says whether adapting paid in the first measure, of rows that end with before and after."""
    *_, unadapted, adapted = rows
    measure = next(iter(adapted.metrics))
    before = unadapted.metrics[measure]
    after = adapted.metrics[measure]
    p = unadapted.p_values[measure]
    says = "paid" if after > before and p < CHANCE else "did not pay"
    return f"Adapting {says} ({measure} {after:.3f}, unadapted {before:.3f}, p = {p:.2g})"


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
    config = pretraining.get_config().unlock()
    n = config.data.batch_size
    if not on_cpu:
        config.train.dtype = "bfloat16"
        if n_documents >= 100 * 256 * n_devices:  # an epoch has 100 steps
            n = 256 * n_devices  # the papers' 2,048 on eight
            config.train.chunk_size = 64
            config.optimizer.learning_rate = 1e-4
    config.data.batch_size = max(min(n, n_documents) // n_devices, 1) * n_devices
    # As many as make the measured number of steps; the papers' 8 at most.
    epochs = MEASURED_STEPS * config.data.batch_size / max(n_documents, 1)
    config.train.epochs = min(max(epochs, 1.0), 8.0)
    config.model.skip_from = network.skip_from
    config.model.n_head_layers = network.n_head_layers or config.model.n_head_layers
    return config.lock()


def propose_finetuning(n_queries: int, max_length: int) -> ConfigDict:
    """Returns the settings of fine-tuning but for model and data, where there are labels.

    Args:
      n_queries: to train on.
      max_length: of the model's inputs, in tokens.
    """
    config = finetuning.get_config().unlock()
    config.batch_size = max(min(config.batch_size, n_queries), 2)
    # Measured: 3 epochs of 809 queries, 1 of 2,000.
    config.epochs = min(max(2_500 // max(n_queries, 1), 1), config.epochs)
    config.query_length = min(config.query_length, max_length)
    config.passage_length = min(config.passage_length, max_length)
    return config.lock()


def _require_fit(model: str, network: ModelConfig, config: ConfigDict) -> None:
    """Raises a UserError for settings that the model or this machine cannot take."""
    experiment = resolve_without_store(config, 1, network.vocab_size, network.pad_token_id)
    chunk_size = experiment.step.loss.chunk_size
    check_batch(experiment.batches, chunk_size, network.max_length, jax.device_count())
    wanted = experiment.network
    head = {name: wanted[name] for name in ("n_head_layers", "skip_from", "late_mlm")}
    dataclasses.replace(network, **head)  # refuses what cannot be
    if network.n_head_layers and wanted["n_head_layers"]:
        require_same_head(model, network, wanted)


def _write_held_out(store: TokenStore, config: ConfigDict, folder: Path) -> None:
    """Writes a retrieval task: the first span of each held-out document is to find its last.

    The passages are these and the spans of all other documents, or every n-th of them.
    """
    documents_Q = held_out_documents(store, resolve(config, store).batches.held_out)
    n_pairs = len(store.documents_of_pairs)
    if len(documents_Q) < 2 or not n_pairs:
        raise UserError(
            f"{store.path} has only {n_pairs} documents of two spans, too few"
            " to hold some out: give --data, or a smaller --config.data.length"
        )
    queries = _texts(store, store.first_span_D[documents_Q])
    passages = _texts(store, store.first_span_D[documents_Q + 1] - 1)
    spans_N = np.arange(store.n_spans)
    owners_N = np.searchsorted(store.first_span_D, spans_N, side="right") - 1
    others_N = spans_N[~np.isin(owners_N, documents_Q)]
    others_N = others_N[:: len(others_N) // MAX_PASSAGES + 1]
    judged = dict(zip(queries, passages, strict=True))
    with new_folder(folder) as new:
        write_beir(new, passages | _texts(store, others_N), queries, {"test": judged})


def _texts(store: TokenStore, spans_N: np.ndarray) -> dict[str, str]:
    """Returns number → text of spans."""
    ids_NxL, _, n_tokens_N = store.read_spans(spans_N, store.max_tokens - 2)
    decode = load_tokenizer(str(store.tokenizer_folder)).backend.decode
    texts = (decode(ids[:n]) for ids, n in zip(ids_NxL.tolist(), n_tokens_N, strict=True))
    return dict(zip(map(str, spans_N.tolist()), texts, strict=True))
