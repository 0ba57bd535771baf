"""Commands that turn results into metrics, and models and runs into plots."""

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    Parser,
    add_command,
    add_command_group,
    at_least,
    chosen,
    print_metrics,
    print_table,
    require_together,
    whole_numbers,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

_MEASURES = "MRR@10,Recall@100,nDCG@10"
_TOP_K = "1,5,20,100"
_PRINTED_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    _add_evaluate(commands)
    does = "Plot what models attend to, and how two runs agree."
    group = add_command_group(commands, "analyze", does)
    _add_attention(group)
    _add_neighbourhood(group)


def _add_evaluate(commands: Commands) -> None:
    example = "--run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv"
    command = add_command(commands, _evaluate, example)
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


def _evaluate(arguments: Arguments) -> None:
    """Compute the metrics of a run, by judgments or by answers, or of a sentence encoder."""
    if bool(arguments.model) != bool(arguments.sts or arguments.triplets):
        raise UserError("--model goes with --sts or --triplets, --run with --qrels or --answers")
    if arguments.answers and arguments.corpus is None:
        raise UserError("--answers needs --corpus, the passages to look for them in")
    answers = dict.fromkeys(("corpus", "regex", "top_k"), "answers")
    require_together(arguments, measures="qrels", **answers, compare_with="run", pooling="model")
    if arguments.model:
        print_metrics(_evaluate_sentences(arguments), arguments.json_out)
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


def _evaluate_sentences(arguments: Arguments) -> dict[str, float]:
    from cocondenser_jax.evaluation.sentences import evaluate_scored_pairs, evaluate_triplets
    from cocondenser_jax.retrieval.encode import encode_sentences

    encode = partial(encode_sentences, folder=arguments.model, pooling=arguments.pooling)
    evaluate = evaluate_triplets if arguments.triplets else evaluate_scored_pairs
    return evaluate(arguments.triplets or arguments.sts, encode)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _print_comparisons(comparisons: Mapping[str, Mapping[str, Any]]) -> None:
    head = "|run|other|difference|p (t-test)|p (randomisation)|better|worse|equal".split("|")
    forms = (".4f", ".4f", "+.4f", ".3g", ".3g", ",", ",", ",")
    print_table(head, [(name, *map(format, r.values(), forms)) for name, r in comparisons.items()])


def _add_attention(commands: Commands) -> None:
    command = add_command(
        commands,
        _attention,
        "--model=runs/condenser.model --model=runs/cocondenser.model --texts=data/msmarco"
        " --out=attention.png",
    )
    model = "as convert and finetune write it, or a hub name, a line per tower; may be repeated"
    command.path("--model", model, metavar="FOLDER", action="append")
    texts = "a data folder, its file of passages, or a .txt of one text per line (also compressed)"
    command.path("--texts", texts)
    n_texts = "drawn at random; all where there are fewer"
    command.flag("--n_texts", n_texts, 1_000, type=at_least(1))
    command.flag("--seed", "of the draw", 0, type=at_least(0))
    command.flag("--passage_length", "tokens kept of a text", 128)
    _add_outputs(command)


def _attention(arguments: Arguments) -> None:
    """Plot how broad the attention of CLS is in each layer: its entropy, for several models."""
    from cocondenser_jax.analysis.attention import compare_models

    options = chosen(arguments, "n_texts seed passage_length")
    result, panel = compare_models(arguments.model, arguments.texts, **options)
    columns = {name: model["entropy"] for name, model in result["models"].items()}
    n_layers = max(map(len, columns.values()))
    _print_columns("layer", columns, range(1, n_layers + 1))
    _write(arguments, result, panel)


def _add_neighbourhood(commands: Commands) -> None:
    command = add_command(
        commands,
        _neighbourhood,
        "--stage1=runs/bm25.trec --stage1=runs/round1.trec --stage2=runs/round2.trec --n=10,50"
        " --out=neighbourhood.png",
    )
    stage1 = "TREC run to read to depth k; may be repeated"
    command.path("--stage1", stage1, metavar="RUN", action="append")
    stage2 = "TREC run whose top n are each query's neighbourhood"
    command.path("--stage2", stage2, metavar="RUN")
    n = "sizes of the neighbourhood, separated by commas (default: 10)"
    command.add_argument("--n", type=whole_numbers, default=[10], help=n)
    _add_outputs(command)


def _neighbourhood(arguments: Arguments) -> None:
    """Plot how much of the top n of a run lies in the top k of others, by k."""
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
