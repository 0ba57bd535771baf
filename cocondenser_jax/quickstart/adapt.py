"""A sentence-transformers model adapted to a corpus, as a drop-in for the model as published.

The model's own vector is trained, with its own pooling and similarity, on pairs of texts that the
corpus holds. How much of the change is kept, if any, is decided twice: without labels, as the
largest share of it that still agrees with what a search found before (`agreement.py`); and with
judgments, where there are some, against the best ranking that was there before.

    DIR/started.json    the model, the corpus and the settings
    DIR/store/          the token store
    DIR/pretraining/    the run folder of pre-training
    DIR/model/          what it ended with, as a Hugging Face folder
    DIR/agreement.json  the shares that were tried, how far they agree, and the one that is kept
    DIR/published/      DIR/adapted/
                        model/, and of the test's passages and queries embeddings/, test.trec and
                        fused.trec, which is test.trec fused with BM25's
    DIR/bm25.trec       DIR/results.json  DIR/report.html
    DIR/retriever/      the result: a copy of one of the two models

What exists is not made again, so the same command resumes.
"""

import logging
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.analysis.report import Ranking, ResultRow, result_rows, write_report
from cocondenser_jax.collection.folder import passage_text, read_corpus, read_queries, read_split
from cocondenser_jax.collection.trec import Run, read_run, write_run
from cocondenser_jax.configs import adapt as settings
from cocondenser_jax.convert.from_torch import read_shape
from cocondenser_jax.corpus.batches import held_out_documents
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import Metrics, evaluate_run
from cocondenser_jax.evaluation.significance import compare
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.devices import count_devices
from cocondenser_jax.pretrain.experiment import Experiment, resolve, resolve_without_store
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.quickstart.agreement import (
    agreement,
    dense_run,
    encode_texts,
    fused_ranking,
    lexical_run,
    sample_store,
)
from cocondenser_jax.quickstart.steps import make_once, pretrain_model, seconds_of
from cocondenser_jax.quickstart.verdict import ADAPTED, PUBLISHED, Verdict, decide, judge
from cocondenser_jax.retrieval.bm25 import write_bm25_run
from cocondenser_jax.retrieval.encode import Encoding, encode_corpus
from cocondenser_jax.retrieval.fuse import Method, fuse_runs
from cocondenser_jax.retrieval.models import blend, load_retriever, model_sha256
from cocondenser_jax.retrieval.search import open_index, retrieve
from cocondenser_jax.settings import override
from cocondenser_jax.storage.files import new_folder, read_object, write_json
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.runs import lock_folder, start_or_compare

logger = logging.getLogger(__name__)

SHARES = (1.0, 0.75, 0.5, 0.25)  # of the change of the weights, the largest first
MEASURES = ("nDCG@10", "MRR@10", "Recall@100")  # the first decides
# Right: the same verdict as by judgments; papers/signals.py measured it.
WITHOUT_JUDGMENTS = "no judgments: by words of held-out documents, right in 8 of 8 cases"
FUSION: Method = "min_max"  # ahead of rrf in docs/results.md, "Hybrid search"
_SPANS_LOOKED_AT = 1_000
_PASSAGES_TIMED = 64


class Outcome(NamedTuple):
    """What an adaptation came to."""

    rows: list[ResultRow]  # of the comparison; none without judgments
    summary: str  # a line that starts with "VERDICT: "
    search: list[str]  # the flags of `search` for the best of what is in the folder


def adapt(
    workdir: Path, corpus: str, model: str, data: Path | None = None, overrides: Sequence[str] = ()
) -> Outcome:
    """Adapts a model to a corpus, and says whether that helped; resumes an earlier call.

    Args:
      workdir: the head of this file says what it will hold.
      corpus: see `sources.read_documents`.
      model: a folder or hub name; see `convert.from_torch.load_folder`.
      data: a folder of passages, queries and judgments of `test`; None: nothing is judged.
      overrides: of the settings that `propose_pretraining` returns.
    """
    start = find_folder(model)
    network = read_shape(start)
    original = load_retriever(start)
    propose = partial(
        propose_pretraining, n_devices=count_devices(), on_cpu=jax.default_backend() == "cpu"
    )
    expected = _with_overrides(propose(10_000_000), overrides)
    _require_fit(network, expected)
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
        once = partial(make_once, workdir)
        published = once(workdir / PUBLISHED / "model", partial(_save, original))
        tokenize = partial(build_store, corpus, str(start), max_tokens=expected.data.length)
        store = open_store(once(workdir / "store", tokenize))
        config = _with_overrides(propose(store.n_spans, propose_pairs(store)), overrides).unlock()
        config.warm_start = str(start)
        config.data.store = str(store.path)
        experiment = resolve(config, store)
        spec = experiment.batches
        documents_H = held_out_documents(store, spec.held_out, spec.kind.is_held_out)
        if len(documents_H) < 2:
            raise UserError(
                f"{corpus} has {store.n_documents} documents: expected 20 or more, of two spans"
                " with --config.data.pairs=spans, and --config.probe.every above 0"
            )
        if not (workdir / "model").exists():
            _log_work(experiment, store, data, original)
        run = workdir / "pretraining"
        trained = once(workdir / "model", partial(pretrain_model, config, run))
        choose = partial(_choose_share, store, documents_H, original, trained)
        chosen = read_object(once(workdir / "agreement.json", choose))
        share = chosen["share"]
        models = {PUBLISHED: published}
        if share:
            models[ADAPTED] = once(
                workdir / ADAPTED / "model",
                lambda out: _save(blend(original, load_retriever(trained), share), out),
            )

        rows: list[ResultRow] = []
        verdict = Verdict(**chosen["verdict"])
        said = f"{verdict.line()} | {WITHOUT_JUDGMENTS}"
        if data is not None:
            rows = _test(workdir, data, models)
            verdict = judge(rows)
            said = verdict.line()
            write_json(workdir / "results.json", [row._asdict() for row in rows])
        kept = ADAPTED if verdict.outcome == "helped" else PUBLISHED
        search = _search_flags(rows, verdict.winner, models[kept].parent / "embeddings")
        once(workdir / "retriever", partial(_copy, models[kept]))
        summary = f"VERDICT: {said} | retriever/ is {kept}"
        title = f"{model}, adapted to {corpus}"
        write_report(workdir / "report.html", title, summary, {ADAPTED: run}, rows)
        return Outcome(rows, summary, search)


def _log_work(
    experiment: Experiment, store: TokenStore, data: Path | None, model: SentenceTransformer
) -> None:
    """Logs what training and the test will read, and how long the test's encoding will take."""
    spec = experiment.batches
    logger.info(
        "adapt: %s documents; %s steps of %s pairs (%s), of up to %s tokens each",
        *(f"{n:,}" for n in (store.n_documents, experiment.n_steps, spec.batch_size)),
        spec.example,
        spec.length,
    )
    if data is not None:
        n_passages, seconds = _seconds_to_encode(model, data)
        logger.info(
            "adapt: then the test encodes %s passages with two models, about %s each",
            f"{n_passages:,}",
            tqdm.format_interval(seconds),
        )


def _seconds_to_encode(model: SentenceTransformer, data: Path) -> tuple[int, float]:
    """Returns how many passages there are, and how long all take, judged by a sample of them."""
    n_passages = sum(1 for _ in read_corpus(data))
    step = math.ceil(n_passages / _PASSAGES_TIMED)
    texts = [passage_text(passage) for passage in islice(read_corpus(data), 0, None, step)]
    start = time.perf_counter()
    encode_texts(model, texts)
    return n_passages, (time.perf_counter() - start) * n_passages / len(texts)


def propose_pretraining(
    n_spans: int, pairs: str = "sentence", *, n_devices: int, on_cpu: bool
) -> ConfigDict:
    """Returns the settings of pre-training but for store and warm start.

    Args:
      n_spans: of the corpus.
      pairs: what is a pair, see `propose_pairs`.
      n_devices: that train.
      on_cpu: whether these are CPUs.
    """
    config = settings.get_config().unlock()
    n = config.data.batch_size
    n_examples = n * config.train.steps
    if not on_cpu:
        config.train.dtype = "bfloat16"
        config.train.chunk_size = 64
        if n_spans >= 100 * 256 * n_devices:
            n = 256 * n_devices
            n_examples = 100 * n
    n = max(min(n, n_spans * 9 // 10) // n_devices, 1) * n_devices
    config.data.batch_size = n
    config.data.pairs = pairs
    config.train.steps = max(min(n_examples, settings.MOST_EPOCHS * n_spans) // n, 1)
    return config.lock()


def propose_pairs(store: TokenStore) -> str:
    """Returns "sentence" where half of the spans have two sentences or more, else "crops"."""
    spans_N = np.linspace(0, store.n_spans - 1, min(store.n_spans, _SPANS_LOOKED_AT)).astype(int)
    _, starts_NxL, _ = store.read_spans(spans_N, store.max_tokens - 2)
    has_several_N = (starts_NxL == STARTS_SENTENCE).sum(axis=1) >= 2
    return "sentence" if has_several_N.mean() >= 0.5 else "crops"


def _with_overrides(proposed: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Overrides settings; a chunk size that is not overridden is made to fit the batch."""
    config = override(proposed, overrides).unlock()
    if config.train.chunk_size == proposed.train.chunk_size:
        n_rows = 2 * config.data.batch_size // count_devices()
        config.train.chunk_size = math.gcd(n_rows, config.train.chunk_size)
    return config.lock()


def _require_fit(network: ModelConfig, config: ConfigDict) -> None:
    """Raises a UserError for settings that the model or this machine cannot take."""
    experiment = resolve_without_store(config, 1, network.vocab_size, network.pad_token_id)
    chunk_size = experiment.step.loss.chunk_size
    check_batch(experiment.batches, chunk_size, network.max_length, count_devices())


def _save(model: SentenceTransformer, out: Path) -> None:
    with new_folder(out) as folder:
        model.save_pretrained(str(folder), create_model_card=False)


def _copy(folder: Path, out: Path) -> None:
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)


def _choose_share(
    store: TokenStore,
    documents_H: np.ndarray,
    original: SentenceTransformer,
    trained: Path,
    out: Path,
) -> None:
    """Writes the largest of SHARES that agrees no less than as published, or 0, and its verdict."""
    sample = sample_store(store, documents_H)
    lexical = lexical_run(sample)
    found = dense_run(original, sample)
    expected = fused_ranking(lexical, found)
    before = agreement(found, expected)
    changed = load_retriever(trained)
    tried: dict[str, Any] = {}
    for share in SHARES:
        run = dense_run(blend(original, changed, share), sample)
        test = compare(agreement(run, expected), before)["agreement"]
        tried[f"{share:g}"] = test
        if decide(test["difference"], test["randomization_p"]) != "harmed":
            break
    else:
        share = 0.0
        run = found
    verdict = _judge_unlabeled(lexical, found, run if share else None)
    write_json(out, {"share": share, "tried": tried, "verdict": verdict._asdict()})


def _judge_unlabeled(lexical: Run, published: Run, adapted: Run | None) -> Verdict:
    """Compares two models, fused with BM25, by how well queries find the spans they are from."""
    qrels = {query: {query: 1} for query in lexical}
    runs = {PUBLISHED: published}
    if adapted is not None:
        runs[ADAPTED] = adapted
    rankings = []
    for model, run in runs.items():
        fused = fuse_runs([lexical, run], FUSION)
        metrics = evaluate_run(qrels, fused, MEASURES[:1])
        rankings.append(_ranking(model, metrics, is_fused=True))
    return judge(result_rows(rankings, _names_without_change(rankings)))


def _ranking(model: str, metrics: Metrics, *, is_fused: bool, seconds: float = 0.0) -> Ranking:
    return Ranking(
        name=f"{model} + BM25" if is_fused else model or "BM25",
        model=model,
        is_fused=is_fused,
        metrics=metrics,
        seconds=seconds,
    )


def _names_without_change(rankings: Sequence[Ranking]) -> list[str]:
    return [ranking.name for ranking in rankings if ranking.model != ADAPTED]


def _test(workdir: Path, data: Path, models: Mapping[str, Path]) -> list[ResultRow]:
    """Tests models (by name, in a folder of their own), alone and fused with BM25."""
    once = partial(make_once, workdir)
    bm25 = once(workdir / "bm25.trec", partial(write_bm25_run, data, split="test"))
    _, qrels = read_split(data, "test")

    def evaluated(model: str, results: Sequence[Path], *, is_fused: bool = False) -> Ranking:
        metrics = evaluate_run(qrels, read_run(results[-1]), MEASURES)
        return _ranking(model, metrics, is_fused=is_fused, seconds=seconds_of(workdir, results))

    rankings = [evaluated("", [bm25])]
    for name, model in models.items():
        folder = model.parent
        dense = once(folder / "test.trec", partial(_search, folder, data))
        fused = once(folder / "fused.trec", partial(_fuse, [bm25, dense]))
        before = [workdir / "model", workdir / "agreement.json"] if name == ADAPTED else []
        rankings.append(evaluated(name, [*before, dense]))
        rankings.append(evaluated(name, [*before, bm25, dense, fused], is_fused=True))
    return result_rows(rankings, _names_without_change(rankings))


def _search_flags(rows: Sequence[ResultRow], winner: str, embeddings: Path) -> list[str]:
    """Returns what makes `search` rank as the row that won; nothing without a test."""
    flags = [f"--hybrid={FUSION}" for row in rows if row.name == winner and row.is_fused]
    return [*flags, f"--embeddings={embeddings}"] if rows else []


def _search(folder: Path, data: Path, out: Path) -> None:
    model = folder / "model"
    embeddings = folder / "embeddings"
    encode_corpus(Encoding(model), data, embeddings)
    retrieve(open_index(embeddings, model), read_queries(data, "test"), out)


def _fuse(runs: Sequence[Path], out: Path) -> None:
    write_run(out, fuse_runs([read_run(run) for run in runs], FUSION))
