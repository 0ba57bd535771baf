r"""Trains beside the authors' release: the same spans, order, masks, rates and optimizer.

  git clone https://github.com/luyug/Condenser && git clone https://github.com/luyug/GradCache
  OMP_NUM_THREADS=1 python -m benchmarks.release_training \
    --condenser=Condenser --gradcache=GradCache --data=boolq --finetune_data=boolq-small \
    --workdir=runs/release --json_out=benchmarks/results/release_training.json

Our side is `pretrain` and `convert`, as a user calls them. The other is the release's model, its
trainer's loss and gradient, AdamW and the clipping of the gradient as its Trainer has them, on the
batches that ours reads; its folder is what its `save_pretrained` writes. Each of the `RUNS` starts
from one folder that the release wrote: stage 1 from its new model, stage 2 from its stage 1.

After every step the terms of both losses are compared; at the end, the vectors of held-out
documents, and what both find after the same `finetune`, `encode`, `retrieve` and `evaluate`.

Two choices are the same on both sides by decision. The rate is ours: the first step already moves,
where transformers' schedule gives it a rate of 0. The release averages MLM over the masked tokens
of each chunk, ours over those of the batch: here its gradient cache has one chunk, and ours four.

What is there is not made again, and both sides resume from their last checkpoint: a run that was
killed continues by the same command.
"""

import argparse
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModel, BertConfig, logging

from benchmarks.release import cache_settings, cached_trainer, import_release, open_model
from benchmarks.results import report
from benchmarks.step import adamw
from checks.reference import full_labels
from cocondenser_jax.configs import cocondenser, condenser
from cocondenser_jax.corpus.batches import Batch, BatchSpec, held_out_batch, make_batch
from cocondenser_jax.corpus.store import TokenStore, open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import lock_folder, start_or_compare
from cocondenser_jax.files.whole import file_sha256, new_folder
from cocondenser_jax.pretrain.experiment import resolve

VOCAB_SIZE = 8192
CLONED = ("modeling.py", "trainer.py"), ("src/grad_cache/grad_cache.py",)  # that must be there
N_HEAD_LAYERS = 2
SKIP_FROM = 2
NETWORK: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
TERMS = {  # of the losses that are logged, and what the table calls them
    "loss": "loss",
    "head_mlm_loss": "head's MLM",
    "late_mlm_loss": "late MLM",
    "contrastive_loss": "contrastive",
}
N_INTERVALS = 10  # of a run, whose largest differences are kept
SAVE_EVERY = 25  # steps of the release
STATE = "state.pt"
TERMS_FILE = "release.json"
METRICS = ("MRR@10", "Recall@100")
ROWS_AT_ONCE = 64  # spans that are encoded

Tensors = dict[str, torch.Tensor]
# Adds the gradient of a batch to a model's; returns the terms of the loss.
Step = Callable[[Tensors], dict[str, float]]
OpenRelease = Callable[["Run", Path, "Protocol"], tuple[Any, Step]]


class Run(NamedTuple):
    """A training run of both sides."""

    name: str
    folder: str
    mlm_weight: float | None  # None for stage 1, which has no contrastive loss
    learning_rate: float  # peak


# A new model takes a higher rate than the papers', which is that of stage 2.
RUNS = (
    Run("stage 1 (Condenser)", "stage1", None, 5e-4),
    Run("stage 2, MLM weight 1", "stage2-weight1", 1.0, 1e-4),
    Run("stage 2, MLM weight 2", "stage2-weight2", 2.0, 1e-4),
)


class Inputs(NamedTuple):
    """The folders that are read."""

    condenser: Path  # the clone of the release
    gradcache: Path  # the clone of its library
    data: Path  # whose passages are trained on
    finetune_data: Path


class Protocol(NamedTuple):
    """What both sides do; all runs of a work folder have one."""

    steps: int = 500
    documents: int = 32  # a step; stage 1: spans
    length: int = 32  # tokens of a span, and of a passage once fine-tuned
    chunk_size: int = 16  # spans, ours
    held_out: int = 512  # documents
    finetune_epochs: int = 3
    finetune_rate: float = 3e-4
    finetune_queries: int = 64  # a step


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, compares and prints; bad input is one line and exit status 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--condenser", type=Path, required=True, help="the clone of the release")
    parser.add_argument("--gradcache", type=Path, required=True, help="the clone of its library")
    parser.add_argument("--data", type=Path, required=True, help="passages to pre-train on")
    finetune_data = "collection with qrels train and test"
    parser.add_argument("--finetune_data", type=Path, required=True, help=finetune_data)
    parser.add_argument("--workdir", type=Path, required=True, help="what is made, each thing once")
    parser.add_argument("--steps", type=int, default=Protocol().steps, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args(argv)
    logging.set_verbosity_error()
    inputs = Inputs(*(getattr(arguments, name) for name in Inputs._fields))
    try:
        rows = compare_training(inputs, Protocol(steps=arguments.steps), arguments.workdir)
        report(rows, arguments.json_out)
    except UserError as error:
        parser.exit(2, f"release_training: {error}\n")


def compare_training(inputs: Inputs, protocol: Protocol, workdir: Path) -> Iterator[dict[str, Any]]:
    """Makes all that is missing in the work folder; yields a row for each run."""
    with lock_folder(workdir):
        start_or_compare(workdir / "protocol.json", describe(inputs, protocol))
        store = make_store(inputs.data, workdir, protocol.length)
        code = [str(inputs.condenser), str(inputs.gradcache / "src")]
        release = import_release(code)
        open_release = functools.partial(open_side, release)
        start = workdir / "start"
        make_once(start, functools.partial(write_start, release[0], store))
        untrained = start
        for run in RUNS:
            folder = workdir / run.folder
            pretrain_both(run, start, store, protocol, folder, open_release)
            yield result_row(run, store, inputs.finetune_data, protocol, folder)
            if run.mlm_weight is None:
                yield control_row(run, start, store, protocol, folder)
                start = folder / "release"
        yield untrained_row(untrained, inputs.finetune_data, protocol, workdir)


def describe(inputs: Inputs, protocol: Protocol) -> dict[str, Any]:
    """Returns all that decides the results, as `protocol.json` has it.

    Raises:
      UserError: where a folder is not what it should be.
    """
    code = []
    for folder, names in zip((inputs.condenser, inputs.gradcache), CLONED, strict=True):
        code += [folder / name for name in names]
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise UserError(f"{folder} has no {missing[0]}: expected a clone, see --help")
    data = inputs.data, inputs.finetune_data
    for folder in data:
        if not [*folder.glob("corpus.jsonl*")]:
            raise UserError(f"{folder} has no corpus.jsonl: expected a folder in BEIR layout")
    files = [path for folder in data for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        "command": "release_training",
        **protocol._asdict(),
        "runs": [[*run] for run in RUNS],
        "code": [file_sha256(path) for path in code],
        "data": [file_sha256(path) for path in files],
    }


def make_once(out: Path, make: Callable[[Path], object]) -> Path:
    """Calls `make(out)`, which writes a file or folder whole or not at all, if it is not there."""
    if not out.exists():
        make(out)
    return out


def call(command: str, *flags: str) -> None:
    """Runs a command of ours; ends as it does if it fails, and it has said why."""
    program = [sys.executable, "-m", "cocondenser_jax.cli", command, *flags]
    print(" ".join(["cocondenser", command, *flags]), file=sys.stderr, flush=True)
    if status := subprocess.run(program, check=False).returncode:
        raise SystemExit(status)


def make_store(data: Path, workdir: Path, length: int) -> TokenStore:
    """Returns the spans of a folder's passages, in tokens of a vocabulary learned from them."""
    source = f"--corpus={data}"
    size = f"--size={VOCAB_SIZE}"
    tokenizer = make_once(
        workdir / "tokenizer", lambda out: call("vocabulary", source, size, f"--out={out}")
    )
    flags = source, f"--tokenizer={tokenizer}", f"--max_length={length}"
    return open_store(
        make_once(workdir / "store", lambda out: call("corpus", *flags, f"--out={out}"))
    )


# ---- both sides ----


def write_start(modeling: Any, store: TokenStore, out: Path) -> None:
    """Writes a new model of the release, its MLM bias at each token's log frequency.

    From zeros, most of a short run would go into learning that most words are rare.
    """
    torch.manual_seed(0)
    config = BertConfig(**NETWORK, vocab_size=store.vocab_size, pad_token_id=store.pad_id)
    model = modeling.CondenserForPretraining.from_config(config, head_settings(), None, None)
    counts_V = torch.from_numpy(store.token_counts() + 1.0)
    model.lm.cls.predictions.bias.data = (counts_V / counts_V.sum()).log().float()
    save_release(model, store, out)


def head_settings() -> SimpleNamespace:
    """Returns the release's settings of its head."""
    return SimpleNamespace(n_head_layers=N_HEAD_LAYERS, skip_from=SKIP_FROM, late_mlm=True)


def save_release(model: Any, store: TokenStore, out: Path) -> None:
    """Writes what the release's `save_pretrained` does, with the tokenizer."""
    with new_folder(out) as folder:
        model.save_pretrained(str(folder))
        shutil.copytree(store.tokenizer_folder, folder, dirs_exist_ok=True)


def pretrain_both(
    run: Run,
    start: Path,
    store: TokenStore,
    protocol: Protocol,
    folder: Path,
    open_release: OpenRelease,
) -> None:
    """Trains both sides from one start, as far as they are not trained already.

    The folder gets `ours`, `release` and `release.json`, the terms of the release's losses.
    """
    settings = settings_of(run, start, store, protocol)

    def train_theirs(out: Path) -> None:
        config = condenser if run.mlm_weight is None else cocondenser
        experiment = config.get_config().unlock()
        experiment.update_from_flattened_dict(settings)
        spec = resolve(experiment, store).batches
        model, step = open_release(run, start, protocol)
        rates = [learning_rate(run, protocol, number) for number in range(protocol.steps)]
        batch = functools.partial(make_batch, store, spec)
        terms = train_release(model, step, batch, rates, folder)
        (folder / TERMS_FILE).write_text(json.dumps(terms) + "\n", encoding="utf-8")
        save_release(model, store, out)

    make_once(folder / "ours", functools.partial(train_ours, run, settings))
    make_once(folder / "release", train_theirs)


def train_ours(run: Run, settings: Mapping[str, Any], out: Path) -> None:
    """Pre-trains in the folder OUT.run, and makes a Hugging Face folder of the result."""
    overrides = [f"--config.{name}={value}" for name, value in settings.items()]
    config = "condenser" if run.mlm_weight is None else "cocondenser"
    workdir = out.with_suffix(".run")
    call("pretrain", f"--config=configs/{config}.py", f"--workdir={workdir}", *overrides)
    call("convert", f"--run_dir={workdir}", f"--out={out}")


def settings_of(run: Run, start: Path, store: TokenStore, protocol: Protocol) -> dict[str, Any]:
    """Returns what our experiment of a run has in place of the papers' settings."""
    return {
        "warm_start": str(start),
        "data.store": str(store.path),
        "data.batch_size": protocol.documents,
        "data.length": protocol.length,
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
        "model.n_head_layers": N_HEAD_LAYERS,
        "model.skip_from": SKIP_FROM,
        "train.steps": protocol.steps,
        "train.mlm_weight": run.mlm_weight or 1.0,
        "train.chunk_size": protocol.chunk_size,
        "train.dtype": "float32",
        "optimizer.learning_rate": run.learning_rate,
        "checkpoint.every": 50,
        "probe.every": protocol.steps,
        "probe.documents": protocol.held_out,
        "log_every": 1,
    }


# ---- the release ----


def open_side(
    release: tuple[Any, Any], run: Run, start: Path, protocol: Protocol
) -> tuple[Any, Step]:
    """Returns a model of the release, and the step of its trainer up to the gradient.

    Under its gradient cache the release weights MLM by 2, because it divides by documents where a
    batch holds two spans of each; told of twice the documents, by 1.
    """
    modeling, trainer = release
    settings = cache_settings(protocol.documents, 2 * protocol.documents)
    is_first = run.mlm_weight is None
    kind = modeling.CondenserForPretraining if is_first else modeling.CoCondenserForPretraining
    model = open_model(kind, start, head_settings(), settings)
    terms = watch_terms(model)
    if run.mlm_weight is None:
        gradient = functools.partial(plain_gradient, trainer, model)
    else:
        settings.per_device_train_batch_size = round(2 * protocol.documents / run.mlm_weight)
        made = cached_trainer(trainer, model, settings)
        gradient = functools.partial(made.training_step, model)

    def step(inputs: Tensors) -> dict[str, float]:
        terms.clear()
        loss = float(gradient(inputs))
        return {"loss": loss, **terms}

    return model, step


def plain_gradient(trainer: Any, model: Any, inputs: Tensors) -> torch.Tensor:
    """Adds the gradient of the loss of the release's trainer of Condenser; returns the loss."""
    made = trainer.CondenserPreTrainer.__new__(trainer.CondenserPreTrainer)
    loss: torch.Tensor = made.compute_loss(model.train(), inputs)
    loss.backward()
    return loss.detach()


def watch_terms(model: Any) -> dict[str, float]:
    """Returns a mapping that gets the terms of the release's loss, of one chunk, as it has them."""
    terms: dict[str, float] = {}

    def noted(name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def note(*arguments: Any) -> torch.Tensor:
            value = function(*arguments)
            terms[name] = value.item()  # now: the next term is added to it in place
            return value

        return note

    def note_late(_: Any, __: Any, output: Any) -> None:
        if output.loss is not None:  # not so in the first pass of the gradient cache
            terms["late_mlm_loss"] = output.loss.item()

    model.mlm_loss = noted("head_mlm_loss", model.mlm_loss)
    model.lm.register_forward_hook(note_late)
    if hasattr(model, "compute_contrastive_loss"):
        contrast = model.compute_contrastive_loss
        model.compute_contrastive_loss = noted("contrastive_loss", contrast)
    return terms


def train_release(
    model: Any,
    step: Step,
    batch: Callable[[int], Batch],
    rates: Sequence[float],
    folder: Path,
) -> list[dict[str, float]]:
    """Trains a model for as many steps as there are rates; returns the terms of each step's loss.

    Resumes from `STATE` in the folder, if it is there.
    """
    optimizer = adamw(model)
    done: list[dict[str, float]] = []
    path = folder / STATE
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["terms"]
    for number in range(len(done), len(rates)):
        for group in optimizer.param_groups:
            group["lr"] = rates[number]
        done.append(step(as_release_reads(batch(number))))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if len(done) % SAVE_EVERY == 0:
            save_state(path, model, optimizer, done)
            print(f"{folder.name}: step {len(done)} of {len(rates)}", file=sys.stderr)
    return done


def save_state(path: Path, model: Any, optimizer: Any, terms: list[dict[str, float]]) -> None:
    """Writes the state of a training, whole or not at all."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "terms": terms}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def learning_rate(run: Run, protocol: Protocol, step: int) -> float:
    """Returns the rate of a step, from 0: linear to the peak over a tenth of all, and to 0."""
    n_warmup = round(0.1 * protocol.steps)
    rising = (step + 1) / max(n_warmup, 1)
    falling = (protocol.steps - step) / max(protocol.steps - n_warmup, 1)
    return run.learning_rate * min(rising, falling)


def as_release_reads(batch: Batch) -> Tensors:
    """Returns a batch as the release's collators write it."""
    return {
        "input_ids": torch.from_numpy(batch.input_ids_SxL).long(),
        "attention_mask": torch.from_numpy(batch.attention_mask_SxL).long(),
        "labels": full_labels(batch),
    }


# ---- the comparison ----


def untrained_row(start: Path, data: Path, protocol: Protocol, workdir: Path) -> dict[str, Any]:
    """Returns what fine-tuning makes of the model before any pre-training."""
    ranked = rank(start, data, protocol, workdir / "untrained")
    evaluated = evaluate(ranked, data, workdir / "untrained.json")
    means = {f"{name}, ours": evaluated["mean"][name] for name in METRICS}
    return {"run": "before pre-training", **means}


def result_row(
    run: Run, store: TokenStore, data: Path, protocol: Protocol, folder: Path
) -> dict[str, Any]:
    """Returns how far both sides of a run are apart."""
    theirs = json.loads((folder / TERMS_FILE).read_text(encoding="utf-8"))
    row = {"run": run.name, **compare_terms(read_terms(folder / "ours.run"), theirs)}
    sides = [folder / "ours", folder / "release"]
    texts = held_out_texts(store, protocol)
    row |= compare_vectors(*(encode(side, *texts) for side in sides))
    runs = [rank(side, data, protocol, side.with_suffix(".search")) for side in sides]
    evaluated = evaluate(runs[0], data, folder / "evaluated.json", runs[1])
    for name in METRICS:
        row |= compare_metric(name, evaluated["comparisons"][name])
    return row


def control_row(
    run: Run, start: Path, store: TokenStore, protocol: Protocol, folder: Path
) -> dict[str, Any]:
    """Returns how far our own training is apart from itself with sums in another order.

    The batch is one chunk.
    """
    settings = settings_of(run, start, store, protocol) | {"train.chunk_size": 0}
    again = make_once(folder / "again", functools.partial(train_ours, run, settings))
    terms = [read_terms(folder / f"{name}.run") for name in ("ours", "again")]
    texts = held_out_texts(store, protocol)
    vectors = [encode(side, *texts) for side in (folder / "ours", again)]
    name = f"{run.name}: ours against itself, in one chunk"
    return {"run": name, **compare_terms(*terms), **compare_vectors(*vectors)}


def read_terms(run: Path) -> list[dict[str, float]]:
    """Returns the terms of each step's loss of one of our runs."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {name: x for name, x in line.items() if name in TERMS} for line in lines if "loss" in line
    ]


def compare_terms(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Returns the largest difference of each term: of all steps, and of each part of the run.

    Raises:
      UserError: if the two are not of the same steps and terms.
    """
    if [each.keys() for each in ours] != [each.keys() for each in theirs]:
        raise UserError(
            f"ours has {len(ours)} steps of {sorted(ours[0])}, the release {len(theirs)} of"
            f" {sorted(theirs[0])}: expected the same"
        )
    row: dict[str, Any] = {"steps": len(ours)}
    for name, label in TERMS.items():
        if name not in ours[0]:
            row[f"{label}, largest difference"] = ""
            continue
        ours_T, theirs_T = (np.array([each[name] for each in side]) for side in (ours, theirs))
        apart_T = np.abs(ours_T - theirs_T)
        if name == "loss":
            row["loss, from and to"] = f"{theirs_T[0]:.3f}, {theirs_T[-1]:.3f}"
        row[f"{label}, largest difference"] = float(apart_T.max())
        parts = np.array_split(apart_T, min(N_INTERVALS, len(ours)))
        row[f"{label}, along the run"] = [float(part.max()) for part in parts]
    return row


def held_out_texts(store: TokenStore, protocol: Protocol) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and mask of two spans of each document that no run saw, nothing masked."""
    spec = BatchSpec(0, protocol.documents, protocol.length, held_out=protocol.held_out)
    batch = as_release_reads(held_out_batch(store, spec._replace(masked=False)))
    return batch["input_ids"], batch["attention_mask"]


def encode(folder: Path, ids_SxL: torch.Tensor, mask_SxL: torch.Tensor) -> torch.Tensor:
    """Returns the [CLS] vectors of texts by a folder's model, as transformers loads it."""
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    parts = zip(ids_SxL.split(ROWS_AT_ONCE), mask_SxL.split(ROWS_AT_ONCE), strict=True)
    with torch.no_grad():
        return torch.cat(
            [model(input_ids=x, attention_mask=m).last_hidden_state[:, 0] for x, m in parts]
        )


def compare_vectors(ours_SxD: torch.Tensor, theirs_SxD: torch.Tensor) -> dict[str, float]:
    """Returns how far a text's two vectors are apart at most, and those of different texts."""
    ours_SxD, theirs_SxD = ours_SxD.double(), theirs_SxD.double()
    cosines_S = torch.nn.functional.cosine_similarity(ours_SxD, theirs_SxD)
    others_S = torch.nn.functional.cosine_similarity(ours_SxD, theirs_SxD.roll(2, 0))
    return {
        "1 - cosine, largest": 1 - cosines_S.min().item(),
        "1 - cosine of different texts, mean": 1 - others_S.mean().item(),
    }


def rank(model: Path, data: Path, protocol: Protocol, folder: Path) -> Path:
    """Returns the run of a model for the test queries, once it is fine-tuned on those of train."""
    settings = {
        "model.folder": model,
        "model.passage_length": protocol.length,
        "data.folder": data,
        "data.negatives_per_query": 0,
        "data.batch_size": protocol.finetune_queries,
        "train.epochs": protocol.finetune_epochs,
        "train.precision": "float32",
        "optimizer.learning_rate": protocol.finetune_rate,
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    retriever, embeddings = folder / "finetuning" / "retriever", folder / "embeddings"

    def search(out: Path) -> None:
        if not retriever.exists():
            call(
                "finetune",
                "--config=configs/finetune.py",
                f"--workdir={retriever.parent}",
                *overrides,
            )
        model_flag = f"--model={retriever}"
        call("encode", model_flag, f"--corpus={data}", f"--out={embeddings}", "--precision=float32")
        flags = f"--data={data}", "--split=test", f"--run_out={out}"
        call("retrieve", f"--embeddings={embeddings}", model_flag, *flags)
        shutil.rmtree(embeddings)

    return make_once(folder / "test.trec", search)


def evaluate(run: Path, data: Path, out: Path, other: Path | None = None) -> dict[str, Any]:
    """Returns what `evaluate` measures of a run, beside another where there is one."""
    flags = [
        f"--run={run}",
        f"--qrels={data / 'qrels' / 'test.tsv'}",
        f"--metric={','.join(METRICS)}",
        f"--json_out={out}",
    ]
    call("evaluate", *flags, *([f"--compare_with={other}"] if other else []))
    return dict(json.loads(out.read_text()))


def compare_metric(name: str, tests: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a metric of both sides, and its difference with the 95 % interval."""
    low, high = tests["interval"]
    return {
        f"{name}, ours": tests["mean"],
        f"{name}, the release": tests["other_mean"],
        f"{name}, difference (95 %)": f"{tests['difference']:+.4f} ({low:+.4f} to {high:+.4f})",
    }


if __name__ == "__main__":
    main()
