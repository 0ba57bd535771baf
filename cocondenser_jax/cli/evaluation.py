"""Commands that turn results into metrics."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Command,
    Parser,
    print_metrics,
    print_table,
    require_together,
    whole_numbers,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import write_json

_MEASURES = "MRR@10,Recall@100,nDCG@10"
_TOP_K = "1,5,20,100"


def evaluate(command: Parser) -> Command:
    """Compute the metrics of a run, by judgments or by answers, or of a sentence encoder."""
    run = command.add_mutually_exclusive_group(required=True)
    run.add_argument("--run", type=Path, help="TREC run")
    model = "with --sts or --triplets: the encoder, a folder or hub name"
    run.add_argument("--model", type=Path, help=model)
    truth = command.add_mutually_exclusive_group(required=True)
    truth.add_argument("--qrels", type=Path, help="TREC or BEIR judgments")
    answers = "answers to the questions, .jsonl (_id, answers) or DPR's .csv: gives Accuracy@k"
    truth.add_argument("--answers", type=Path, help=answers)
    sts = "pairs with human scores, in the layout of the STS Benchmark: gives correlations"
    truth.add_argument("--sts", type=Path, metavar="FILE", help=sts)
    triplets = "a .csv with columns Sentence1, Sentence2, Sentence3: gives Accuracy"
    truth.add_argument("--triplets", type=Path, metavar="FILE", help=triplets)
    pooling = "with --model: instead of the folder's own; a plain folder has cls"
    command.flag("--pooling", pooling, choices=("cls", "mean"))
    measures = f"with --qrels: names, separated by commas (default: {_MEASURES})"
    command.flag("--measures", measures, type=_names)
    corpus = "with --answers: the passages, a data folder or its file of passages"
    command.path("--corpus", corpus, required=False)
    regex = "with --answers: they are regular expressions, as in CuratedTREC"
    command.flag("--regex", regex, action="store_true")
    top_k = f"with --answers: numbers of passages, separated by commas (default: {_TOP_K})"
    command.flag("--top_k", top_k, type=whole_numbers, metavar="K")
    other = "another TREC run: print both, p-values of two paired tests, and queries better, worse"
    command.path("--compare_with", other, required=False, metavar="RUN")
    command.add_json_out()
    arguments = yield "--run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv"

    if bool(arguments.model) != bool(arguments.sts or arguments.triplets):
        raise UserError("--model goes with --sts or --triplets, --run with --qrels or --answers")
    if arguments.answers and arguments.corpus is None:
        raise UserError("--answers needs --corpus, the passages to look for them in")
    require_together(arguments, measures="qrels", corpus="answers", regex="answers")
    require_together(arguments, top_k="answers", compare_with="run", pooling="model")
    if arguments.model:
        from cocondenser_jax.evaluation.sentences import evaluate_scored_pairs, evaluate_triplets
        from cocondenser_jax.retrieval.encode import encode_sentences

        encode = partial(encode_sentences, folder=arguments.model, pooling=arguments.pooling)
        evaluate = evaluate_triplets if arguments.triplets else evaluate_scored_pairs
        metrics = evaluate(arguments.triplets or arguments.sts, encode)
        print_metrics(metrics, arguments.json_out)
        return
    metrics, *others = _evaluate_runs(arguments)
    result: dict[str, Any] = dict(metrics)
    if others:
        from cocondenser_jax.evaluation.significance import compare

        comparisons = compare(metrics["per_query"], others[0]["per_query"])
        _print_comparisons(comparisons)
        result |= {"compared_with": others[0], "comparisons": comparisons}
    else:
        print_metrics(metrics["mean"], None)
    if arguments.json_out:
        write_json(arguments.json_out, result)


def _evaluate_runs(arguments: Arguments) -> list[Any]:
    """Returns the metrics of --run and, where it is given, of --compare_with."""
    files = [file for file in (arguments.run, arguments.compare_with) if file]
    if arguments.answers:
        from cocondenser_jax.evaluation.answers import evaluate_answers

        top_k = arguments.top_k or whole_numbers(_TOP_K)
        return evaluate_answers(files, arguments.answers, arguments.corpus, top_k, arguments.regex)
    from cocondenser_jax.collection.trec import read_qrels, read_run
    from cocondenser_jax.evaluation.ranking import evaluate_run

    runs, qrels = [read_run(file) for file in files], read_qrels(arguments.qrels)
    measures = arguments.measures or _names(_MEASURES)
    return [evaluate_run(qrels, run, measures) for run in runs]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _print_comparisons(comparisons: Mapping[str, Mapping[str, Any]]) -> None:
    head = "|run|other|difference|p (t-test)|p (randomisation)|better|worse|equal".split("|")
    forms = (".4f", ".4f", "+.4f", ".3g", ".3g", ",", ",", ",")
    print_table(head, [(name, *map(format, r.values(), forms)) for name, r in comparisons.items()])
