"""The command that computes metrics."""

from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import JSON_OUT, command, flag, required
from cocondenser_jax.cli.output import print_metrics, print_table
from cocondenser_jax.storage.files import write_json


@command(
    "evaluate --run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    required("--run", Path, "TREC run"),
    required("--qrels", Path, "TREC or BEIR judgments"),
    flag("--metrics", "MRR@10,Recall@100,nDCG@10", "metrics, separated by commas"),
    flag("--compare_with", Path, "another TREC run: compare both by two paired tests"),
    JSON_OUT,
)
def evaluate(run, qrels, metrics, compare_with, json_out):
    """Compute the metrics of a run from relevance judgments."""
    from cocondenser_jax.collection.trec import read_qrels, read_run
    from cocondenser_jax.evaluation.ranking import evaluate_run
    from cocondenser_jax.evaluation.significance import compare, format_p

    names = [name.strip() for name in metrics.split(",")]
    judgments = read_qrels(qrels)
    result: dict[str, Any] = {**evaluate_run(judgments, read_run(run), names)}
    if compare_with is None:
        print_metrics(result["mean"], None)
    else:
        other = evaluate_run(judgments, read_run(compare_with), names)
        result["compared_with"] = other
        result["comparisons"] = compare(result["per_query"], other["per_query"])
        head = "|run|other|difference|p (t-test)|p (randomization)|better|worse|equal".split("|")
        forms = (".4f", ".4f", "+.4f", ".3g", "", ",", ",", ",")
        rows = []
        for name, row in result["comparisons"].items():
            shown = row | {"randomization_p": format_p(row["randomization_p"])}
            rows.append((name, *map(format, shown.values(), forms)))
        print_table(head, rows)
    if json_out:
        write_json(json_out, result)
