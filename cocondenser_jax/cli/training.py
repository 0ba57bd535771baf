"""Commands from a corpus to a checkpoint, its PyTorch folder, and what is fine-tuned of it."""

import argparse

from cocondenser_jax.cli.flags import (
    Command,
    Parser,
    StatusCommand,
    at_least,
    chosen,
    part,
    print_metrics,
    print_table,
    require_together,
)
from cocondenser_jax.errors import UserError, escape_control
from cocondenser_jax.storage.files import write_json

_SOURCE = (
    "a .txt, .jsonl, .tsv (also .gz, .xz, .zst) or .parquet file or a folder of them, a folder in"
    " BEIR, MS MARCO or DPR layout, pydocs[:PACKAGE,...], hf:NAME[:CONFIG[:SPLIT]],"
    " tfds:NAME[:SPLIT]"
)


def _add_columns(command: Parser) -> None:
    columns = "of .jsonl, .parquet, hf: and tfds:, what `text`, `title`, `id` or `spans` are called"
    command.flag("--columns", columns, type=_columns, metavar="text=NAME,title=NAME,...")


def _columns(text: str) -> dict[str, str]:
    from cocondenser_jax.corpus.sources import FIELDS

    pairs = [pair.partition("=") for pair in text.split(",")]
    columns = {field: name for field, _, name in pairs if field in FIELDS and name}
    if len(columns) < len(pairs) or columns.keys().isdisjoint(("text", "spans")):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected text=NAME or spans=NAME, and perhaps title=NAME and id=NAME,"
            " separated by commas"
        )
    return columns


def vocabulary(command: Parser) -> Command:
    """Learn a tokenizer from documents, for a model from scratch."""
    command.flag("--source", f"{_SOURCE}; may be repeated", required=True, action="append")
    _add_columns(command)
    command.flag("--size", "entries, special tokens included", 30522)
    kinds = "bert: WordPiece; roberta: byte-level BPE, which keeps capitals and accents"
    command.flag("--kind", kinds, "bert", choices=("bert", "roberta"))
    command.flag("--cased", "keep capitals and accents", action="store_true")
    command.path("--out", "the tokenizer's folder to make, for corpus --tokenizer")
    arguments = yield "--source=articles.jsonl.xz --source=books --size=30522 --out=tokenizers/mine"

    from cocondenser_jax.corpus.build import build_vocabulary

    if arguments.cased and arguments.kind != "bert":
        raise UserError(f"--cased goes with --kind=bert: {arguments.kind} is always cased")
    options = chosen(arguments, "size kind columns") | {"lowercase": not arguments.cased}
    tokenizer = build_vocabulary(arguments.source, arguments.out, **options)
    print(f"{escape_control(str(arguments.out))}: {tokenizer.vocab_size:,} entries")


def corpus(command: Parser) -> Command:
    """Cut and tokenise documents into a store that pretrain reads."""
    command.flag("--source", _SOURCE, required=True)
    _add_columns(command)
    command.flag("--tokenizer", "of the model: a folder or hub name", required=True)
    command.path("--out", "the store to make")
    command.flag("--max_tokens", "of a span", 128)
    shard = "i/n: build part i of n (from 0); point pretrain at --out when all n are there"
    command.add_argument("--shard", type=part, default=(0, 1), metavar="I/N", help=shard)
    command.add_json_out()
    arguments = yield "--source=articles.jsonl.xz --tokenizer=bert-base-uncased --out=stores/wiki"

    from cocondenser_jax.corpus.build import build_store

    options = chosen(arguments, "max_tokens shard columns")
    manifest = build_store(arguments.source, arguments.tokenizer, arguments.out, **options)
    counts = {**manifest["counts"], **{f"dropped, {k}": v for k, v in manifest["dropped"].items()}}
    print_metrics(counts, arguments.json_out)


def pretrain(command: Parser) -> StatusCommand:
    """Pre-train a Condenser or coCondenser; started again, it resumes where it stopped."""
    command.add_config()
    command.path("--workdir", "the run folder: checkpoints, metrics, what the run decided")
    coordinator = (
        "on several hosts: HOST:PORT of the first, the same on all; auto: ask the TPU pod, Slurm or"
        " Open MPI. Exit status 3 where another host was lost"
    )
    command.flag("--coordinator", coordinator, metavar="HOST:PORT")
    command.flag("--num_hosts", "with HOST:PORT: how many", type=int, metavar="N")
    command.flag("--host", "with HOST:PORT: which, from 0", type=int, metavar="I")
    arguments = yield (
        "--config=configs/cocondenser.py --workdir=runs/cocondenser"
        " --config.data.store=stores/wiki --config.warm_start=runs/condenser"
    )

    from cocondenser_jax.pretrain.supervisor import run_on_hosts
    from cocondenser_jax.settings import load_config

    config = load_config(arguments.config, arguments.overrides)

    def run() -> None:
        from cocondenser_jax.warm_start import pretrain  # loads JAX, after any fork

        pretrain(config, arguments.workdir)

    return run_on_hosts(run, arguments.coordinator, arguments.num_hosts, arguments.host)


def plan(command: Parser) -> Command:
    """Compile the training step for a TPU, on any machine, and say what it needs."""
    command.add_config()
    topology = "v2-8, v3-8, v4-8, v5e-8, v5p-8, v6e-8, or a slice of more hosts such as v3:4x4"
    command.flag("--topology", topology, required=True)
    search_chunk = "find the largest train.chunk_size that fits (several compilations)"
    command.flag("--search_chunk", search_chunk, action="store_true")
    command.add_json_out()
    arguments = yield "--config=configs/cocondenser.py --topology=v3-8"

    from cocondenser_jax.pretrain.plan import plan
    from cocondenser_jax.settings import load_config

    if arguments.search_chunk and any("train.chunk_size=" in word for word in arguments.overrides):
        raise UserError("--search_chunk tries every config.train.chunk_size: give only one of them")
    config = load_config(arguments.config, arguments.overrides, complete=False)
    planned = plan(config, arguments.topology, search_chunk=arguments.search_chunk)
    print_metrics(planned, arguments.json_out)


def convert(command: Parser) -> Command:
    """Turn a checkpoint into a Hugging Face folder, or such a folder into a checkpoint."""
    command.path("--checkpoint", "a run folder of pretrain", required=False)
    which = "which checkpoint; best: that of the best probe (default: the latest)"
    command.flag("--step", which, type=lambda x: x if x == "best" else at_least(0)(x))
    command.flag("--pytorch_folder", "a Hugging Face folder or hub name")
    command.path("--out", "the folder to make")
    length = "where sentence-transformers cuts texts (default: all positions of the model)"
    command.flag("--max_seq_length", length, type=int, metavar="TOKENS")
    layout = "put the Condenser head into model.pt, as published research checkpoints have it"
    command.flag("--research_layout", layout, action="store_true")
    push = "with --checkpoint: also upload the folder to the Hugging Face hub, as this model"
    command.flag("--push_to_hub", push, metavar="NAME")
    init_head = "with --pytorch_folder: draw a new Condenser head where the folder has none"
    command.flag("--init_head", init_head, action="store_true")
    arguments = yield "--checkpoint=runs/cocondenser --out=runs/model"

    if (arguments.checkpoint is None) == (arguments.pytorch_folder is None):
        raise UserError("give either --checkpoint (to PyTorch) or --pytorch_folder (to Flax)")
    to_pytorch = "step max_seq_length research_layout push_to_hub".split()
    to_flax = {"init_head": "pytorch_folder"}
    require_together(arguments, **dict.fromkeys(to_pytorch, "checkpoint"), **to_flax)
    if arguments.checkpoint is not None:
        from cocondenser_jax.convert.to_torch import export_run
        from cocondenser_jax.storage.hub import push_folder

        options = chosen(arguments, "step max_seq_length research_layout")
        name = arguments.push_to_hub
        export_run(arguments.checkpoint, arguments.out, name=name, **options)
        if name:
            push_folder(arguments.out, name)
    else:
        from cocondenser_jax.convert.from_torch import import_folder

        import_folder(arguments.pytorch_folder, arguments.out, init_head=arguments.init_head)
    print(escape_control(str(arguments.out)))


def verify_checkpoint(command: Parser) -> StatusCommand:
    """Compare losses and gradients with plain PyTorch; exit status 1 if they differ."""
    command.path("--checkpoint", "a run folder of pretrain")
    command.flag("--step", "which checkpoint (default: the latest)", type=int)
    exported = "the same, converted: a folder or hub name (default: converts it for the occasion)"
    command.path("--pytorch_folder", exported, required=False)
    command.path("--store", "the token store (default: where the run had it)", required=False)
    command.flag("--documents", "size of the batch", 8)
    batch_out = "write inputs, labels, losses, vectors and gradient norms to this .npz file"
    command.path("--batch_out", batch_out, required=False)
    command.add_json_out()
    arguments = yield "--checkpoint=runs/cocondenser --pytorch_folder=runs/model"

    from cocondenser_jax.verify import verify_checkpoint

    options = chosen(arguments, "step pytorch_folder store batch_out")
    rows = verify_checkpoint(arguments.checkpoint, n_documents=arguments.documents, **options)
    forms = (".6g", ".6g", ".6g", ".1e", ".1e")
    cells = ((*map(format, row[1:], forms), "" if row.passes else "TOO LARGE") for row in rows)
    head = ("", "two-pass", "direct", "PyTorch", "two-pass differs", "PyTorch differs", "")
    print_table(head, [(row.name, *shown) for row, shown in zip(rows, cells, strict=True)])
    if arguments.json_out:
        write_json(arguments.json_out, [row._asdict() for row in rows])
    return int(not all(row.passes for row in rows))


def verify_store(command: Parser) -> Command:
    """Compare every file of a token store with its checksum."""
    command.path("--store", "a folder made by corpus")
    arguments = yield "--store=stores/wiki"

    from cocondenser_jax.corpus.store import verify_store

    verify_store(arguments.store)
    print(f"{escape_control(str(arguments.store))}: every file is as it was written")


def finetune(command: Parser) -> Command:
    """Fine-tune a retriever, a cross-encoder or a sentence encoder."""
    command.add_config()
    gets = "retriever/, cross_encoder/ or encoder/, metrics and, while running, checkpoints"
    command.path("--workdir", f"gets {gets}")
    command.add_json_out()
    arguments = yield (
        "--config=configs/finetune.py --workdir=runs/finetune --config.model=runs/model"
        " --config.data=data/msmarco"
    )

    from cocondenser_jax.finetune.tasks import finetune
    from cocondenser_jax.finetune.trainer import is_main_process
    from cocondenser_jax.settings import FINE_TUNING, load_config

    config = load_config(arguments.config, arguments.overrides, tasks=FINE_TUNING)
    result = finetune(config, arguments.workdir)
    if is_main_process():
        print_metrics(result, arguments.json_out)
