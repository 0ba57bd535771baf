"""Commands from a corpus to a checkpoint and its PyTorch folder."""

import argparse
import functools
import re
from pathlib import Path

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    add_command,
    add_config,
    add_json_out,
    add_workdir,
    print_metrics,
)
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import write_json
from cocondenser_jax.pretrain.supervisor import watched

HEARTBEAT_SECONDS = 60  # of silence, after which another host counts as lost


def add_commands(commands: Commands) -> None:
    """Adds them to the command line."""
    _add_corpus(commands)
    _add_pretrain(commands)
    _add_plan(commands)
    _add_convert(commands)
    _add_verify(commands)


def _add_corpus(commands: Commands) -> None:
    command = add_command(
        commands,
        "corpus",
        _corpus,
        "Cut and tokenise documents into a store that pretrain reads.",
        "--source=articles.jsonl.xz --tokenizer=bert-base-uncased --out=stores/wiki",
    )
    command.add_argument(
        "--source",
        required=True,
        help="a .txt or .jsonl file (also .gz, .xz, .zst) or a folder of them,"
        " pydocs[:PACKAGE,...], hf:NAME[:CONFIG[:SPLIT]], tfds:NAME[:SPLIT]",
    )
    command.add_argument("--tokenizer", required=True, help="BERT or RoBERTa: a folder or hub name")
    command.add_argument("--out", required=True, type=Path, help="the store to make")
    command.add_argument("--max_tokens", type=int, default=128, help="of a span (default: 128)")
    shard = "i/n: build part i of n (from 0); point pretrain at --out when all n are there"
    command.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help=shard)
    add_json_out(command)


def _corpus(arguments: Arguments) -> None:
    from cocondenser_jax.corpus.build import build_store

    manifest = build_store(
        arguments.source,
        arguments.tokenizer,
        arguments.out,
        max_tokens=arguments.max_tokens,
        shard=arguments.shard,
    )
    figures = {**manifest["counts"], **{f"dropped, {k}": v for k, v in manifest["dropped"].items()}}
    print_metrics(figures, arguments.json_out)


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected i/n with 0 <= i < n, such as 0/8")
    return int(index), int(count)


def _add_pretrain(commands: Commands) -> None:
    command = add_command(
        commands,
        "pretrain",
        _pretrain,
        "Pre-train a Condenser or coCondenser; started again, it goes on where it stopped.",
        "--config=configs/cocondenser.py --workdir=runs/cocondenser"
        " --config.data.store=stores/wiki --config.warm_start=runs/condenser",
    )
    add_config(command)
    add_workdir(command, "the run folder: checkpoints, metrics, what the run decided")
    coordinator = (
        "on several hosts: HOST:PORT of the first, the same on all; auto: ask the TPU pod, Slurm or"
        " Open MPI. Exit status 3 where another host was lost"
    )
    command.add_argument("--coordinator", metavar="HOST:PORT", help=coordinator)
    command.add_argument("--num_hosts", type=int, metavar="N", help="with HOST:PORT: how many")
    command.add_argument("--host", type=int, metavar="I", help="with HOST:PORT: which, from 0")


def _pretrain(arguments: Arguments) -> int:
    _require_hosts_that_fit(arguments)
    if arguments.coordinator is not None:
        return watched(functools.partial(_pretrain_here, arguments))
    _pretrain_here(arguments)
    return 0


def _pretrain_here(arguments: Arguments) -> None:
    from cocondenser_jax.pretrain.hosts import connect
    from cocondenser_jax.pretrain.loop import train
    from cocondenser_jax.settings import load_config
    from cocondenser_jax.warm_start import load_warm_start

    config = load_config(arguments.config, arguments.overrides)
    if arguments.coordinator is not None:
        hosts = arguments.coordinator, arguments.num_hosts, arguments.host
        connect(*hosts, heartbeat=HEARTBEAT_SECONDS)
    train(config, arguments.workdir, warm_start=functools.partial(load_warm_start, config))


def _require_hosts_that_fit(arguments: Arguments) -> None:
    coordinator, n_hosts, host = arguments.coordinator, arguments.num_hosts, arguments.host
    if coordinator in (None, "auto"):
        if (n_hosts, host) != (None, None):
            raise UserError("--num_hosts and --host go with --coordinator=HOST:PORT")
    elif not re.fullmatch(r".+:\d+", coordinator):
        raise UserError(f"--coordinator={coordinator}: expected HOST:PORT or auto")
    elif n_hosts is None or host is None or not 0 <= host < n_hosts:
        raise UserError(
            f"--coordinator={coordinator} needs --num_hosts=N and --host=I with 0 <= I < N"
        )


def _add_plan(commands: Commands) -> None:
    command = add_command(
        commands,
        "plan",
        _plan,
        "Compile the training step for a TPU, on any machine, and say what it needs.",
        "--config=configs/cocondenser.py --topology=v3-8",
    )
    add_config(command)
    topology = "v2-8, v3-8, v4-8, v5e-8, v5p-8, v6e-8, or a slice of more hosts such as v3:4x4"
    command.add_argument("--topology", required=True, help=topology)
    search_chunk = "find the largest train.chunk_size that fits (several compilations)"
    command.add_argument("--search_chunk", action="store_true", help=search_chunk)
    add_json_out(command)


def _plan(arguments: Arguments) -> None:
    from cocondenser_jax.pretrain.plan import largest_chunk, plan, planned_model
    from cocondenser_jax.settings import load_config

    config = load_config(arguments.config, arguments.overrides, complete=False)
    find = largest_chunk if arguments.search_chunk else plan
    figures = find(config, planned_model(config), arguments.topology)
    print_metrics(figures, arguments.json_out)


def _add_convert(commands: Commands) -> None:
    command = add_command(
        commands,
        "convert",
        _convert,
        "Turn a checkpoint into a Hugging Face folder, or such a folder into a checkpoint.",
        "--checkpoint=runs/cocondenser --out=runs/model",
    )
    command.add_argument("--checkpoint", type=Path, help="a run folder of pretrain")
    command.add_argument("--step", type=int, help="which checkpoint (default: the latest)")
    command.add_argument("--pytorch_folder", help="a Hugging Face folder or hub name")
    command.add_argument("--out", required=True, type=Path, help="the folder to make")
    length = "where sentence-transformers cuts texts (default: all positions of the model)"
    command.add_argument("--max_seq_length", type=int, metavar="TOKENS", help=length)
    layout = "put the Condenser head into model.pt, as published research checkpoints have it"
    command.add_argument("--research_layout", action="store_true", help=layout)
    init_head = "with --pytorch_folder: draw a new Condenser head where the folder has none"
    command.add_argument("--init_head", action="store_true", help=init_head)


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
        from cocondenser_jax.corpus.tokenizer import load_tokenizer
        from cocondenser_jax.pretrain.checkpoint import save_converted

        name = arguments.pytorch_folder
        seed = 0 if arguments.init_head else None
        model_config, params = load_folder(name, init_head_seed=seed)
        save_converted(arguments.out, model_config, params, load_tokenizer(name), name)
    print(arguments.out)


def _add_verify(commands: Commands) -> None:
    command = add_command(
        commands,
        "verify",
        _verify,
        "Compare losses and gradients of a checkpoint with plain PyTorch, exit status 1 if they"
        " differ; or, with --store alone, every file of a store with its checksum.",
        "--checkpoint=runs/cocondenser --pytorch_folder=runs/model",
    )
    command.add_argument("--checkpoint", type=Path, help="a run folder of pretrain")
    command.add_argument("--step", type=int, help="which checkpoint (default: the latest)")
    exported = "the same checkpoint, converted (default: converts it for this once)"
    command.add_argument("--pytorch_folder", type=Path, help=exported)
    command.add_argument(
        "--store", type=Path, help="the token store (default: where the run had it)"
    )
    command.add_argument("--documents", type=int, default=8, help="size of the batch (default: 8)")
    batch_out = "write inputs, labels, losses, vectors and gradient norms to this .npz file"
    command.add_argument("--batch_out", type=Path, help=batch_out)
    add_json_out(command)


def _verify(arguments: Arguments) -> int:
    if arguments.checkpoint is None:
        _verify_store(arguments.store)
        return 0
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


def _verify_store(store: Path | None) -> None:
    from cocondenser_jax.corpus.store import verify_store

    if store is None:
        raise UserError("give --checkpoint, or --store alone to check its files")
    verify_store(store)
    print(f"{store}: every file is as it was written")
