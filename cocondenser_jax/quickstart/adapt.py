"""A sentence-transformers model adapted to a corpus, as a drop-in for the model as published.

The model's own vector is trained, with its own pooling and similarity, on pairs of texts that the
corpus holds. How much of the change is kept, if any, is decided twice: without labels, as the
largest alpha, 0 to 1, with which it still agrees with what a search found before (`agreement.py`);
and with judgments, where there are some, against the best ranking that was there before.

    DIR/started.json    the model, the corpus and the settings
    DIR/store/          the token store
    DIR/pretraining/    the workdir of pre-training
    DIR/model/          what it ended with, as a Hugging Face folder
    DIR/agreement.json  which alphas were tested, how far they agree, the one that is kept, and the
                        verdict without judgments
    DIR/published/      DIR/adapted/
                        model/, and of the test's passages and queries embeddings/, test.trec and
                        fused.trec, which is test.trec fused with BM25's; where vectors have
                        several sizes, test.SIZE.trec for each smaller one
    DIR/bm25.trec       DIR/results.json  DIR/report.html
    DIR/retriever/      the result: a copy of one of the two models

What exists is not made again, so the same command resumes.
"""

import logging
import math
import shutil
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.analysis.report import ResultRow, write_report
from cocondenser_jax.collection.folder import passage_text, read_corpus, read_split
from cocondenser_jax.collection.trec import read_run, write_run
from cocondenser_jax.corpus.sources import read_documents
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import require_other_answers
from cocondenser_jax.quickstart.agreement import (
    METRIC,
    choose_alpha,
    encode_texts,
    read_choice,
    require_found,
    sample_store,
    write_choice,
)
from cocondenser_jax.quickstart.backends import Name, open_model, require_same_reading
from cocondenser_jax.quickstart.comparison import (
    FUSION,
    Entry,
    compare_entries,
    rank_by_bm25,
    rank_by_cut_vectors,
    rank_by_vectors,
)
from cocondenser_jax.quickstart.proposals import (
    Training,
    check_given,
    propose_scale,
    propose_sizes,
    propose_training,
)
from cocondenser_jax.quickstart.steps import make_once, write_store
from cocondenser_jax.quickstart.verdict import ADAPTED, PUBLISHED, Verdict, judge
from cocondenser_jax.representation import NOTHING_GIVEN, Given
from cocondenser_jax.retrieval.encode import Encoding, encode_corpus
from cocondenser_jax.retrieval.fuse import fuse_runs
from cocondenser_jax.retrieval.loading import require_loadable
from cocondenser_jax.retrieval.models import (
    blend,
    load_as,
    load_retriever,
    model_sha256,
    pooled_size,
)
from cocondenser_jax.retrieval.terms import LANGUAGE, require_language
from cocondenser_jax.storage.files import new_folder, write_json
from cocondenser_jax.storage.hub import find_folder
from cocondenser_jax.storage.model_folder import (
    linked_folder,
    network_folder,
    read_representation,
    require_outside,
    write_resolved,
)
from cocondenser_jax.storage.runs import lock_folder, require_own, start_or_compare

logger = logging.getLogger(__name__)

METRICS = (METRIC, "MRR@10", "Recall@100")
# Right: the same verdict as by judgments; experiments/signals.py measured it.
WITHOUT_JUDGMENTS = "no judgments: by words of held-out documents, right in 8 of 8 cases"
_PASSAGES_TIMED = 64


class Adaptation(NamedTuple):
    """What came of adapting a model."""

    rows: list[ResultRow]  # of the comparison; none without judgments
    summary: str  # a line that starts with "VERDICT: "
    search: list[str]  # the flags of `search` for the best of what is in the folder


class Options(NamedTuple):
    """What a user may say of a model beside its folder, of the texts, and of the test."""

    given: Given = NOTHING_GIVEN  # of the model's vectors
    backend: Name | None = None  # what trains it; None: see `choose_backend`
    language: str = LANGUAGE  # of BM25's terms, see `terms.languages`
    ignore_identical_ids: bool = False  # see `trec.drop_identical_ids`


NO_OPTIONS = Options()


def adapt(
    workdir: Path,
    corpus: str,
    model: str,
    data: Path | None = None,
    overrides: Sequence[str] = (),
    options: Options = NO_OPTIONS,
) -> Adaptation:
    """Adapts a model to a corpus, and says whether that helped; resumes an earlier call.

    Args:
      workdir: the head of this file says what it will hold.
      corpus: see `sources.read_documents`.
      model: a folder or hub name; see `convert.from_torch.load_folder`.
      data: a folder of passages, queries and judgments of `test`; None: nothing is judged.
      overrides: of the settings that `propose_pretraining` returns.
      options: see `Options`.
    """
    language = options.language
    is_own_ignored = options.ignore_identical_ids
    require_language(language)
    require_outside(Path(model), workdir)
    require_own(workdir / "started.json")
    start = find_folder(model)
    vectors = read_representation(start, options.given)
    require_loadable(network_folder(start))
    overrides = propose_scale(overrides, vectors)
    with linked_folder(start, vectors) as resolved:
        trainer, reading = open_model(resolved, options.backend)
        config = check_given(overrides, resolved, trainer, reading)
        original = load_as(start, vectors)
        require_same_reading(trainer, reading, resolved, original)
    overrides = propose_sizes(config, overrides, start, original.get_embedding_dimension() or 0)
    _check_texts(corpus, data, is_own_ignored)
    started = {
        "command": "adapt",
        "model": model_sha256(start),
        "corpus": corpus,
        "data": str(data),
        "overrides": [*overrides],
        "given": options.given._asdict(),
        "backend": trainer.name,
        "language": language,
        "ignore_identical_ids": is_own_ignored,
    }
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", started)
        published = workdir / PUBLISHED / "model"
        make_once(workdir, published, write_resolved, start, vectors, pooled_size(original))
        length = config.data.length
        store = open_store(
            make_once(workdir, workdir / "store", write_store, corpus, published, length)
        )
        training = propose_training(store, published, overrides, trainer, reading)
        if not (workdir / "model").exists():
            # Before any training: these fail where BM25 finds nothing.
            require_found(store, training.documents_H, language)
            if data is not None:
                rank_by_bm25(workdir, data, language, ignore_identical_ids=is_own_ignored)
            _log_work(training, original, data)
        pretraining = workdir / "pretraining"
        trained = make_once(workdir, workdir / "model", trainer.train, training.config, pretraining)
        choice = read_choice(
            make_once(
                workdir, workdir / "agreement.json", _choose, original, trained, training, language
            )
        )
        models = [PUBLISHED]
        if choice.alpha:
            models.append(ADAPTED)
            result = workdir / ADAPTED / "model"
            make_once(workdir, result, _save_blend, original, trained, choice.alpha)
        sizes = training.config.model.sizes
        rows = []
        if data is not None:
            rows = _test(workdir, data, models, sizes, options)
        title = f"{model}, adapted to {corpus}"
        return _conclude(workdir, title, choice.verdict, rows, language)


def _check_texts(corpus: str, data: Path | None, ignore_identical_ids: bool) -> None:
    """Raises a UserError for texts that cannot be read, or judgments that cannot be compared by."""
    next(read_documents(corpus))
    if data is None:
        return
    _, qrels = read_split(data, "test")
    if len(qrels) < 2:
        raise UserError(f"{data} has one judged query of test: a comparison needs two")
    if ignore_identical_ids:
        require_other_answers(qrels)
    relevant = {passage for grades in qrels.values() for passage in grades if grades[passage] > 0}
    n_found = len(relevant.intersection(passage.id for passage in read_corpus(data)))
    if not n_found:
        raise UserError(
            f"{data} has none of the {len(relevant)} passages that its judgments of test find"
            " relevant: all metrics would be 0"
        )
    if n_found < len(relevant):
        logger.warning(
            "%s has %d of the %d passages that its judgments of test find relevant",
            data,
            n_found,
            len(relevant),
        )


def _log_work(training: Training, model: SentenceTransformer, data: Path | None) -> None:
    """Logs what training and the test will read, and how long the test's encoding will take."""
    spec = training.experiment.batches
    logger.info(
        "adapt: %s documents; %s steps of %s pairs (%s), of up to %s tokens each",
        f"{training.store.n_documents:,}",
        f"{training.experiment.n_steps:,}",
        f"{spec.batch_size:,}",
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


def _save(model: SentenceTransformer, out: Path) -> None:
    with new_folder(out) as folder:
        model.save_pretrained(str(folder), create_model_card=False)


def _choose(
    original: SentenceTransformer, trained: Path, training: Training, language: str, out: Path
) -> None:
    """Writes how much of the change to the model in the folder `trained` is kept."""
    sample = sample_store(training.store, training.documents_H)
    write_choice(choose_alpha(original, load_retriever(trained), sample, language), out)


def _save_blend(original: SentenceTransformer, trained: Path, alpha: float, out: Path) -> None:
    _save(blend(original, load_retriever(trained), alpha), out)


def _test(
    workdir: Path, data: Path, models: Sequence[str], sizes: Sequence[int], options: Options
) -> list[ResultRow]:
    """Tests the models, each in a folder of its name, alone and fused with BM25.

    Where vectors have several `sizes`, the smaller ones are tested too, but decide nothing.
    """
    ignore = options.ignore_identical_ids
    bm25 = rank_by_bm25(workdir, data, options.language, ignore_identical_ids=ignore)
    entries = [Entry("", False, [bm25])]
    for model in models:
        run = workdir / model / "test.trec"
        dense = make_once(workdir, run, _search, workdir / model, data, ignore)
        fused = make_once(workdir, workdir / model / "fused.trec", _fuse, bm25, dense)
        before = [workdir / "model", workdir / "agreement.json"] if model == ADAPTED else []
        entries.append(Entry(model, False, [*before, dense]))
        entries.append(Entry(model, True, [*before, bm25, dense, fused]))
        for size in sizes[1:]:
            run = workdir / model / f"test.{size}.trec"
            make_once(workdir, run, _search_cut, workdir / model, size, data, ignore)
            results = [*before, dense, run]
            entries.append(Entry(model, False, results, f"{size:,} of {sizes[0]:,}"))
    baselines = [entry.name for entry in entries if entry.model != ADAPTED and not entry.part]
    rows = compare_entries(workdir, data, entries, baselines, METRICS, ignore_identical_ids=ignore)
    write_json(workdir / "results.json", [row._asdict() for row in rows])
    return rows


def _search(folder: Path, data: Path, ignore_identical_ids: bool, out: Path) -> None:
    model = folder / "model"
    embeddings = folder / "embeddings"
    encode_corpus(Encoding(model), data, embeddings)
    rank_by_vectors(embeddings, model, data, out, ignore_identical_ids=ignore_identical_ids)


def _search_cut(folder: Path, size: int, data: Path, ignore_identical_ids: bool, out: Path) -> None:
    rank_by_cut_vectors(
        folder / "embeddings",
        folder / "model",
        size,
        data,
        out,
        ignore_identical_ids=ignore_identical_ids,
    )


def _fuse(bm25: Path, dense: Path, out: Path) -> None:
    write_run(out, fuse_runs([read_run(bm25), read_run(dense)], FUSION))


def _conclude(
    workdir: Path, title: str, unlabeled: Verdict, rows: Sequence[ResultRow], language: str
) -> Adaptation:
    """Copies the model that the verdict decides for, and writes the report.

    The verdict is that of the test's rows; without any, the one without judgments.
    """
    verdict = judge(rows) if rows else unlabeled
    kept = ADAPTED if verdict.outcome == "helped" else PUBLISHED
    make_once(workdir, workdir / "retriever", _copy, workdir / kept / "model")
    notes = [] if rows else [WITHOUT_JUDGMENTS]
    summary = " | ".join([f"VERDICT: {verdict.line()}", *notes, f"retriever/ is {kept}"])
    workdirs = {ADAPTED: workdir / "pretraining"}
    write_report(workdir / "report.html", title, summary, workdirs, rows)
    search = _search_flags(rows, verdict.winner, language)
    if rows:
        search.append(f"--embeddings={workdir / kept / 'embeddings'}")
    return Adaptation([*rows], summary, search)


def _copy(folder: Path, out: Path) -> None:
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)


def _search_flags(rows: Sequence[ResultRow], winner: str, language: str) -> list[str]:
    """Returns what makes `search` rank as the row that won."""
    if not any(row.name == winner and row.is_fused for row in rows):
        return []
    flags = [f"--hybrid={FUSION}"]
    return flags if language == LANGUAGE else [*flags, f"--language={language}"]
