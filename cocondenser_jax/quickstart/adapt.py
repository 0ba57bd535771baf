"""A model adapted to a corpus, and tested against itself without that.

DIR/pretraining/  the run folder of the coCondenser stage
DIR/data/         held-out spans, where no data folder with judgments is given
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.collection.folder import read_split
from cocondenser_jax.configs import adapt as proposals
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.experiment import batch_spec, network_sizes, run_length
from cocondenser_jax.quickstart.pipeline import (
    Candidate,
    Outcome,
    can_train,
    compare_models,
    make_once,
    opened,
    pretrained,
    write_beir,
)
from cocondenser_jax.quickstart.report import ResultRow
from cocondenser_jax.retrieval.models import load_retriever, model_sha256, pooling_of
from cocondenser_jax.settings import override
from cocondenser_jax.storage.files import new_folder
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.warm_start import load_warm_start

MAX_PASSAGES = 20_000  # held-out spans and those of other documents
CHANCE = 0.05  # a difference whose p-value is not below it counts as none


def adapt(
    workdir: Path, corpus: str, model: str, data: Path | None = None, overrides: Sequence[str] = ()
) -> Outcome:
    """Pre-trains a model on a corpus, and says whether that paid; resumes an earlier call.

    Where `data` has judgments of `train`, adapted and given model are fine-tuned in the same way
    before they are compared on `test`. Where it has none, they are compared as they are, and
    without `data` on held-out spans: one span of a document is to be found by another.

    Args:
      workdir: `pipeline.py` and the head of this file say what it will hold.
      corpus: see `sources.read_documents`.
      model: see `convert.from_torch.load_folder`.
      data: a folder of passages, queries and judgments of `test`.
      overrides: of the settings of pre-training that `configs/adapt.py` proposes.
    """
    start = find_folder(model)
    network, _ = load_folder(str(start), n_head_layers=0, init_head_seed=0)
    own_pooling = pooling_of(load_retriever(start))
    known = override(_of_model(proposals.get_config(), start, network), overrides)
    length = known.data.length
    if length > network.max_length:
        raise UserError(f"config.data.length is {length}: {model} has {network.max_length} tokens")
    load_warm_start(str(start), network_sizes(known), known.seed)  # refuses another head
    next(read_documents(corpus))
    if data is not None and len(read_split(data, "test")[1]) < 2:
        raise UserError(f"{data} has one judged query of test: a comparison needs two")
    asked = {"corpus": corpus, "data": str(data), "overrides": [*overrides]}
    with opened(workdir, {"command": "adapt", "model": model_sha256(start), **asked}):
        make_once(workdir, workdir / "store", build_store, corpus, str(start), max_tokens=length)
        store = open_store(workdir / "store")
        config = _pretraining(store, start, network, overrides)
        task = f"{data}, "
        if data is None:
            data, task = workdir / "data", "held-out spans of the corpus, "
            make_once(workdir, data, _write_held_out, store, config)
        task += "after the same fine-tuning" if can_train(data) else "without fine-tuning"
        n_queries = len(read_split(data, "train")[0]) if can_train(data) else 0

        def candidates() -> Iterator[Candidate]:
            compare, run = workdir / "compare", workdir / "pretraining"
            yield Candidate("unadapted", compare / "unadapted", start, pooling="cls")
            if own_pooling != "cls":
                name = f"unadapted, {own_pooling} pooling"
                yield Candidate(name, compare / "unadapted-own-pooling", start)
            adapted = pretrained(workdir, config, run, workdir / "model")
            yield Candidate("adapted", workdir, adapted, [run])

        return compare_models(
            workdir,
            data,
            candidates(),
            proposals.propose_finetuning(n_queries, network.max_length),
            f"{model}, adapted to {corpus}",
            lambda rows: f"{verdict(rows)}. Test: {task}.",
            [*read_split(data, "test")[0].values()][:3],
        )


def verdict(rows: Sequence[ResultRow]) -> str:
    """Says whether adapting paid: against the better of the unadapted rows, in the first measure.

    The rows are BM25, unadapted ones, and adapted.
    """
    measure = next(iter(rows[0].metrics))
    bm25, *unadapted, adapted = ((row.metrics[measure], row) for row in rows)
    before, best = max(unadapted, key=lambda pair: pair[0])
    p = best.p_values[measure]
    paid = "paid" if adapted[0] > before else "did not pay: it made the model worse"
    says = paid if p < CHANCE else "did not pay: the difference is not more than chance"
    says = f"Adapting {says} ({measure} {adapted[0]:.3f}, {best.name} {before:.3f}, p = {p:.2g})"
    return says + (f"; BM25 is ahead with {bm25[0]:.3f}" if bm25[0] > adapted[0] else "")


def _of_model(config: ConfigDict, start: Path, network: ModelConfig) -> ConfigDict:
    """Returns settings that go on with the model's own head, or with a new one on its middle."""
    config = config.unlock()
    config.warm_start = str(start)
    config.model.skip_from = network.skip_from
    config.model.n_head_layers = network.n_head_layers or config.model.n_head_layers
    return config


def _pretraining(
    store: TokenStore, start: Path, network: ModelConfig, overrides: Sequence[str]
) -> ConfigDict:
    """Returns the settings of the run, with about ten probes and checkpoints."""
    on_cpu = jax.default_backend() == "cpu"
    n_documents = len(store.documents_of_pairs) * 9 // 10  # the probe holds out a tenth at most
    config = proposals.propose(n_documents, jax.device_count(), on_cpu)
    config = _of_model(config, start, network)
    config.data.store = str(store.path)
    every = max(run_length(override(config, overrides), store) // 10, 1)
    config.checkpoint.every = config.probe.every = every
    return override(config, overrides)


def _write_held_out(store: TokenStore, config: ConfigDict, folder: Path) -> None:
    """Writes a retrieval task: a span of each held-out document is the query for another.

    The passages are these other spans and those of all other documents, or a sample of them.
    """
    documents_Q = held_out_documents(store, batch_spec(config).held_out)
    n_pairs = len(store.documents_of_pairs)
    if len(documents_Q) < 2 or not n_pairs:
        raise UserError(
            f"{store.path} has only {n_pairs} documents of two spans, too few"
            " to hold some out: give --data, or a smaller --config.data.length"
        )
    first_N, end_N = store.first_span_D[:-1], store.first_span_D[1:]
    rng, spans_N = np.random.default_rng(0), np.arange(store.n_spans)
    pairs_Qx2 = np.array(
        [rng.choice(spans_N[first_N[d] : end_N[d]], 2, replace=False) for d in documents_Q]
    )
    owners_N = np.searchsorted(end_N, spans_N, side="right")
    others_N = spans_N[~np.isin(owners_N, documents_Q)]
    n_others = min(len(others_N), MAX_PASSAGES - len(documents_Q))
    others_N = others_N[np.linspace(0, len(others_N) - 1, n_others).astype(int)]
    queries, passages = (_texts(store, s) for s in (pairs_Qx2[:, 0], pairs_Qx2[:, 1]))
    judged = dict(zip(queries, passages, strict=True))
    with new_folder(folder) as new:
        write_beir(new, passages | _texts(store, others_N), queries, {"test": judged})


def _texts(store: TokenStore, spans_N: np.ndarray) -> dict[str, str]:
    """Returns number → text of spans."""
    ids_NxL, _, n_tokens_N = store.read_spans(spans_N, store.max_tokens - 2)
    decode = load_tokenizer(str(store.tokenizer_folder)).backend.decode
    texts = (decode(ids[:n]) for ids, n in zip(ids_NxL.tolist(), n_tokens_N, strict=True))
    return dict(zip(map(str, spans_N.tolist()), texts, strict=True))
