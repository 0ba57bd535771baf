"""A sentence-transformers model adapted to a corpus, as a drop-in for the model as published.

The model's own vector is trained, with its own pooling and similarity, on pairs of texts that the
corpus holds. How much of the change is kept, if any, is decided twice: without labels, as the
largest alpha, 0 to 1, with which it still agrees with what a search found before (`agreement.py`);
and with judgments, where there are some, against the best ranking that was there before. Without
judgments the published model stays, and what to judge is written, of a log of queries if there is
one.

    DIR/started.json    the model, the corpus and the settings
    DIR/store/          the token store
    DIR/pretraining/    the workdir of pre-training
    DIR/model/          what it ended with, as a Hugging Face folder
    DIR/agreement.json  which alphas were tested, how far they agree, and the one that is kept
    DIR/to_judge/       the queries, of that test or of the log, on which the two models differ most
                        (`judging.py`)
    DIR/published/      DIR/adapted/
                        model/
    DIR/test/           the comparison of the two by judgments, or for the log (`comparison.py`)
    DIR/report.html
    DIR/retriever/      the result: a copy of one of the two models

What exists is not made again, so the same command resumes. Judgments may be given, or given up,
later.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.corpus.sources import documents_sha256
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.files.runs import lock_folder, require_own, start_or_compare
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.model_folder.folder import (
    linked_folder,
    network_folders,
    read_representation,
    require_outside,
    write_resolved,
)
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.pipelines.agreement import (
    Sample,
    as_written,
    choose_alpha,
    encode_texts,
    read_choice,
    sample_found,
    write_choice,
    written_texts,
)
from cocondenser_jax.pipelines.backends import Name, open_model, require_same_reading
from cocondenser_jax.pipelines.proposals import (
    Training,
    check_given,
    propose_scale,
    propose_sizes,
    propose_training,
)
from cocondenser_jax.representation import NOTHING_GIVEN, Given, Representation
from cocondenser_jax.retriever.compare.changes import Changes, first_of
from cocondenser_jax.retriever.compare.comparison import (
    FUSION,
    Compared,
    Outcome,
    RankedModel,
    changes_between,
    compare_models,
    passages_note,
    rank_by_bm25,
    search_flags,
)
from cocondenser_jax.retriever.compare.differences import Differences, most_different
from cocondenser_jax.retriever.compare.judging import (
    N_QUERIES,
    TO_JUDGE,
    describe_form,
    write_to_judge,
)
from cocondenser_jax.retriever.compare.report import ResultRow, comparison_table, write_report
from cocondenser_jax.retriever.compare.steps import make_once, seconds_of, write_store
from cocondenser_jax.retriever.compare.survey import Survey
from cocondenser_jax.retriever.compare.trial import (
    Trial,
    check_trial,
    queries_note,
    start_comparison,
    with_first,
)
from cocondenser_jax.retriever.compare.unjudged import compare_unjudged
from cocondenser_jax.retriever.compare.verdict import ADAPTED, PUBLISHED, judge
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.data.trec import Run
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.loading import require_loadable
from cocondenser_jax.retriever.search.models import (
    blend,
    load_as,
    load_retriever,
    model_sha256,
    pooled_size,
)
from cocondenser_jax.retriever.search.terms import LANGUAGE, require_language

logger = logging.getLogger(__name__)

TEST = "test"
_STARTED = "started.json"
_STORE = "store"
_UNSTARTED = "store.unstarted"  # the store, until the settings that it was made with are written


class Options(NamedTuple):
    """What a user may say of a model beside its folder, of the texts, and of the test."""

    given: Given = NOTHING_GIVEN  # of the model's vectors
    backend: Name | None = None  # what trains it; None: see `open_model`
    language: str = LANGUAGE  # of BM25's terms, see `terms.languages`
    ignore_identical_ids: bool = False  # see `drop_identical_ids`
    metric: str | None = None  # that decides; None: nDCG@10
    test_passages: int | None = None  # see `Trial.n_passages`


NO_OPTIONS = Options()


def adapt(
    workdir: Path,
    corpus: str,
    model: str,
    data: Path | None = None,
    overrides: Sequence[str] = (),
    options: Options = NO_OPTIONS,
) -> Outcome:
    """Adapts a model to a corpus, and says whether that helped; resumes an earlier call.

    Args:
      workdir: the head of this file says what it will hold.
      corpus: see `sources.read_documents`.
      model: a folder or hub name; see `convert.from_torch.load_folder`.
      data: a folder of passages, queries and judgments of `test`; or queries alone, in a file or a
        folder; None: neither.
      overrides: of the settings that `propose_pretraining` returns.
      options: see `Options`.
    """
    language = options.language
    require_language(language)
    require_outside(Path(model), workdir)
    require_not_read(corpus, workdir)
    require_own(workdir / _STARTED, also=[_UNSTARTED])
    start = find_folder(model)
    vectors = read_representation(start, options.given)
    for network in network_folders(start):
        require_loadable(network)
    overrides = propose_scale(overrides, vectors)
    with linked_folder(start, vectors) as resolved:
        trainer, reading = open_model(resolved, options.backend)
        config = check_given(overrides, resolved, trainer, reading)
        original = load_as(start, vectors)
        require_same_reading(trainer, reading, resolved, original)
    overrides = propose_sizes(config, overrides, start, original.get_embedding_dimension() or 0)
    asked = None if data is None else check_trial(_trial_of(data, corpus, options))
    started = {
        "command": "adapt",
        "model": model_sha256(start),
        "corpus": corpus,
        "overrides": [*overrides],
        "given": options.given._asdict(),
        "backend": trainer.name,
        "language": language,
    }
    with lock_folder(workdir):
        write = partial(_write_store, corpus, start, vectors, config.data.length)
        store = _start_with_store(workdir, started, write)
        published = workdir / PUBLISHED / "model"
        make_once(workdir, published, write_resolved, start, vectors, pooled_size(original))
        training = propose_training(store, published, overrides, trainer, reading)
        trained, agreed = workdir / "model", workdir / "agreement.json"
        trial = None if asked is None else start_comparison(workdir / TEST, *asked)
        if not (trained.exists() and agreed.exists()):
            # Before any training: these fail where BM25 finds nothing.
            sample, lexical = sample_found(store, training.documents_H, language)
            if not trained.exists():
                _log_work(training)
                if trial is not None and asked is not None:
                    rank_by_bm25(workdir / TEST, trial)
                    _log_test(original, asked[1], trial.n_passages)
            pretraining = workdir / "pretraining"
            make_once(workdir, trained, trainer.train, training.config, pretraining)
            written = partial(written_texts, store, corpus)
            make_once(workdir, agreed, _choose, original, trained, sample, lexical, written)
        choice = read_choice(agreed)
        models = [RankedModel(PUBLISHED, published, training.config.model.sizes[1:])]
        if choice.alpha:
            adapted = workdir / ADAPTED / "model"
            make_once(workdir, adapted, _save_blend, original, trained, choice.alpha)
            seconds = seconds_of(workdir, [trained, agreed])
            models.append(RankedModel(ADAPTED, adapted, models[0].sizes, seconds))
        title = f"{model}, adapted to {corpus}"
        if trial is None or not trial.is_judged:
            return _leave_open(workdir, title, models, trial)
        compared = compare_models(workdir / TEST, trial, models, baselines=[PUBLISHED])
        return _conclude(workdir, title, compared)


def _start_with_store(
    workdir: Path, settings: Mapping[str, Any], write: Callable[[Path], None]
) -> TokenStore:
    """Starts the folder, or compares settings and corpus with its start; returns the store.

    The first call reads the corpus once, for the store, which knows its checksum.
    """
    first, folder, unstarted = (workdir / name for name in (_STARTED, _STORE, _UNSTARTED))
    shutil.rmtree(unstarted, ignore_errors=True)  # which a killed call left
    if first.exists():
        sha256 = documents_sha256(settings["corpus"])
    else:
        write(unstarted)
        (manifest,) = open_store(unstarted).manifests
        sha256 = manifest["documents_sha256"]
    now = {**settings, "corpus_sha256": sha256}
    start_or_compare(first, now, free=["corpus"], also=[_UNSTARTED])  # the corpus may move
    if unstarted.exists():
        unstarted.rename(folder)
    elif not folder.exists():
        write(folder)
    return open_store(folder)


def _write_store(
    corpus: str, start: Path, vectors: Representation, max_tokens: int, out: Path
) -> None:
    with linked_folder(start, vectors) as resolved:
        write_store(corpus, resolved, max_tokens, out)


def _trial_of(data: Path, corpus: str, options: Options) -> Trial:
    return Trial(
        data,
        metrics=with_first(options.metric),
        language=options.language,
        n_passages=options.test_passages,
        ignore_identical_ids=options.ignore_identical_ids,
        corpus=corpus if data.is_file() else None,
    )


def _log_work(training: Training) -> None:
    """Logs what training will read."""
    spec = training.experiment.batches
    logger.info(
        "adapt: %s documents; %s steps of %s pairs (%s), of up to %s tokens each",
        f"{training.store.n_documents:,}",
        f"{training.experiment.n_steps:,}",
        f"{spec.batch_size:,}",
        spec.example,
        spec.length,
    )


def _log_test(model: SentenceTransformer, survey: Survey, limit: int | None) -> None:
    """Logs what the test will encode, and how long that will take, judged by a sample of it."""
    n_passages = min(survey.n_passages, limit or survey.n_passages)
    start = time.perf_counter()
    encode_texts(model, survey.texts)
    seconds = (time.perf_counter() - start) * n_passages / len(survey.texts)
    logger.info(
        "adapt: then the test encodes %s passages with two models, about %s each",
        f"{n_passages:,}",
        tqdm.format_interval(seconds),
    )


def _save(model: SentenceTransformer, out: Path) -> None:
    with new_folder(out) as folder:
        model.save_pretrained(str(folder), create_model_card=False)


def _choose(
    original: SentenceTransformer,
    trained: Path,
    sample: Sample,
    lexical: Run,
    written: Callable[[Iterable[str]], Mapping[str, str]],
    out: Path,
) -> None:
    """Writes how much of the change to a model is kept.

    Also writes the queries on which it differs most from the model as published, to be judged.

    Args:
      original: the model as published.
      trained: the folder of what its training ended with.
      sample: what both search.
      lexical: what BM25 finds, see `sample_found`.
      written: returns the texts of passages as they are to be judged, by their names.
      out: the file.
    """
    decision = choose_alpha(original, load_retriever(trained), sample, lexical)
    to_judge = out.with_name(TO_JUDGE)
    if decision.choice.alpha and not to_judge.exists():
        passages, queries = decision.sample
        runs = [decision.published, decision.adapted, decision.lexical]
        runs += [fuse_runs([decision.lexical, run], FUSION) for run in runs[:2]]
        # Not the id of a passage: that would say that the query is this one.
        firsts = [
            {f"query-{query}": names for query, names in first_of(run, queries).items()}
            for run in runs
        ]
        texts = {**passages, **written(passages)}
        asked = {f"query-{query}": (text, texts[query]) for query, text in queries.items()}
        different = most_different(firsts[:2], N_QUERIES)
        chosen = {query: as_written(*asked[query]) for query in different}
        every = (Passage(name, "", text) for name, text in texts.items())
        write_to_judge(to_judge, every, chosen, firsts)
    write_choice(decision.choice, out)


def _save_blend(original: SentenceTransformer, trained: Path, alpha: float, out: Path) -> None:
    _save(blend(original, load_retriever(trained), alpha), out)


def _leave_open(
    workdir: Path, title: str, models: Sequence[RankedModel], trial: Trial | None
) -> Outcome:
    """Keeps the model as published, without judgments; says what to judge where it has changed.

    Args:
      workdir: of the adaptation.
      title: of the report.
      models: the published one and, where something of the change is kept, the adapted one.
      trial: by the queries of a log, if there is one.
    """
    if len(models) == 1:
        return _finish(workdir, title, "no difference | none of the change is kept", PUBLISHED)
    to_judge = workdir / TO_JUDGE
    if trial is None:
        return _finish(workdir, title, f"unknown | {describe_form(to_judge)}", PUBLISHED)
    differences = compare_unjudged(workdir / TEST, trial, models, to_judge)
    verdict = " | ".join(["unknown", describe_form(to_judge), *queries_note(trial)])
    outcome = _finish(workdir, title, verdict, PUBLISHED, changes=differences)
    return outcome._replace(table=differences.table)


def _conclude(workdir: Path, title: str, compared: Compared) -> Outcome:
    """Keeps the model that the verdict decides for."""
    verdict = judge(compared.rows)
    kept = ADAPTED if verdict.outcome == "helped" else PUBLISHED
    line = " | ".join([verdict.line(), *passages_note(compared)])
    changes = None
    if verdict.test is not None:
        changes = changes_between(compared, verdict.before, verdict.best)
    outcome = _finish(workdir, title, line, kept, compared.rows, changes)
    retriever = RankedModel(kept, workdir / "retriever")
    search = search_flags(workdir / TEST, compared, verdict.winner, retriever)
    return outcome._replace(table=comparison_table(compared.rows), search=search)


def _finish(
    workdir: Path,
    title: str,
    verdict: str,
    kept: str,
    rows: Sequence[ResultRow] = (),
    changes: Changes | Differences | None = None,
) -> Outcome:
    """Copies the model that is kept, and writes the report."""
    retriever, model = workdir / "retriever", workdir / kept / "model"
    if retriever.exists() and model_sha256(retriever) != model_sha256(model):
        logger.info("adapt: %s becomes that of the new verdict", retriever)
        shutil.rmtree(retriever)
    make_once(workdir, retriever, _copy, model)
    summary = f"VERDICT: {verdict} | retriever/ is {kept}"
    workdirs = {ADAPTED: workdir / "pretraining"}
    write_report(workdir / "report.html", title, summary, workdirs, rows, changes)
    return Outcome([], summary, [])


def _copy(folder: Path, out: Path) -> None:
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)
