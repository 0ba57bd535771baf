"""Commands that prepare and check a corpus, pre-train, convert and fine-tune."""

import re
from functools import partial
from pathlib import Path

from cocondenser_jax.backbones import BACKBONES
from cocondenser_jax.cli.flags import (
    COLUMNS,
    CORPUS,
    DOCUMENTS,
    ENGINE,
    EXPERIMENT,
    GIVEN,
    JSON_OUT,
    TITLE_SEPARATOR,
    command,
    flag,
    required,
    take_engine,
)
from cocondenser_jax.cli.output import print_command, print_metrics, print_text
from cocondenser_jax.errors import UserError


@command(
    "vocabulary --corpus=articles.jsonl.xz --corpus=books --size=30522 --out=tokenizers/mine",
    required("--corpus", CORPUS, f"{DOCUMENTS}; may be repeated", multiple=True, formerly="source"),
    COLUMNS,
    flag("--size", 30522, "entries, special tokens included"),
    flag(
        "--kind",
        ("bert", "roberta", "mpnet"),
        "WordPiece (bert, mpnet); or byte-level BPE, which is always cased",
    ),
    flag("--cased", False, "keep capitals and accents"),
    required("--out", Path, "output folder of the tokenizer, for corpus --tokenizer"),
)
def vocabulary(corpus, size, kind, cased, out):
    """Learn a tokenizer from documents, for a model from scratch."""
    from cocondenser_jax.corpus.build import build_vocabulary

    if cased and BACKBONES[kind].tokenizer != "wordpiece":
        raise UserError(f"--cased goes with --kind=bert or mpnet: {kind} is always cased")
    tokenizer = build_vocabulary(corpus, out, size, kind=kind, lowercase=not cased)
    print_text(f"{out}: {tokenizer.vocab_size:,} entries")


@command(
    "corpus --corpus=articles.jsonl.xz --tokenizer=bert-base-uncased --out=stores/wiki",
    required("--corpus", CORPUS, DOCUMENTS, formerly="source"),
    COLUMNS,
    required("--tokenizer", str, "the model's tokenizer: a folder or Hub name"),
    required("--out", Path, "output folder of the store, or a URL such as gs://bucket/store"),
    flag("--max_length", 128, "tokens per span, special tokens included", formerly="max_tokens"),
    flag("--short_span_prob", 0.0, "fraction of spans that end early, at a random length"),
    *ENGINE,
    JSON_OUT,
)
def corpus(corpus, tokenizer, out, max_length, short_span_prob, json_out, **flags):
    """Split and tokenize documents into a token store for pretrain."""
    from cocondenser_jax.corpus.build import StoreSettings, build_in_tasks, build_store
    from cocondenser_jax.files.remote import output_folder

    engine = take_engine(flags)
    with output_folder(out, grows=engine is not None) as folder:
        if engine:
            settings = StoreSettings(
                corpus=corpus,
                max_length=max_length,
                short_span_prob=short_span_prob,
            )
            manifest = build_in_tasks(settings, tokenizer, folder, engine)
        else:
            manifest = build_store(
                corpus,
                tokenizer,
                folder,
                max_length=max_length,
                short_span_prob=short_span_prob,
            )
    dropped = {f"dropped, {reason}": n for reason, n in manifest["dropped"].items()}
    print_metrics(manifest["counts"] | dropped, json_out)
    print_command(
        "pretrain",
        "--config=configs/small.py:condenser",
        f"--config.data.store={out}",
        f"--config.data.length={max_length}",
        "--workdir=runs/condenser",
    )


@command(
    "pretrain --config=configs/cocondenser.py --workdir=runs/cocondenser"
    " --config.data.store=stores/wiki --config.warm_start=runs/condenser",
    *EXPERIMENT,
    required("--workdir", Path, "the run folder: checkpoints, metrics, settings"),
    flag("--coordinator", str, "HOST:PORT of host 0; auto: ask the TPU pod, Slurm or Open MPI"),
    flag("--num_hosts", int, "with HOST:PORT: number of hosts"),
    flag("--host", int, "with HOST:PORT: number of this host, from 0"),
    flag("--profile_dir", Path, "folder for a trace of steps 2 to 5 (TensorBoard, Perfetto)"),
)
def pretrain(config, overrides, workdir, coordinator, num_hosts, host, profile_dir):
    """Pre-train a Condenser or coCondenser; run it again to resume."""
    from cocondenser_jax.corpus.store import require_stores
    from cocondenser_jax.settings import load_config

    experiment = load_config(config, overrides)
    _require_hosts(coordinator, num_hosts, host)
    if coordinator is None:  # several hosts connect first, so that all end at the same error
        require_stores(Path(experiment.data.store))
    # These load JAX; errors above are reported without that delay.
    from cocondenser_jax.pipelines.pretraining import folder_probes
    from cocondenser_jax.pretrain.devices import prepare_libtpu
    from cocondenser_jax.pretrain.hosts import is_first, run_on_hosts
    from cocondenser_jax.pretrain.loop import train

    prepare_libtpu()
    run = partial(train, experiment, workdir, folder_probes(experiment), profile_dir)
    run_on_hosts(run, coordinator, num_hosts, host)
    if is_first():
        print_command("convert", f"--run_dir={workdir}", f"--out={workdir}-model")


def _require_hosts(coordinator: str | None, n_hosts: int | None, host: int | None) -> None:
    """Raises a UserError unless the flags identify the hosts; see `run_on_hosts`."""
    if coordinator in (None, "auto"):
        is_complete = n_hosts is None and host is None
    else:
        is_named = re.fullmatch(r"[!-~]+:\d+", coordinator) is not None
        is_complete = is_named and n_hosts is not None and host is not None and 0 <= host < n_hosts
    if not is_complete:
        raise UserError(
            "several hosts need --coordinator=auto, or --coordinator=HOST:PORT with --num_hosts=N"
            " and --host=I, 0 <= I < N"
        )


@command(
    "plan --config=configs/cocondenser.py --topology=v3-8",
    *EXPERIMENT,
    required(
        "--topology",
        str,
        "TPUs: v2-8, v3-8, v4-8, v5e-8, v5p-8, v6e-8; with more hosts, v3:4x4. 1 to 8 GPUs: h100-8,"
        " h200-8, a100-80gb-8, a100-40gb-8, l4-8, rtx4090-8",
    ),
    JSON_OUT,
)
def plan(config, overrides, topology, json_out):
    """Compile the training step for TPUs or GPUs that you do not have; report memory and time."""
    from cocondenser_jax.plan.names import require_machine
    from cocondenser_jax.settings import load_config

    experiment = load_config(config, overrides, complete=False)
    require_machine(topology)
    # These load JAX; errors above are reported without that delay.
    from cocondenser_jax.plan.machines import prepare_to_plan
    from cocondenser_jax.plan.plan import plan

    prepare_to_plan()
    print_metrics(plan(experiment, topology), json_out)


def _parse_step(text: str) -> int | str:
    return text if text == "best" else int(text)


@command(
    "convert --run_dir=runs/cocondenser --out=runs/model",
    required("--run_dir", Path, "the --workdir of pretrain", formerly="checkpoint"),
    required("--out", Path, "output folder"),
    flag("--step", _parse_step, "number, or best: by the probe (default: latest)", metavar="STEP"),
)
def convert(run_dir, out, step):
    """Turn a checkpoint into a Hugging Face folder."""
    from cocondenser_jax.files.runs import require_run_folder

    require_run_folder(run_dir, "run.json")
    # This loads JAX; a missing run is reported without that delay.
    from cocondenser_jax.pretrain.export import export_run

    export_run(run_dir, out, step=step)
    print_text(out)


@command(
    "resolve --model=BAAI/bge-small-en-v1.5 --out=models/bge-small-en-v1.5",
    required("--model", str, "the model: a folder or Hub name"),
    required("--out", Path, "output folder"),
    *GIVEN,
    TITLE_SEPARATOR,
)
def resolve(model, out, **given):
    """Copy a published model so that pretrain can start from it without PyTorch."""
    from cocondenser_jax.files.whole import require_absent
    from cocondenser_jax.model_folder.model import open_model
    from cocondenser_jax.representation import Given

    require_absent(out)
    opened = open_model(model, Given(**given))
    # This loads JAX; a missing model is reported without that delay.
    from cocondenser_jax.convert.resolve import resolve_model

    resolve_model(opened, out)
    print_text(out)


@command("verify --store=stores/wiki", required("--store", Path, "a folder made by corpus"))
def verify(store):
    """Compare every file of a token store with its checksum."""
    from cocondenser_jax.corpus.store import verify_store

    verify_store(store)
    print_text(f"{store}: all files match their checksums")


@command(
    "finetune --config=configs/finetune.py --workdir=runs/finetune --config.model.folder=runs/model"
    " --config.data.folder=data/msmarco",
    *EXPERIMENT,
    required("--workdir", Path, "the run folder: the trained model, metrics, checkpoints"),
    JSON_OUT,
)
def finetune(config, overrides, workdir, json_out):
    """Fine-tune a retriever or a cross-encoder."""
    from cocondenser_jax.retriever.train.processes import is_main_process
    from cocondenser_jax.retriever.train.tasks import finetune
    from cocondenser_jax.settings import FINE_TUNING, load_config

    experiment = load_config(config, overrides, tasks=FINE_TUNING)
    words = ["finetune", f"--config={config}", f"--workdir={workdir}", *overrides]
    words += [f"--json_out={json_out}"] if json_out else []
    result = finetune(experiment, workdir, words)
    if is_main_process():
        print_metrics(result, json_out)
        if experiment.task == "retriever":
            print_command(
                "encode",
                f"--model={result['retriever']}",
                f"--corpus={experiment.data.folder}",
                f"--out={workdir}/embeddings",
            )
