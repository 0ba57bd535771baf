"""Commands that compute metrics: `evaluate run` and `evaluate answers`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import JSON_OUT, command, flag, required
from cocondenser_jax.cli.output import print_metrics, print_table
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import write_json

_RUN = required("--run", Path, "TREC run")
_COMPARE_WITH = flag("--compare_with", Path, "another TREC run: compare both by two paired tests")


@command(
    "evaluate run --run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    _RUN,
    required("--qrels", Path, "TREC or BEIR judgments"),
    flag("--metrics", "MRR@10,Recall@100,nDCG@10", "metrics, separated by commas"),
    _COMPARE_WITH,
    JSON_OUT,
)
def evaluate_judgments(run, qrels, metrics, compare_with, json_out):
    """Compute the metrics of a run by judgments."""
    from cocondenser_jax.collection.trec import read_qrels, read_run
    from cocondenser_jax.evaluation.ranking import evaluate_run

    names = [name.strip() for name in metrics.split(",")]
    runs = [read_run(file) for file in (run, compare_with) if file]
    judgments = read_qrels(qrels)
    _print_evaluation([evaluate_run(judgments, one, names) for one in runs], json_out)


@command(
    "evaluate answers --run=runs/test.trec --answers=data/answers.jsonl --corpus=data",
    _RUN,
    required("--answers", Path, "answers to the questions: .jsonl (_id, answers)"),
    required("--corpus", Path, "the passages, a data folder or its file of passages"),
    flag("--top_k", "1,5,20,100", "values of k, separated by commas"),
    _COMPARE_WITH,
    JSON_OUT,
)
def evaluate_by_answers(run, answers, corpus, top_k, compare_with, json_out):
    """Compute the accuracy of a run: how often one of the top k passages holds an answer."""
    from cocondenser_jax.evaluation.answers import evaluate_answers

    depths = [int(k) if k.isdecimal() else 0 for k in top_k.split(",")]
    if min(depths) < 1:
        raise UserError(f"--top_k={top_k}: expected whole numbers from 1, separated by commas")
    runs = [file for file in (run, compare_with) if file]
    _print_evaluation(evaluate_answers(runs, answers, corpus, depths), json_out)


def _print_evaluation(evaluated: Sequence[Any], json_out: Path | None) -> None:
    from cocondenser_jax.evaluation.significance import compare, format_p

    result = dict(evaluated[0])
    if len(evaluated) == 1:
        print_metrics(result["mean"], None)
    else:
        result["compared_with"] = evaluated[1]
        result["comparisons"] = compare(result["per_query"], evaluated[1]["per_query"])
        head = "|run|other|difference|p (t-test)|p (randomization)|better|worse|equal".split("|")
        forms = (".4f", ".4f", "+.4f", ".3g", "", ",", ",", ",")
        rows = []
        for name, row in result["comparisons"].items():
            shown = row | {"randomisation_p": format_p(row["randomisation_p"])}
            rows.append((name, *map(format, shown.values(), forms)))
        print_table(head, rows)
    if json_out:
        write_json(json_out, result)
