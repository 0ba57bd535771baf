"""Verbs that turn results into figures."""

from pathlib import Path

from cocondenser_jax.cli.flags import Arguments, Verbs, add_json_out, add_verb, print_figures
from cocondenser_jax.files import write_json


def add_verbs(verbs: Verbs) -> None:
    """Adds them to the command line."""
    _add_evaluate(verbs)


def _add_evaluate(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "evaluate",
        _evaluate,
        "Compute the figures of a run.",
        "--run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    )
    verb.add_argument("--run", dest="run_file", required=True, type=Path, help="TREC run")
    verb.add_argument("--qrels", required=True, type=Path, help="TREC or BEIR judgments")
    measures = "names, separated by commas (default: %(default)s)"
    verb.add_argument("--measures", default="MRR@10,Recall@100,nDCG@10", help=measures)
    add_json_out(verb)


def _evaluate(arguments: Arguments) -> None:
    from cocondenser_jax.evaluation.ranking import evaluate_run
    from cocondenser_jax.evaluation.trec import read_qrels, read_run

    qrels, run = read_qrels(arguments.qrels), read_run(arguments.run_file)
    figures = evaluate_run(qrels, run, arguments.measures.split(","))
    print_figures(figures["mean"], None)
    if arguments.json_out:
        write_json(arguments.json_out, figures)
