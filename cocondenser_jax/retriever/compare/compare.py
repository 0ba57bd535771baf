"""Compares published models, alone and fused with BM25, on the user's queries.

Every ranking is tested against the best one. Without judgments, a form for the queries on which the
rankings differ most is written instead. `comparison.py` describes the folder, which here also
contains report.html and the form, to_judge/.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.runs import lock_folder
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model_folder.folder import ModelFolder, require_outside
from cocondenser_jax.model_folder.hub import require_place
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.compare.comparison import (
    BM25,
    Outcome,
    changes_between,
    compare_models,
    rank_by_all,
    search_flags,
)
from cocondenser_jax.retriever.compare.differences import (
    Differences,
    find_differences,
    most_different,
)
from cocondenser_jax.retriever.compare.judging import (
    N_QUERIES,
    TO_JUDGE,
    describe_form,
    write_to_judge,
)
from cocondenser_jax.retriever.compare.rankings import (
    Ranking,
    comparison_table,
    find_lead,
    first_of,
)
from cocondenser_jax.retriever.compare.report import write_report
from cocondenser_jax.retriever.compare.trial import (
    Trial,
    check_trial,
    queries_note,
    start_comparison,
    survey_trial,
)
from cocondenser_jax.retriever.data.folder import read_corpus, read_queries
from cocondenser_jax.retriever.data.trec import read_run


def compare(workdir: Path, trial: Trial, models: Sequence[str]) -> Outcome:
    """Compares BM25 and published models, alone and fused; resumes an earlier call.

    Args:
      workdir: the folder described in `comparison`.
      trial: passages, queries, judgments if there are any, and metrics.
      models: folders or names on the Hub.
    """
    require_not_read(trial.passages, workdir)
    named = name_models(models)
    for each in models:
        require_place(each)
    trial = check_trial(trial)
    opened = {name: open_model(model) for name, model in named.items()}
    from cocondenser_jax.model_folder.library import require_loadable  # slow to import

    for model in opened.values():
        require_outside(model.path, workdir)
        for network in model.networks.values():
            require_loadable(network)
    trial = survey_trial(trial)  # last, since it reads all passages
    title, page = f"{', '.join(opened)} on {trial.data}", workdir / "report.html"
    with lock_folder(workdir):
        started = start_comparison(workdir, trial)
        if not trial.is_judged:
            differences = _compare_unjudged(workdir, started, opened)
            form = describe_form(workdir / TO_JUDGE)
            summary = " | ".join(["BEST: unknown", form, *queries_note(started)])
            write_report(page, title, summary, {}, changes=differences)
            return Outcome(differences.table, summary, [])
        rankings = compare_models(workdir, started, opened)
        best, rival = find_rival(rankings)
        lead = find_lead(rankings, best, rival)
        winner = best.name if lead.is_decided else "undecided"
        summary = f"BEST: {winner} | {lead.line()}"
        changes = changes_between(started, rival, best)
        table = comparison_table(rankings)
        write_report(page, title, lead.sentence(), {}, table, changes)
    search = search_flags(workdir, started, best, named.get(best.model, ""))
    return Outcome(table, summary, search)


def _compare_unjudged(
    workdir: Path, trial: Trial, models: Mapping[str, ModelFolder]
) -> Differences:
    """Ranks by all models, and writes a form for the queries on which the rankings differ most."""
    queries = read_queries(trial.data)
    rankings = [
        each._replace(first=first_of(read_run(each.run), queries))
        for each in rank_by_all(workdir, trial, models)
    ]
    firsts = [each.first for each in rankings]
    chosen = {query: queries[query] for query in most_different(firsts, N_QUERIES)}
    write_to_judge(workdir / TO_JUDGE, read_corpus(trial.passages), chosen, firsts)
    differences = find_differences(rankings, queries, chosen, trial.passages)
    names = [each.name for each in rankings]
    records = [
        {
            "name": each.name,
            "in_common": dict(zip(names, shares, strict=True)),
            "vectors": each.vectors,
            "seconds": each.seconds,
        }
        for each, shares in zip(rankings, differences.in_common, strict=True)
    ]
    write_json(workdir / "results.json", records)
    return differences


def name_models(models: Sequence[str]) -> dict[str, str]:
    """Names models by the shortest distinct ends of their paths; returns name → model.

    The names of their rankings are distinct, too, even if a model's folder is called BM25.
    """
    if not models:
        raise UserError("expected a model to compare with BM25")
    parts = [
        Path(model).resolve().parts if Path(model).is_dir() else Path(model).parts
        for model in models
    ]
    for n_parts in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-n_parts:]).strip("/") for each in parts]
        rankings = {BM25, *names, *(f"{name} + {BM25}" for name in names)}
        if len(rankings) == 1 + 2 * len(names):
            return dict(zip(names, models, strict=True))
    twice = [model for model in models if models.count(model) > 1]
    raise UserError(f"a model is given twice: {first_three(twice or [*models])}")


def find_rival(rankings: Sequence[Ranking]) -> tuple[Ranking, Ranking]:
    """Returns the best ranking, and the best ranking of another model (or BM25)."""
    (best,) = [each for each in rankings if not each.tests]
    others = [each for each in rankings if each.model != best.model]
    return best, max(others, key=lambda each: each.score)
