"""A sentence-transformers model trained on a corpus, and compared with the model as published.

The model's own vector is trained, with its own pooling and similarity, on pairs of texts that the
corpus holds. The published model is replaced only where judgments show that this helped.

    DIR/started.json  the model, the corpus and the settings
    DIR/published/    the model, with all that was given or is known of it written down
    DIR/store/        the token store
    DIR/pretraining/  the workdir of pre-training
    DIR/adapted/      what it ended with
    DIR/test/         the comparison of the two (`comparison.py`)
    DIR/report.html
    DIR/retriever/    the result: a copy of one of the two models

What exists is not made again, so the same command resumes. Judgments may be given later.
"""

import logging
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from cocondenser_jax.configs.adapt import fit
from cocondenser_jax.convert.from_torch import load_vectors, read_shape
from cocondenser_jax.convert.resolve import resolve_model
from cocondenser_jax.corpus.batches import require_room
from cocondenser_jax.corpus.build import require_spans
from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.corpus.same_tokens import require_same_tokens
from cocondenser_jax.corpus.sources import documents_sha256
from cocondenser_jax.corpus.spans import STARTS_SENTENCE
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.corpus.tokenizer import SpanTokenizer, load_tokenizer
from cocondenser_jax.declare import AUTO
from cocondenser_jax.errors import UnsupportedError, UserError
from cocondenser_jax.files.runs import lock_folder, require_own, start_or_compare
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.flax_encoder import compare_with_flax
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import require_outside
from cocondenser_jax.model_folder.model import ModelFolder, open_model
from cocondenser_jax.pipelines.pretraining import pretrain_model
from cocondenser_jax.pretrain.devices import count_devices
from cocondenser_jax.pretrain.experiment import reading_as, resolve_without_store
from cocondenser_jax.pretrain.step import check_batch
from cocondenser_jax.representation import (
    NOTHING_GIVEN,
    Given,
    Representation,
    passage_prompt,
    query_prompt,
)
from cocondenser_jax.retriever.compare.changes import Changes
from cocondenser_jax.retriever.compare.comparison import (
    Compared,
    Outcome,
    RankedModel,
    changes_between,
    compare_models,
    passages_note,
    rank_by_bm25,
    search_flags,
)
from cocondenser_jax.retriever.compare.report import ResultRow, comparison_table, write_report
from cocondenser_jax.retriever.compare.steps import make_once, seconds_of, write_store
from cocondenser_jax.retriever.compare.trial import Trial, check_trial, start_comparison
from cocondenser_jax.retriever.compare.verdict import ADAPTED, PUBLISHED, judge
from cocondenser_jax.retriever.data.folder import Survey
from cocondenser_jax.retriever.search.models import load, towers
from cocondenser_jax.settings import override

logger = logging.getLogger(__name__)

# What trains a model that the Flax network does not compute.
_INSTEAD = "sentence-transformers' own trainer, SentenceTransformerTrainer, trains such models"
_UNJUDGED = (
    "no judgments, so the published model stays (`cocondenser compare --model={published}"
    " --model={adapted}` says what to judge)"
)
TEST = "test"
_MANY_SPANS = 1 << 40  # of a corpus that is not read yet
_SPANS_LOOKED_AT = 1_000
_SET_HERE = ("config.data.store", "config.warm_start")


def adapt(
    workdir: Path,
    corpus: str,
    model: str,
    trial: Trial | None = None,
    overrides: Sequence[str] = (),
    given: Given = NOTHING_GIVEN,
) -> Outcome:
    """Adapts a model to a corpus, and says whether that helped; resumes an earlier call.

    Args:
      workdir: the head of this file says what it will hold.
      corpus: see `sources.read_documents`.
      model: a folder or hub name; see `convert.from_torch.load_folder`.
      trial: passages, queries and judgments to test by; None: the published model stays.
      overrides: of the settings of configs/adapt.py.
      given: what is said of the model's vectors in place of what its folder says.
    """
    require_outside(Path(model), workdir)
    require_not_read(corpus, workdir)
    require_own(workdir / "started.json")
    start = open_model(model, given)
    vectors = start.representation
    shape, tokenizer = require_trainable(start)
    config = _settings(_propose(_MANY_SPANS), overrides, vectors, shape.longest_text)
    _check(config, shape, tokenizer)
    asked = None if trial is None else _check_judged(trial)
    require_spans(corpus, tokenizer, config.data.length)
    started = {
        "command": "adapt",
        "model": start.sha256(),
        "corpus": corpus,
        "corpus_sha256": documents_sha256(corpus),
        "overrides": [*overrides],
        "given": given._asdict(),
    }
    published, adapted, store = (workdir / name for name in (PUBLISHED, ADAPTED, "store"))
    title = f"{model}, adapted to {corpus}"
    length = config.data.length
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", started, free=["corpus"])  # which may move
        make_once(workdir, published, resolve_model, start)
        make_once(workdir, store, write_store, corpus, published, length)
        begun = None if asked is None else start_comparison(workdir / TEST, *asked)
        if begun is not None:
            rank_by_bm25(workdir / TEST, begun)  # before any training: it may find nothing
        if not adapted.exists():
            proposed = _propose_for(open_store(store))
            config = _settings(proposed, overrides, vectors, shape.longest_text)
            with config.unlocked():
                config.data.store, config.warm_start = str(store), str(published)
            make_once(workdir, adapted, pretrain_model, config, workdir / "pretraining")
        if begun is None:
            verdict = f"unknown | {_UNJUDGED.format(published=published, adapted=adapted)}"
            return Outcome([], _keep(workdir, title, verdict, PUBLISHED), [])
        models = [
            RankedModel(PUBLISHED, open_model(published)),
            RankedModel(ADAPTED, open_model(adapted), seconds_of(workdir, [adapted])),
        ]
        compared = compare_models(workdir / TEST, begun, models, baselines=[PUBLISHED])
        return _conclude(workdir, title, compared)


def require_trainable(start: ModelFolder) -> tuple[ModelConfig, SpanTokenizer]:
    """Returns the shape and tokenizer of a model that JAX trains as it is searched with.

    Raises:
      UserError: for any other, before it is trained. The tokens and vectors of a few texts are
        compared, and how many tokens are read of a text.
    """
    try:
        shape = read_shape(start)
    except UnsupportedError as error:
        raise UserError(f"{start.path}: {error.reason} ({_INSTEAD})") from error
    served = load(start)
    folder = start.network.path
    tokenizer = load_tokenizer(str(folder))
    shape.require_tokenizer(folder, tokenizer.vocab_size, tokenizer.pad_id)
    (tower,) = towers(served).values()
    limit = tower.max_seq_length
    if limit is not None and shape.longest_text > limit:
        raise UserError(
            f"{start.path} reads {limit} tokens of a text, but would be trained on"
            f" {shape.longest_text}: expected the same in all of its files"
        )

    def search(text: str) -> list[int]:
        ids: list[int] = tower.preprocess([text])["input_ids"][0].tolist()
        return ids

    prompts = dict(shape.representation.prompts)
    every = sorted({"", query_prompt(prompts), passage_prompt(prompts)})
    require_same_tokens(start.path, tokenizer, search, every, shape.longest_text)
    compare_with_flax(start.path, served, tower.tokenizer, *load_vectors(start))
    return shape, tokenizer


def _settings(
    proposed: ConfigDict, overrides: Sequence[str], vectors: Representation, longest: int
) -> ConfigDict:
    """Returns proposed settings that fit a model, changed as given; what is given stays.

    Args:
      proposed: of `fit`.
      overrides: those given.
      vectors: of the model: training multiplies scores by the scale that is known of it.
      longest: tokens that the model reads of a text.
    """
    for word in overrides:
        name = word.removeprefix("--").partition("=")[0]
        if name in _SET_HERE:
            raise UserError(f"{name} cannot be given: `adapt` sets it")
    with proposed.unlocked():
        proposed.data.length = min(proposed.data.length, longest)
        proposed.model.scale = vectors.scale
    config = override(proposed, overrides)
    if config.train.chunk_size == AUTO:
        return config
    n_rows = resolve_without_store(config, 1, 1, 0).batches.n_rows // count_devices()
    with config.unlocked():
        config.train.chunk_size = math.gcd(n_rows, config.train.chunk_size)
    return override(config, overrides)


def _check(config: ConfigDict, shape: ModelConfig, tokenizer: SpanTokenizer) -> None:
    """Raises a UserError for settings that do not fit each other or the model, without a store."""
    experiment = reading_as(resolve_without_store(config, 1, 1, 0), shape.representation)
    loss, n_devices = experiment.step.loss, count_devices()
    check_batch(
        experiment.batches, loss.chunk_size, shape.longest_text, n_devices, loss.kept_chunks
    )
    require_room(experiment.batches, tokenizer)


def _check_judged(trial: Trial) -> tuple[Trial, Survey]:
    """Returns what `check_trial` does; raises a UserError where nothing is judged."""
    checked, survey = check_trial(trial)
    if not checked.is_judged:
        raise UserError(
            f"{trial.data} has no judgments to test by: leave --data out, and compare the two"
            " models with `cocondenser compare`, which says what to judge"
        )
    return checked, survey


def _propose(n_spans: int) -> ConfigDict:
    return fit(n_spans, count_devices(), on_cpu=jax.default_backend() == "cpu")


def _propose_for(store: TokenStore) -> ConfigDict:
    """Returns the settings for a store: pairs are crops where most spans are one sentence."""
    proposed = _propose(store.n_spans)
    spans_N = np.linspace(0, store.n_spans - 1, min(store.n_spans, _SPANS_LOOKED_AT)).astype(int)
    _, starts_NxL, _ = store.read_spans(spans_N, store.max_length - 2)
    has_several_N = (starts_NxL == STARTS_SENTENCE).sum(axis=1) >= 2
    with proposed.unlocked():
        proposed.data.pairs = "sentence" if has_several_N.mean() >= 0.5 else "crops"
    return proposed


def _conclude(workdir: Path, title: str, compared: Compared) -> Outcome:
    """Keeps the model that the verdict decides for."""
    verdict = judge(compared)
    kept = ADAPTED if verdict.outcome == "helped" else PUBLISHED
    line = " | ".join([verdict.line(), *passages_note(compared)])
    changes = changes_between(compared, verdict.before, verdict.after)
    summary = _keep(workdir, title, line, kept, compared.rows, changes)
    retriever = RankedModel(kept, open_model(workdir / "retriever"))
    search = search_flags(workdir / TEST, compared, verdict.winner, retriever)
    return Outcome(comparison_table(compared.rows), summary, search)


def _keep(
    workdir: Path,
    title: str,
    verdict: str,
    kept: str,
    rows: Sequence[ResultRow] = (),
    changes: Changes | None = None,
) -> str:
    """Copies the model that is kept, and writes the report; returns its summary."""
    retriever, model = workdir / "retriever", workdir / kept
    if retriever.exists() and open_model(retriever).sha256() != open_model(model).sha256():
        logger.info("adapt: %s becomes that of the new verdict", retriever)
        shutil.rmtree(retriever)
    make_once(workdir, retriever, _copy, model)
    summary = f"VERDICT: {verdict} | retriever/ is {kept}"
    workdirs = {ADAPTED: workdir / "pretraining"}
    write_report(workdir / "report.html", title, summary, workdirs, rows, changes)
    return summary


def _copy(folder: Path, out: Path) -> None:
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)
