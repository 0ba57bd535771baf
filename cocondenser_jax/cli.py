"""`cocondenser <verb>`: parses the command line, calls one function, prints.

Libraries are imported where a verb needs them, so that `--help` and mistakes answer at once.
"""

import argparse
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cocondenser_jax import __version__
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json

Arguments = argparse.Namespace


class _Parser(argparse.ArgumentParser):
    """Answers a wrong flag with one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    # Before torch is loaded: beside other work on the machine, OpenMP threads that wait by spinning
    # made fine-tuning a hundred times slower; threads that sleep cost nothing measurable.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for name in ("absl", "orbax", "jax", "httpx", "sentence_transformers", "faiss", "bm25s"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        parser = _make_parser()
        arguments, rest = parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "config"):
            raise UserError(
                f"unknown argument {rest[0]!r} (see cocondenser {arguments.verb} --help)"
            )
        arguments.overrides = rest
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cocondenser: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _corpus(arguments: Arguments) -> None:
    from cocondenser_jax.corpus.store import build_store

    manifest = build_store(
        arguments.source,
        arguments.tokenizer,
        arguments.out,
        max_tokens=arguments.max_tokens,
        shard=arguments.shard,
    )
    figures = {**manifest["counts"], **{f"dropped, {k}": v for k, v in manifest["dropped"].items()}}
    _print_figures(figures, arguments.json_out)


def _pretrain(arguments: Arguments) -> None:
    from cocondenser_jax.experiments import load_config, load_warm_start
    from cocondenser_jax.pretrain.checkpoint import started_model
    from cocondenser_jax.pretrain.loop import train

    config = load_config(arguments.config, arguments.overrides)
    if not config.data.store:
        raise UserError("no data: give --config.data.store=FOLDER, made by cocondenser corpus")
    # A run that goes on needs its beginning no more; it may be gone, or the hub out of reach.
    goes_on = started_model(arguments.workdir) is not None
    train(config, arguments.workdir, warm_start=None if goes_on else load_warm_start(config))


def _plan(arguments: Arguments) -> None:
    from cocondenser_jax.experiments import load_config
    from cocondenser_jax.pretrain.plan import largest_chunk, plan, planned_model

    config = load_config(arguments.config, arguments.overrides)
    find = largest_chunk if arguments.search_chunk else plan
    figures = find(config, planned_model(config), arguments.topology)
    _print_figures(figures, arguments.json_out)


def _convert(arguments: Arguments) -> None:
    if (arguments.checkpoint is None) == (arguments.pytorch_folder is None):
        raise UserError("give either --checkpoint (to PyTorch) or --pytorch_folder (to Flax)")
    if arguments.checkpoint is not None:
        from cocondenser_jax.convert.to_torch import export_folder
        from cocondenser_jax.pretrain.checkpoint import load_run

        model_config, params, facts = load_run(arguments.checkpoint, arguments.step)
        export_folder(
            params,
            model_config,
            arguments.checkpoint / "tokenizer",
            arguments.out,
            facts,
            max_seq_length=arguments.max_seq_length,
            research_layout=arguments.research_layout,
        )
    else:
        from cocondenser_jax.convert.from_torch import load_folder
        from cocondenser_jax.corpus.vocabulary import load_tokenizer
        from cocondenser_jax.pretrain.checkpoint import save_converted

        name = arguments.pytorch_folder
        seed = 0 if arguments.init_head else None
        model_config, params = load_folder(name, init_head_seed=seed)
        save_converted(arguments.out, model_config, params, load_tokenizer(name), name)
    print(arguments.out)


def _verify(arguments: Arguments) -> int:
    from cocondenser_jax.verify import verify

    rows = verify(
        arguments.checkpoint,
        step=arguments.step,
        pytorch_folder=arguments.pytorch_folder,
        store=arguments.store,
        n_documents=arguments.documents,
        batch_out=arguments.batch_out,
    )
    print(f"{'':<26}{'two-pass':>12}{'direct':>12}{'PyTorch':>12}   relative differences")
    for row in rows:
        values = f"{row.two_pass:12.6g}{row.direct:12.6g}{row.pytorch:12.6g}"
        errors = f"{row.two_pass_error:12.1e}{row.pytorch_error:12.1e}"
        print(f"{row.name:<26}{values}{errors}{'' if row.passes else '   TOO LARGE'}")
    if arguments.json_out:
        write_json(arguments.json_out, [row._asdict() for row in rows])
    return int(not all(row.passes for row in rows))


def _finetune(arguments: Arguments) -> None:
    from cocondenser_jax.experiments import load_config
    from cocondenser_jax.retrieval.train import finetune

    result = finetune(load_config(arguments.config, arguments.overrides), arguments.workdir)
    _print_figures(result, arguments.json_out)


def _encode(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.encode import encode_corpus
    from cocondenser_jax.retrieval.search import build_index

    embeddings = arguments.out.with_name(arguments.out.name + ".embeddings")
    encode_corpus(
        arguments.model,
        arguments.corpus,
        embeddings,
        batch_size=arguments.batch_size,
        passage_length=arguments.passage_length,
        dtype=arguments.dtype,
        pooling=arguments.pooling,
    )
    _print_figures(build_index(embeddings, arguments.out, arguments.factory), arguments.json_out)


def _search(arguments: Arguments) -> None:
    from cocondenser_jax.evaluation.trec import write_run
    from cocondenser_jax.retrieval.data import read_corpus, read_queries, read_split

    if (arguments.query is None) == (arguments.data is None):
        raise UserError("give either --query TEXT or --data FOLDER (queries in BEIR layout)")
    if arguments.bm25 == (arguments.index is not None and arguments.model is not None):
        raise UserError("give either --index and --model, or --bm25 with --data")
    if arguments.query is not None:
        _print_hits(arguments)
        return
    if arguments.run_out is None:
        raise UserError("--data needs --run_out FILE, where the run is written")
    if arguments.split:
        queries, _ = read_split(arguments.data, arguments.split)
    else:
        queries = read_queries(arguments.data)
    if arguments.bm25:
        from cocondenser_jax.retrieval.bm25 import bm25_run

        run = bm25_run(read_corpus(arguments.data), queries, arguments.depth)
    else:
        from cocondenser_jax.retrieval.search import open_index, search_run

        run = search_run(open_index(arguments.index, arguments.model), queries, arguments.depth)
    write_run(arguments.run_out, run)
    print(arguments.run_out)


def _print_hits(arguments: Arguments) -> None:
    from cocondenser_jax.retrieval.search import open_index, search_text

    if arguments.bm25:
        raise UserError("--query searches an index: give --index and --model")
    searcher = open_index(arguments.index, arguments.model)
    hits = [
        (result.score, result.passage.title or result.passage.id, result.passage.text)
        for result in search_text(searcher, arguments.query, arguments.top_k)
    ]
    _print_search(arguments.query, hits)
    if arguments.json_out:
        found = [{"score": s, "title": title, "text": text} for s, title, text in hits]
        write_json(arguments.json_out, {"query": arguments.query, "hits": found})


def _evaluate(arguments: Arguments) -> None:
    from cocondenser_jax.evaluation.ranking import evaluate_run
    from cocondenser_jax.evaluation.trec import read_qrels, read_run

    qrels, run = read_qrels(arguments.qrels), read_run(arguments.run_file)
    figures = evaluate_run(qrels, run, arguments.measures.split(","))
    _print_figures(figures["mean"], None)
    if arguments.json_out:
        write_json(arguments.json_out, figures)


def _quickstart(arguments: Arguments) -> None:
    from cocondenser_jax.quickstart import quickstart

    program = sys.argv[0] if Path(sys.argv[0]).name == "cocondenser" else "cocondenser"
    compare_all = arguments.compare == "all"
    outcome = quickstart(arguments.workdir, compare_all=compare_all, program=program)
    print(f"\n{'':<28}{'MRR@10':>8}{'Recall@100':>12}{'seconds':>9}")
    for row in outcome.rows:
        print(f"{row.name:<28}{row.mrr_at_10:8.3f}{row.recall_at_100:12.3f}{row.seconds:9.0f}")
    for example in outcome.examples:
        print()
        _print_search(example.query, [(hit.score, hit.title, hit.text) for hit in example.hits])
    print(f"\nreport: {outcome.report}\nsearch for yourself:\n  {outcome.search_command}")


def _print_search(query: str, hits: Sequence[tuple[float, str, str]]) -> None:
    print(f'"{query}"')
    for score, title, text in hits:
        print(f"  {score:8.2f}  {title}")
        print(textwrap.indent(textwrap.shorten(text, 300, placeholder=" ..."), " " * 12))


def _print_figures(figures: Mapping[str, Any], json_out: Path | None) -> None:
    """Prints one figure a line, and writes them all where asked."""
    width = max(map(len, figures))
    for name, value in figures.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name:<{width}}  {f'{value:.4f}' if isinstance(value, float) else shown}")
    if json_out:
        write_json(json_out, figures)


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected i/n with 0 <= i < n, such as 0/8")
    return int(index), int(count)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cocondenser",
        description="Condenser and coCondenser pre-training, conversion, and dense retrieval.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)

    def verb(name: str, run: Callable[[Arguments], int | None], does: str, example: str) -> _Parser:
        added: _Parser = verbs.add_parser(
            name,
            help=does,
            description=does,
            epilog=f"example:\n  cocondenser {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(run=run)
        return added

    def config_argument(added: _Parser) -> None:
        config = "the experiment, FILE.py[:ARGUMENT]; override a setting with --config.KEY=VALUE"
        added.add_argument("--config", required=True, help=config)

    def workdir(added: _Parser, does: str) -> None:
        added.add_argument("--workdir", required=True, type=Path, help=does)

    def json_out(added: _Parser) -> None:
        added.add_argument("--json_out", type=Path, help="also write the figures to this file")

    added = verb(
        "corpus",
        _corpus,
        "Cut and tokenise documents into a store that pretrain reads.",
        "--source=articles.jsonl.xz --tokenizer=bert-base-uncased --out=stores/wiki",
    )
    added.add_argument(
        "--source",
        required=True,
        help="a .txt or .jsonl file (also .gz, .xz, .zst) or a folder of them,"
        " pydocs[:PACKAGE,...], hf:NAME[:CONFIG[:SPLIT]], tfds:NAME[:SPLIT]",
    )
    added.add_argument("--tokenizer", required=True, help="BERT or RoBERTa: a folder or hub name")
    added.add_argument("--out", required=True, type=Path, help="the store to make")
    added.add_argument("--max_tokens", type=int, default=128, help="of a span (default: 128)")
    shard = "i/n: build part i of n (from 0); point pretrain at --out when all n are there"
    added.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help=shard)
    json_out(added)

    added = verb(
        "pretrain",
        _pretrain,
        "Pre-train a Condenser or coCondenser; started again, it goes on where it stopped.",
        "--config=configs/cocondenser.py --workdir=runs/cocondenser"
        " --config.data.store=stores/wiki --config.warm_start=runs/condenser",
    )
    config_argument(added)
    workdir(added, "the run folder: checkpoints, metrics, what the run decided")

    added = verb(
        "plan",
        _plan,
        "Compile the training step for a TPU, on any machine, and say what it needs.",
        "--config=configs/cocondenser.py --topology=v3-8",
    )
    config_argument(added)
    topology = "v2-8, v3-8, v4-8, v5e-8, v5p-8, v6e-8, or a slice of more hosts such as v3:4x4"
    added.add_argument("--topology", required=True, help=topology)
    search_chunk = "find the largest train.chunk_size that fits (several compilations)"
    added.add_argument("--search_chunk", action="store_true", help=search_chunk)
    json_out(added)

    added = verb(
        "convert",
        _convert,
        "Turn a checkpoint into a Hugging Face folder, or such a folder into a checkpoint.",
        "--checkpoint=runs/cocondenser --out=runs/model",
    )
    added.add_argument("--checkpoint", type=Path, help="a run folder of pretrain")
    added.add_argument("--step", type=int, help="which checkpoint (default: the latest)")
    added.add_argument("--pytorch_folder", help="a Hugging Face folder or hub name")
    added.add_argument("--out", required=True, type=Path, help="the folder to make")
    length = "where sentence-transformers cuts texts (default: all positions of the model)"
    added.add_argument("--max_seq_length", type=int, metavar="TOKENS", help=length)
    layout = "put the Condenser head into model.pt, as published research checkpoints have it"
    added.add_argument("--research_layout", action="store_true", help=layout)
    init_head = "with --pytorch_folder: draw a new Condenser head where the folder has none"
    added.add_argument("--init_head", action="store_true", help=init_head)

    added = verb(
        "verify",
        _verify,
        "Compare losses and gradients of a checkpoint with plain PyTorch; exit status 1 if they"
        " differ.",
        "--checkpoint=runs/cocondenser --pytorch_folder=runs/model",
    )
    added.add_argument("--checkpoint", required=True, type=Path, help="a run folder of pretrain")
    added.add_argument("--step", type=int, help="which checkpoint (default: the latest)")
    exported = "the same checkpoint, converted (default: converts it for this once)"
    added.add_argument("--pytorch_folder", type=Path, help=exported)
    added.add_argument("--store", type=Path, help="the token store (default: where the run had it)")
    added.add_argument("--documents", type=int, default=8, help="size of the batch (default: 8)")
    batch_out = "write inputs, labels, losses, vectors and gradient norms to this .npz file"
    added.add_argument("--batch_out", type=Path, help=batch_out)
    json_out(added)

    added = verb(
        "finetune",
        _finetune,
        "Fine-tune a retriever on queries and their passages.",
        "--config=configs/finetune.py --workdir=runs/finetune --config.model=runs/model"
        " --config.data=data/msmarco",
    )
    config_argument(added)
    workdir(added, "gets retriever/, metrics and, while running, checkpoints")
    json_out(added)

    added = verb(
        "encode",
        _encode,
        "Encode passages and index them.",
        "--model=runs/finetune/retriever --corpus=data/msmarco --out=runs/index",
    )
    added.add_argument("--model", required=True, type=Path, help="the retriever's folder")
    corpus = "a BEIR folder, or a .jsonl file (_id, title, text), also compressed"
    added.add_argument("--corpus", required=True, type=Path, help=corpus)
    out = "the index; embedding shards go beside it, into OUT.embeddings"
    added.add_argument("--out", required=True, type=Path, help=out)
    added.add_argument("--factory", default="Flat", help="faiss index string (default: Flat)")
    added.add_argument("--batch_size", type=int, default=128, help="passages (default: 128)")
    length = "tokens of a passage (default: as the retriever was trained)"
    added.add_argument("--passage_length", type=int, help=length)
    added.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    pooling = "instead of the folder's own; a plain folder has cls"
    added.add_argument("--pooling", choices=("cls", "mean"), help=pooling)
    json_out(added)

    added = verb(
        "search",
        _search,
        "Search an index for one query, or for all queries of a data set.",
        '--index=runs/index --model=runs/finetune/retriever --query="who won the oscar in 1953"',
    )
    added.add_argument("--index", type=Path, help="a folder that encode made")
    added.add_argument("--model", type=Path, help="the retriever it was made with")
    added.add_argument("--query", help="print the passages found for this text")
    added.add_argument("--top_k", type=int, default=10, help="passages printed (default: 10)")
    added.add_argument("--data", type=Path, help="a BEIR folder: search for all of its queries")
    added.add_argument("--split", help="only the queries that qrels/SPLIT.tsv judges")
    added.add_argument("--run_out", type=Path, help="TREC run to write, with --data")
    added.add_argument("--depth", type=int, default=100, help="passages per query (default: 100)")
    bm25 = "rank the passages of --data by BM25, without index and model"
    added.add_argument("--bm25", action="store_true", help=bm25)
    json_out(added)

    added = verb(
        "evaluate",
        _evaluate,
        "Compute the figures of a run.",
        "--run=runs/test.trec --qrels=data/msmarco/qrels/test.tsv",
    )
    added.add_argument("--run", dest="run_file", required=True, type=Path, help="TREC run")
    added.add_argument("--qrels", required=True, type=Path, help="TREC or BEIR judgments")
    measures = "names, separated by commas (default: %(default)s)"
    added.add_argument("--measures", default="MRR@10,Recall@100,nDCG@10", help=measures)
    json_out(added)

    added = verb(
        "quickstart",
        _quickstart,
        "The whole road in one command, on the docstrings of this machine's Python packages.",
        "--workdir=runs/quickstart",
    )
    workdir(added, "the folder to work in")
    compare = "all: also a Condenser, and two more seeds (about three times as long)"
    added.add_argument("--compare", choices=("baseline", "all"), default="baseline", help=compare)
    return parser


if __name__ == "__main__":
    sys.exit(main())
