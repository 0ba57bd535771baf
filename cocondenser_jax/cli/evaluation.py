"""Commands that turn results into metrics, and models and runs into plots."""

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Command,
    Parser,
    at_least,
    chosen,
    print_metrics,
    print_table,
    require_together,
    whole_numbers,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.storage.files import write_json

_MEASURES = "MRR@10,Recall@100,nDCG@10"
_TOP_K = "1,5,20,100"
_PRINTED_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


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


def analyze_attention(command: Parser) -> Command:
    """Plot how broad the attention of CLS is in each layer: its entropy, for several models."""
    model = "as convert and finetune write it, or a hub name, a line per tower; may be repeated"
    command.path("--model", model, metavar="FOLDER", action="append")
    texts = "a data folder, its file of passages, or a .txt of one text per line (also compressed)"
    command.path("--texts", texts)
    command.flag("--n_texts", "drawn at random; all where there are fewer", 1_000, type=at_least(1))
    command.flag("--seed", "of the draw", 0, type=at_least(0))
    command.flag("--passage_length", "tokens kept of a text", 128)
    _add_outputs(command)
    arguments = yield (
        "--model=runs/condenser.model --model=runs/cocondenser.model --texts=data/msmarco"
        " --out=attention.png"
    )

    from cocondenser_jax.analysis.attention import compare_models

    options = chosen(arguments, "n_texts seed passage_length")
    result, panel = compare_models(arguments.model, arguments.texts, **options)
    columns = {name: model["entropy"] for name, model in result["models"].items()}
    n_layers = max(map(len, columns.values()))
    _print_columns("layer", columns, range(1, n_layers + 1))
    _write(arguments, result, panel)


def analyze_neighbourhood(command: Parser) -> Command:
    """Plot how much of the top n of a run lies in the top k of others, by k."""
    stage1 = "TREC run to read to depth k; may be repeated"
    command.path("--stage1", stage1, metavar="RUN", action="append")
    command.path("--stage2", "TREC run whose top n are each query's neighbourhood", metavar="RUN")
    n = "sizes of the neighbourhood, separated by commas (default: 10)"
    command.add_argument("--n", type=whole_numbers, default=[10], help=n)
    _add_outputs(command)
    arguments = yield (
        "--stage1=runs/bm25.trec --stage1=runs/round1.trec --stage2=runs/round2.trec --n=10,50"
        " --out=neighbourhood.png"
    )

    from cocondenser_jax.analysis.neighbourhood import compare_runs

    result, panel = compare_runs(arguments.stage1, arguments.stage2, arguments.n)
    columns = {
        f"{name}, n={n}": values
        for name, run in result["stage1"].items()
        for n, values in run["recall"].items()
    }
    depth = max(map(len, columns.values()))
    _print_columns("k", columns, [*(k for k in _PRINTED_DEPTHS if k < depth), depth])
    _write(arguments, result, panel)


def _write(arguments: Arguments, result: Any, panel: Any) -> None:
    from cocondenser_jax.analysis.plots import write_plot

    if arguments.json_out:
        write_json(arguments.json_out, result)
    write_plot(panel, arguments.out)


def _print_columns(head: str, columns: dict[str, list[float]], numbers: Iterable[int]) -> None:
    """Prints the values of each column at some numbers, which count from 1."""
    shown = [[f"{value:.4f}" for value in values] for values in columns.values()]
    rows = [(f"{n}", *(c[n - 1] if n <= len(c) else "" for c in shown)) for n in numbers]
    print_table((head, *columns), rows)


def _add_outputs(command: Parser) -> None:
    command.flag("--out", "the plot: a .png or .svg file", required=True, type=_plot_file)
    command.add_json_out()


def _plot_file(text: str) -> Path:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, not {text!r}")
    return Path(text)
