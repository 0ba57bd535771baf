"""The command that computes metrics."""

from functools import partial
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import IGNORE_IDENTICAL_IDS, JSON_OUT, command, flag, required
from cocondenser_jax.cli.output import print_metrics, print_table
from cocondenser_jax.storage.files import write_json

# What is shown of a comparison: its key, the head of its column, and how a value is formatted.
_COLUMNS = {
    "mean": ("run", ".4f"),
    "other_mean": ("other", ".4f"),
    "difference": ("difference", "+.4f"),
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
    flag("--metrics", "MRR@10,Recall@100,nDCG@10", "metrics, separated by commas"),
    flag("--compare_with", Path, "another TREC run: compare both by two paired tests"),
    IGNORE_IDENTICAL_IDS,
    JSON_OUT,
)
def evaluate(run, qrels, metrics, compare_with, ignore_identical_ids, json_out):
    """Compute the metrics of a run from relevance judgments."""
    from cocondenser_jax.collection.trec import read_qrels, read_run
    from cocondenser_jax.evaluation.ranking import evaluate_run, parse_metric, require_results
    from cocondenser_jax.evaluation.significance import compare, format_p

    names = [name.strip() for name in metrics.split(",")]
    for name in names:
        parse_metric(name)  # a mistake need not wait for the runs
    judgments = read_qrels(qrels)
    evaluate_it = partial(evaluate_run, ignore_identical_ids=ignore_identical_ids)
    own_run = read_run(run)
    if compare_with is not None:
        other_run = read_run(compare_with)
        for file, each in ((run, own_run), (compare_with, other_run)):
            require_results(each, judgments, file)
    result: dict[str, Any] = {**evaluate_it(judgments, own_run, names)}
    if compare_with is None:
        print_metrics(result["mean"], None)
    else:
        other = evaluate_it(judgments, other_run, names)
        result["compared_with"] = other
        result["comparisons"] = compare(result["per_query"], other["per_query"])
        rows = []
        for name, tests in result["comparisons"].items():
            values = tests | {"randomization_p": format_p(tests["randomization_p"])}
            cells = [format(values[key], form) for key, (_, form) in _COLUMNS.items()]
            rows.append([name, *cells])
        print_table(["", *(head for head, _ in _COLUMNS.values())], rows)
    if json_out:
        write_json(json_out, result)
