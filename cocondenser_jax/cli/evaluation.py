"""The command that computes metrics."""

from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    DATA,
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
    OUTPUT_FILE,
    command,
    flag,
    required,
)
from cocondenser_jax.cli.output import print_metrics, print_table, print_text
from cocondenser_jax.files.whole import write_json

# Columns of a comparison: key, header, and format of values.
_COLUMNS = {
    "mean": ("run", ".4f"),
    "other_mean": ("other", ".4f"),
    "difference": ("difference", "+.4f"),
    "interval": ("95 %", ""),
    "t_test_p": ("p (t-test)", ".3g"),
    "randomization_p": ("p (randomization)", ""),
    "better": ("better", ","),
    "worse": ("worse", ","),
    "equal": ("equal", ","),
}


@command(
    "evaluate --run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    required("--run", Path, "TREC run"),
    required("--qrels", Path, "TREC or BEIR judgments"),
    flag(
        "--metric",
        "MRR@10,Recall@100,nDCG@10",
        "one, or several separated by commas",
        formerly="metrics",
    ),
    flag("--compare_with", Path, "another TREC run: compare both by two paired tests"),
    flag(
        "--data",
        DATA,
        "folder of queries and passages, for a report on queries that gain and lose",
        goes_with="compare_with",
    ),
    flag(
        "--report",
        OUTPUT_FILE,
        "HTML file to write, with that report",
        default="report.html",
        goes_with="data",
    ),
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
)
def evaluate(run, qrels, metric, compare_with, data, report, ignore_identical_ids, json_out):
    """Compute the metrics of a run from relevance judgments."""
    from cocondenser_jax.retriever.compare.changes import Judged
    from cocondenser_jax.retriever.compare.rankings import Ranking, measure
    from cocondenser_jax.retriever.data.folder import read_queries, read_texts, require_known
    from cocondenser_jax.retriever.data.identical_ids import finds_itself, warn_of_identical_ids
    from cocondenser_jax.retriever.data.ranking import metric_name, parse_metric, require_results
    from cocondenser_jax.retriever.data.same_text import warn_of_copies
    from cocondenser_jax.retriever.data.significance import compare, format_interval, format_p
    from cocondenser_jax.retriever.data.trec import read_qrels, read_run

    if data:
        from cocondenser_jax.retriever.compare.report import write_changes
    names = [name.strip() for name in metric.split(",")]
    for name in names:  # finds errors before the runs are read
        parse_metric(name)
    judgments = read_qrels(qrels)
    runs = {path: read_run(path) for path in (run, compare_with) if path is not None}
    if compare_with is not None:
        for path, each in runs.items():
            require_results(each, judgments, path)

    rankings = {
        path: measure(
            Ranking(str(path), path),
            each,
            judgments,
            names,
            ignore_identical_ids=ignore_identical_ids,
        )
        for path, each in runs.items()
    }
    if not ignore_identical_ids:
        own = {str(path): finds_itself(each, judgments) for path, each in runs.items()}
        warn_of_identical_ids(own, judgments)
    after = rankings[run].metrics
    result: dict[str, Any] = {**after}
    if compare_with is None:
        print_metrics(result["mean"], None)
    else:
        before = rankings[compare_with].metrics
        result["compared_with"] = before
        result["comparisons"] = compare(after["per_query"], before["per_query"])
        rows = []
        for name, tests in result["comparisons"].items():
            values = tests | {
                "interval": format_interval(tests["interval"], digits=4),
                "randomization_p": format_p(tests["randomization_p"]),
            }
            cells = [format(values[key], form) for key, (_, form) in _COLUMNS.items()]
            rows.append([name, *cells])
        print_table(["", *(head for head, _ in _COLUMNS.values())], rows)
        if data:
            queries = read_queries(data)
            require_known(judgments, queries, "queries", qrels)
            judged = Judged(metric_name(names[0]), judgments, queries, data)
            old, new = rankings[compare_with], rankings[run]
            firsts = {each.name: each.first for each in (old, new)}
            warn_of_copies(firsts, judgments, lambda _: read_texts(data))
            test = result["comparisons"][judged.metric]
            write_changes(report, old, new, judged, test)
            print_text(f"report: {report}")
    if json_out:
        write_json(json_out, result)
