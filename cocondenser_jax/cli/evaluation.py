"""Commands that turn results into figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    add_command,
    add_json_out,
    print_metrics,
    whole_numbers,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

_MEASURES = "MRR@10,Recall@100,nDCG@10"
_TOP_K = "1,5,20,100"


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    _add_evaluate(commands)


def _add_evaluate(commands: Commands) -> None:
    command = add_command(
        commands,
        "evaluate",
        _evaluate,
        "Compute the figures of a run, by judgments or by answers, or of a sentence encoder.",
        "--run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    )
    run = command.add_mutually_exclusive_group(required=True)
    run.add_argument("--run", dest="run_file", type=Path, help="TREC run")
    model = "with --sts or --triplets: the encoder, a Hugging Face or sentence-transformers folder"
    run.add_argument("--model", type=Path, help=model)
    truth = command.add_mutually_exclusive_group(required=True)
    truth.add_argument("--qrels", type=Path, help="TREC or BEIR judgments")
    answers = "answers to the questions, .jsonl (_id, answers) or DPR's .csv: gives Accuracy@k"
    truth.add_argument("--answers", type=Path, help=answers)
    sts = "pairs with people's scores, in the layout of the STS Benchmark: gives correlations"
    truth.add_argument("--sts", type=Path, metavar="FILE", help=sts)
    triplets = "a .csv with columns Sentence1, Sentence2, Sentence3: gives Accuracy"
    truth.add_argument("--triplets", type=Path, metavar="FILE", help=triplets)
    pooling = "with --model: instead of the folder's own; a plain folder has cls"
    command.add_argument("--pooling", choices=("cls", "mean"), help=pooling)
    measures = f"with --qrels: names, separated by commas (default: {_MEASURES})"
    command.add_argument("--measures", help=measures)
    corpus = "with --answers: the passages, a data folder or its file of passages"
    command.add_argument("--corpus", type=Path, help=corpus)
    regex = "with --answers: they are regular expressions, as in CuratedTREC"
    command.add_argument("--regex", action="store_true", help=regex)
    top_k = f"with --answers: numbers of passages, separated by commas (default: {_TOP_K})"
    command.add_argument("--top_k", type=whole_numbers, metavar="K", help=top_k)
    other = "another TREC run: print both, p-values of two paired tests, and queries better, worse"
    command.add_argument("--compare_with", type=Path, metavar="RUN", help=other)
    add_json_out(command)


def _evaluate(arguments: Arguments) -> None:
    from cocondenser_jax.collection.trec import read_run

    _require_flags_that_fit(arguments)
    if arguments.model:
        print_metrics(_of_sentences(arguments), arguments.json_out)
        return
    files = [file for file in (arguments.run_file, arguments.compare_with) if file]
    runs = {file: read_run(file) for file in files}
    by = _by_judgments if arguments.qrels else _by_answers
    figures = by(arguments, runs)
    result = figures[arguments.run_file]
    if arguments.compare_with is None:
        print_metrics(result["mean"], None)
    else:
        from cocondenser_jax.evaluation.significance import compare

        other = figures[arguments.compare_with]
        comparisons = compare(result["per_query"], other["per_query"])
        _print_comparisons(comparisons)
        result = {**result, "compared_with": other, "comparisons": comparisons}
    if arguments.json_out:
        write_json(arguments.json_out, result)


def _by_judgments(arguments: Arguments, runs: Mapping[Path, Any]) -> dict[Path, Any]:
    """Returns the figures of each run, by --qrels."""
    from cocondenser_jax.collection.trec import read_qrels
    from cocondenser_jax.evaluation.ranking import evaluate_run

    qrels = read_qrels(arguments.qrels)
    measures = (arguments.measures or _MEASURES).split(",")
    return {file: evaluate_run(qrels, run, measures) for file, run in runs.items()}


def _by_answers(arguments: Arguments, runs: Mapping[Path, Any]) -> dict[Path, Any]:
    """Returns the figures of each run, by --answers in the passages of --corpus."""
    from cocondenser_jax.collection.folder import read_corpus, require_known_passages
    from cocondenser_jax.evaluation.answers import answer_accuracy, first_passages, read_answers

    answers = read_answers(arguments.answers)
    top_k = arguments.top_k or whole_numbers(_TOP_K)
    first = {file: first_passages(run, answers, max(top_k)) for file, run in runs.items()}
    # A corpus may be larger than the memory; what the runs found of it is not.
    wanted = {id for found in first.values() for ids in found.values() for id in ids}
    texts = {
        passage.id: passage.text
        for passage in read_corpus(arguments.corpus)
        if passage.id in wanted
    }
    for file, found in first.items():
        require_known_passages(found, texts, file)
    return {
        file: answer_accuracy(run, answers, texts, top_k, arguments.regex)
        for file, run in runs.items()
    }


def _of_sentences(arguments: Arguments) -> dict[str, float]:
    """Returns the figures of --model on --sts or --triplets."""
    import numpy as np

    from cocondenser_jax.collection.layouts import read_scored_pairs, read_triplets
    from cocondenser_jax.evaluation.sentences import similarity_figures, triplet_accuracy
    from cocondenser_jax.finetune.sentences import encode_sentences

    if arguments.triplets:
        triplets = zip(*read_triplets(arguments.triplets), strict=True)
        vectors = encode_sentences(arguments.model, list(triplets), arguments.pooling)
        return {"Accuracy": triplet_accuracy(*vectors)}
    first, second, scores = zip(*read_scored_pairs(arguments.sts), strict=True)
    vectors = encode_sentences(arguments.model, [first, second], arguments.pooling)
    return similarity_figures(vectors[0], vectors[1], np.array(scores))


def _require_flags_that_fit(arguments: Arguments) -> None:
    if bool(arguments.model) != bool(arguments.sts or arguments.triplets):
        raise UserError("--model goes with --sts or --triplets, --run with --qrels or --answers")
    if arguments.answers and arguments.corpus is None:
        raise UserError("--answers needs --corpus, the passages to look for them in")
    unfit = {}
    if not arguments.qrels:
        unfit["measures"] = "--qrels"
    if not arguments.answers:
        unfit |= dict.fromkeys(("corpus", "regex", "top_k"), "--answers")
    if arguments.model:
        unfit["compare_with"] = "--run"
    else:
        unfit["pooling"] = "--model"
    for flag, needed in unfit.items():
        if getattr(arguments, flag):
            raise UserError(f"--{flag} goes with {needed}")


def _print_comparisons(comparisons: Mapping[str, Mapping[str, Any]]) -> None:
    width = max(map(len, comparisons))
    print(
        f"{'':<{width}}     run   other  difference  p (t-test)  p (randomisation)"
        "  better   worse   equal"
    )
    for name, row in comparisons.items():
        means = f"{row['mean']:8.4f}{row['other_mean']:8.4f}{row['difference']:+12.4f}"
        p_values = f"{row['t_test_p']:12.3g}{row['randomisation_p']:19.3g}"
        counts = f"{row['better']:8,}{row['worse']:8,}{row['equal']:8,}"
        print(f"{name:<{width}}{means}{p_values}{counts}")
