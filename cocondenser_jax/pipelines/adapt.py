"""Trains a sentence-transformers model on a corpus, and compares it with the published model.

Training uses the model's own pooling and similarity, on pairs of texts from the corpus. The adapted
model replaces the published one only if judgments show an improvement.

    DIR/started.json  the model, the corpus and the settings
    DIR/published/    the published model, with all known and given settings in its files
    DIR/store/        the token store
    DIR/pretraining/  the workdir of pre-training
    DIR/adapted/      the adapted model
    DIR/test/         the comparison of both models (`comparison.py`)
    DIR/report.html
    DIR/retriever/    the result: a copy of one of the two models

Existing parts are not made again, so the same command resumes. Judgments may be added later.
"""

import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cocondenser_jax.corpus.build import build_store, require_spans
from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.corpus.sources import documents_sha256, require_source
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import lock_folder, require_own, start_or_compare
from cocondenser_jax.files.steps import make_once, seconds_of
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.model_folder.folder import require_outside
from cocondenser_jax.model_folder.hub import require_place
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import NOTHING_GIVEN, Given
from cocondenser_jax.retriever.compare.changes import Changes
from cocondenser_jax.retriever.compare.comparison import (
    Outcome,
    changes_between,
    compare_models,
    rank_by_bm25,
    search_flags,
)
from cocondenser_jax.retriever.compare.rankings import (
    Lead,
    Ranking,
    comparison_table,
    find_lead,
    with_tests,
)
from cocondenser_jax.retriever.compare.report import write_report
from cocondenser_jax.retriever.compare.trial import (
    Trial,
    check_trial,
    start_comparison,
    survey_trial,
)

logger = logging.getLogger(__name__)

_UNJUDGED = (
    "no judgments, so the published model stays (`cocondenser compare --model={published}"
    " --model={adapted}` says what to judge)"
)
TEST = "test"
PUBLISHED = "published"  # the model before training
ADAPTED = "adapted"  # the model after training
HELPED = "helped"


def adapt(
    workdir: Path,
    corpus: str,
    model: str,
    trial: Trial | None = None,
    overrides: Sequence[str] = (),
    given: Given = NOTHING_GIVEN,
) -> Outcome:
    """Adapts a model to a corpus and tests whether that helped; resumes an earlier call.

    Args:
      workdir: the output folder, described at the top of this file.
      corpus: see `sources.read_documents`.
      model: a folder or a name on the Hub; see `convert.from_torch.load_folder`.
      trial: passages, queries and judgments for the test; None: keep the published model.
      overrides: changes of the settings in configs/adapt.py.
      given: the user's settings of the model's vectors, which override its folder's.

    Returns:
      The rankings' table, the verdict, and flags for a search with the best ranking.

    Raises:
      UserError: also for a model that JAX would train differently than it is used in search.
    """
    _require_places(workdir, corpus, model)
    trial = None if trial is None else _check_judged(trial)
    # These load JAX and PyTorch; errors above are reported without that delay.
    from cocondenser_jax.convert.resolve import resolve_model
    from cocondenser_jax.pipelines import proposal
    from cocondenser_jax.pipelines.pretraining import pretrain_model
    from cocondenser_jax.pretrain.devices import prepare_libtpu, require_devices

    prepare_libtpu()
    require_devices()
    start = open_model(model, given)
    vectors = start.representation
    shape, tokenizer = proposal.require_trainable(start)
    longest = shape.longest_text
    config = proposal.settings_for(proposal.propose(), overrides, vectors, longest)
    proposal.require_fitting(config, shape, tokenizer)
    require_spans(corpus, tokenizer, config.data.length)
    asked = None if trial is None else survey_trial(trial)  # last: it reads all passages
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
    with lock_folder(workdir):
        start_or_compare(workdir / "started.json", started, free=["corpus"])  # it may be moved
        make_once(workdir, published, resolve_model, start)
        write_store = partial(build_store, max_length=config.data.length)
        make_once(workdir, store, write_store, corpus, published)
        begun = None if asked is None else start_comparison(workdir / TEST, asked)
        if begun is not None:
            rank_by_bm25(workdir / TEST, begun)  # before training, since it may find nothing
        if not adapted.exists():
            config = proposal.settings_to_train(store, published, overrides, vectors, longest)
            make_once(workdir, adapted, pretrain_model, config, workdir / "pretraining")
        if begun is None:
            unknown = _UNJUDGED.format(published=published, adapted=adapted)
            return Outcome([], _keep(workdir, title, "unknown", unknown), [])
        models = {name: open_model(workdir / name) for name in (PUBLISHED, ADAPTED)}
        trained = {ADAPTED: seconds_of(workdir, [adapted])}
        rankings = compare_models(workdir / TEST, begun, models, [PUBLISHED], trained)
        return _conclude(workdir, title, begun, rankings)


def _require_places(workdir: Path, corpus: str, model: str) -> None:
    """Raises a UserError for places that cannot be read or written; reads none of their files."""
    require_outside(Path(model), workdir)
    require_not_read(corpus, workdir)
    require_own(workdir / "started.json")
    require_source(corpus)
    require_place(model)


def _check_judged(trial: Trial) -> Trial:
    """Calls `check_trial`; raises a UserError without judgments."""
    checked = check_trial(trial)
    if not checked.is_judged:
        raise UserError(
            f"{trial.data} has no judgments to test by: leave --data out, and compare the two"
            " models with `cocondenser compare`, which says what to judge"
        )
    return checked


def _conclude(workdir: Path, title: str, trial: Trial, rankings: Sequence[Ranking]) -> Outcome:
    """Keeps the adapted model if its best ranking beats the best one without it.

    It is not kept if its ranking, alone or fused, loses against that of the published model, since
    users search in both ways.
    """
    (before,) = [each for each in rankings if not each.tests]
    after = max((each for each in rankings if each.model == ADAPTED), key=lambda each: each.score)
    lead = find_lead(rankings, after, before)
    verdict = HELPED if lead.test["difference"] > 0 and lead.is_decided else "undecided"
    if harm := find_harm(rankings):
        verdict, lead = "harmed", harm
    changes = changes_between(trial, lead.other, lead.one)
    table = comparison_table(rankings)
    summary = _keep(workdir, title, verdict, lead.line(), table, changes)
    winner = after if verdict == HELPED else before
    search = search_flags(workdir / TEST, trial, winner, str(workdir / "retriever"))
    return Outcome(table, summary, search)


def find_harm(rankings: Sequence[Ranking]) -> Lead | None:
    """Returns the adapted model's most significant loss, alone or fused; None if none has p < 0.05.

    Each ranking is tested against the published model's ranking of the same kind; p is corrected
    for these tests (Holm).
    """
    published = {each.is_fused: each for each in rankings if each.model == PUBLISHED}
    tested = []
    for each in rankings:
        if each.model == ADAPTED:
            own = published[each.is_fused]
            tested += with_tests([own, each], [own.name])[1:]
    leads = [find_lead(tested, each, published[each.is_fused]) for each in tested]
    losses = [lead for lead in leads if lead.test["difference"] < 0 and lead.is_decided]
    return min(losses, key=lambda lead: lead.p, default=None)


def _keep(
    workdir: Path,
    title: str,
    verdict: str,
    figures: str,
    table: Sequence[Sequence[str]] = (),
    changes: Changes | None = None,
) -> str:
    """Copies the winning model and writes the report; returns the summary."""
    kept = ADAPTED if verdict == HELPED else PUBLISHED
    retriever, model = workdir / "retriever", workdir / kept
    if retriever.exists() and open_model(retriever).sha256() != open_model(model).sha256():
        logger.info("adapt: replacing %s, since the verdict has changed", retriever)
        shutil.rmtree(retriever)
    make_once(workdir, retriever, _copy, model)
    summary = f"VERDICT: {verdict} | {figures} | retriever/ is {kept}"
    workdirs = {ADAPTED: workdir / "pretraining"}
    write_report(workdir / "report.html", title, summary, workdirs, table, changes)
    return summary


def _copy(folder: Path, out: Path) -> None:
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)
