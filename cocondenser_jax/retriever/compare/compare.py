"""Which model, and fused with BM25 or not: published models on one's own queries, untrained.

Every ranking is tested against the best one. Where nothing is judged, the queries on which the
rankings differ most are written, to be judged. `comparison.py` says what the folder holds; here it
also has report.html and, of the latter, to_judge/.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.corpus.folders import require_not_read
from cocondenser_jax.errors import UserError, first_three
from cocondenser_jax.files.runs import lock_folder
from cocondenser_jax.model_folder.folder import require_outside
from cocondenser_jax.model_folder.hub import require_place
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.compare.comparison import (
    BM25,
    Outcome,
    RankedModel,
    changes_between,
    compare_models,
    passages_note,
    ranking_name,
    search_flags,
)
from cocondenser_jax.retriever.compare.judging import TO_JUDGE, describe_form
from cocondenser_jax.retriever.compare.report import (
    ResultRow,
    comparison_table,
    corrected_p,
    write_report,
)
from cocondenser_jax.retriever.compare.trial import (
    Trial,
    check_trial,
    queries_note,
    start_comparison,
)
from cocondenser_jax.retriever.compare.unjudged import compare_unjudged
from cocondenser_jax.retriever.compare.verdict import describe_difference, describe_power
from cocondenser_jax.retriever.data.significance import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    format_interval,
    format_p,
    swap,
)


def compare(workdir: Path, trial: Trial, models: Sequence[str]) -> Outcome:
    """Compares BM25 and models as they are published, alone and fused; resumes an earlier call.

    Args:
      workdir: see `comparison`.
      trial: the texts and, where there are some, the judgments, and what is computed.
      models: folders or hub names.
    """
    require_not_read(trial.passages, workdir)
    named = name_models(models)
    for each in models:
        require_place(each)
    trial, survey = check_trial(trial)
    ranked = [RankedModel(name, open_model(model)) for name, model in named.items()]
    from cocondenser_jax.model_folder.library import require_loadable  # slow to import

    for _, model, *_ in ranked:
        require_outside(model.path, workdir)
        for network in model.networks.values():
            require_loadable(network.path, network.config)
    title = f"{', '.join(model.name for model in ranked)} on {trial.data}"
    with lock_folder(workdir):
        started = start_comparison(workdir, trial, survey)
        if not trial.is_judged:
            differences = compare_unjudged(workdir, started, ranked, workdir / TO_JUDGE)
            form = describe_form(workdir / TO_JUDGE)
            summary = " | ".join(["BEST: unknown", form, *queries_note(started)])
            write_report(workdir / "report.html", title, summary, {}, changes=differences)
            return Outcome(differences.table, summary, [])
        compared = compare_models(workdir, started, ranked)
        best, rival = find_rival(compared.rows)
        lead = find_lead(compared.rows, best, rival)
        summary = " | ".join([describe_lead(lead), *passages_note(compared)])
        changes = changes_between(compared, rival.name, best.name)
        sentence = ", ".join([lead_sentence(lead), *passages_note(compared)])
        write_report(workdir / "report.html", title, sentence, {}, compared.rows, changes)
    winner = next((model for model in ranked if model.name == best.model), None)
    table = comparison_table(compared.rows)
    return Outcome(table, summary, search_flags(workdir, compared, best.name, winner))


def name_models(models: Sequence[str]) -> dict[str, str]:
    """Names models by the ends of their paths, as short as they differ; returns name → model.

    The names of their rankings differ too, also where a model's folder is called BM25.
    """
    if not models:
        raise UserError("expected a model to compare with BM25")
    parts = [
        Path(model).resolve().parts if Path(model).is_dir() else Path(model).parts
        for model in models
    ]
    for n_parts in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-n_parts:]).strip("/") for each in parts]
        rankings = [ranking_name(name, is_fused) for name in names for is_fused in (False, True)]
        if len({BM25, *rankings}) == 1 + len(rankings):
            return dict(zip(names, models, strict=True))
    twice = [model for model in models if models.count(model) > 1]
    raise UserError(f"a model is given twice: {first_three(twice or [*models])}")


def find_rival(rows: Sequence[ResultRow]) -> tuple[ResultRow, ResultRow]:
    """Returns the best row, against which all are tested, and the best one by other vectors."""
    (best,) = [row for row in rows if not row.tests]
    metric = next(iter(best.metrics))
    others = [row for row in rows if row.model != best.model]
    return best, max(others, key=lambda row: row.metrics[metric])


class Lead(NamedTuple):
    """The best row beside its rival."""

    best: str
    rival: str
    metric: str
    test: Comparison  # seen from the best
    p: str  # corrected for the number of rows
    power: str  # which differences the queries show, where p decides nothing


def find_lead(rows: Sequence[ResultRow], best: ResultRow, rival: ResultRow) -> Lead:
    """Returns what the test of the best row says against its rival."""
    metric = next(iter(best.metrics))
    test = swap(rival.tests[metric])
    p_values = corrected_p(rows)
    p = p_values[rival.name]
    power = "" if p < SIGNIFICANCE_LEVEL else describe_power(test)
    return Lead(best.name, rival.name, metric, test, format_p(p, len(p_values)), power)


def lead_sentence(lead: Lead) -> str:
    """Returns a lead as the sentence of a page."""
    test = lead.test
    undecided = f"; {lead.power}" if lead.power else ""
    return (
        f"{lead.best} has the highest {lead.metric}, {test['mean']:.3f}; {lead.rival} has"
        f" {test['other_mean']:.3f}: difference {test['difference']:+.3f} (95 %:"
        f" {format_interval(test['interval'])}), p {lead.p}{undecided}"
    )


def describe_lead(lead: Lead) -> str:
    """Returns a lead as the line that is printed."""
    test = lead.test
    figures = [
        f"BEST: {'undecided' if lead.power else lead.best}",
        lead.metric,
        f"{lead.best} {test['mean']:.4f}, {lead.rival} {test['other_mean']:.4f}",
        describe_difference(test),
        f"p {lead.p}",
    ]
    return " | ".join([*figures, lead.power] if lead.power else figures)
