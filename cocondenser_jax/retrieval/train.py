"""Contrastive fine-tuning of a bi-encoder, on sentence-transformers' trainer."""

import functools
import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import ml_collections
import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from tensorboardX import SummaryWriter
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.integrations import TensorBoardCallback

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import data
from cocondenser_jax.retrieval.models import load_retriever

log = logging.getLogger(__name__)

# Texts whose tokens are remembered: about 150 MB at 128 tokens.
_REMEMBERED = 100_000


def finetune(config: ml_collections.ConfigDict, workdir: Path) -> dict[str, Any]:
    """Fine-tunes a bi-encoder on (query, relevant passage) pairs; resumes an interrupted run.

    The loss, over the B queries of a step and their P passages each, is

      L = −1/B Σ_q log( exp s(q, d⁺_q) / Σ_d exp s(q, d) ),  s = scale · ⟨q, d⟩,

    where d runs over all B·P passages of the step: in-batch negatives and the sampled ones
    (Gao & Callan, arXiv 2108.05540). No text occurs twice in a step, so that a query's positive is
    not among its negatives too.

    Args:
      config: see configs/finetune.py.
      workdir: gets `retriever/` (a sentence-transformers folder, whole or absent),
        `metrics.jsonl`, TensorBoard events, and checkpoints while the run is not at its end.

    Returns:
      retriever (path), steps, pairs, seconds and the last loss.

    Raises:
      UserError: for data, a model or a setting that cannot be used, or a workdir that holds
        something else.
    """
    start = time.perf_counter()
    _require_settings(config)
    files.require_absent(workdir / "retriever")
    rows, fill = _training_rows(config)
    model = load_retriever(
        Path(config.model), config.query_length, config.passage_length, config.pooling or None
    )
    _start_or_resume(workdir, config)
    columns = _columns(config)
    progress = _Progress(workdir / "metrics.jsonl", config.batch_size)
    trainer = SentenceTransformerTrainer(
        model,
        _arguments(config, workdir),
        rows,
        loss=MultipleNegativesRankingLoss(model, config.scale, inner_products),
        data_collator=SentenceTransformerDataCollator(
            remembering_tokenizer(model.tokenizer),
            router_mapping=columns,
            prompts={column: model.prompts.get(task) or "" for column, task in columns.items()},
            max_length={"query": config.query_length, "document": config.passage_length},
        ),
        callbacks=[
            _Redraw(rows, fill),
            progress,
            TensorBoardCallback(SummaryWriter(str(workdir / "tensorboard"))),
        ],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(workdir / "checkpoints"))
    with files.new_folder(workdir / "retriever") as folder:
        model.save_pretrained(str(folder))
    shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
    return {
        "retriever": str(workdir / "retriever"),
        "steps": trainer.state.global_step,
        "pairs": len(rows),
        "loss": progress.loss,
        "seconds": time.perf_counter() - start,
    }


def inner_products(queries_QxD: torch.Tensor, passages_PxD: torch.Tensor) -> torch.Tensor:
    """Returns all inner products (Q, P), in float32 also where the encoder runs in bfloat16.

    At the size such logits have, about 200, neighbouring bfloat16 numbers are 1.0 apart.
    """
    with torch.autocast(queries_QxD.device.type, enabled=False):
        return queries_QxD.float() @ passages_PxD.float().T


def remembering_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> Callable[..., dict[str, torch.Tensor]]:
    """Wraps a tokenizer so that a text that comes back is not tokenised again.

    Texts are much longer than what is kept of them and return every epoch: for a small model,
    tokenising would take a fifth of the step.

    Returns:
      f(texts, prompt, task, max_length) → `input_ids` and `attention_mask`, (texts, tokens).
    """
    known: dict[tuple[str, int], torch.Tensor] = {}

    def tokenize(
        texts: Sequence[str], prompt: str | None = None, task: str | None = None, *, max_length: int
    ) -> dict[str, torch.Tensor]:
        if len(known) > _REMEMBERED:
            known.clear()
        keys = [((prompt or "") + text, max_length) for text in texts]
        new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            ids = tokenizer([text for text, _ in new], truncation=True, max_length=max_length)
            known.update(zip(new, map(torch.tensor, ids["input_ids"]), strict=True))
        rows = [known[key] for key in keys]
        return {
            "input_ids": pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
            "attention_mask": pad_sequence(
                [torch.ones_like(row) for row in rows], batch_first=True
            ),
        }

    return tokenize


def _training_rows(
    config: ml_collections.ConfigDict,
) -> tuple[datasets.Dataset, Callable[..., dict[str, list[str]]]]:
    """Returns the rows of ids, and the function that makes texts of them in a given epoch."""
    folder = Path(config.data)
    queries, qrels = data.read_split(folder, config.split)
    passages = {p.id: data.passage_text(p) for p in data.read_corpus(folder)}
    data.require_known_passages(qrels, passages, data.judgments_file(folder, config.split))
    qrels = data.with_positives(qrels, config.strict)
    qrels = data.sample_queries(qrels, config.train_queries, config.seed)
    candidates: dict[str, list[str]] = {}
    if config.negatives_per_query:
        candidates = data.read_candidates(
            Path(config.negatives_run), qrels, passages, config.negatives_depth
        )
    rows = data.training_pairs(qrels)
    if len(rows) < config.batch_size:
        raise UserError(
            f"{folder} has {len(rows)} training pairs in split {config.split}: "
            f"too few for one step of batch_size={config.batch_size}"
        )
    fill = functools.partial(
        data.fill_rows,
        queries=queries,
        passages=passages,
        candidates=candidates,
        n_negatives=config.negatives_per_query,
        seed=config.seed,
    )
    return rows.with_transform(functools.partial(fill, epoch=0)), fill


def _arguments(
    config: ml_collections.ConfigDict, workdir: Path
) -> SentenceTransformerTrainingArguments:
    on_gpu = torch.cuda.is_available()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(workdir / "checkpoints"),
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=config.warmup_ratio,  # below 1, it is a share of all steps
        weight_decay=config.weight_decay,
        seed=config.seed,
        bf16=on_gpu and torch.cuda.is_bf16_supported(),
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        router_mapping=_columns(config),
        dataloader_drop_last=True,
        dataloader_num_workers=config.loader_workers,
        dataloader_pin_memory=on_gpu,
        logging_steps=config.log_every,
        save_strategy="steps" if config.checkpoint_every else "no",
        save_steps=config.checkpoint_every or 1,
        save_total_limit=2,
        report_to="none",  # TensorBoard gets a folder of our own
        disable_tqdm=True,
    )
    # With several GPUs, the trainer would multiply the batch by their number.
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1
    return arguments


def _columns(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Returns the column → task mapping that decides how many tokens of a text are kept."""
    negatives = [f"negative_{i + 1}" for i in range(config.negatives_per_query)]
    return {"query": "query"} | dict.fromkeys(["positive", *negatives], "document")


class _Redraw(TrainerCallback):
    """Gives every epoch its own negatives."""

    def __init__(self, rows: datasets.Dataset, fill: Callable[..., dict[str, list[str]]]) -> None:
        self._rows, self._fill = rows, fill

    def on_epoch_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch = int(state.epoch or 0)
        self._rows.set_transform(functools.partial(self._fill, epoch=epoch))


class _Progress(TrainerCallback):
    """Writes metrics.jsonl and shows a progress bar."""

    loss = float("nan")

    def __init__(self, path: Path, batch_size: int) -> None:
        self._path, self._batch_size = path, batch_size

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        files.forget_steps_after(self._path, state.global_step)
        self._bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc="finetune", unit=" steps"
        )
        self._since = (state.global_step, time.perf_counter())

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._bar.update()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        logs: dict[str, float] = kwargs["logs"]
        if "loss" not in logs:
            return
        step, now = state.global_step, time.perf_counter()
        steps, seconds = step - self._since[0], now - self._since[1]
        self._since = (step, now)
        self.loss = logs["loss"]
        line = {
            "step": step,
            "epoch": state.epoch,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
            "pairs_per_second": steps * self._batch_size / seconds,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)

    def on_train_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._bar.close()


def _require_settings(config: ml_collections.ConfigDict) -> None:
    for name in ("model", "data"):
        if not config[name]:
            raise UserError(f"config.{name} is not set: expected a folder")
    if config.negatives_per_query and not config.negatives_run:
        raise UserError(
            f"config.negatives_per_query is {config.negatives_per_query}, but there is no "
            "config.negatives_run to draw them from: name a TREC run, or set it to 0"
        )
    for name, least in (("batch_size", 2), ("epochs", 1), ("log_every", 1), ("scale", 1e-6)):
        if config[name] < least:
            raise UserError(f"config.{name} is {config[name]}: expected at least {least}")
    if not 0 <= config.warmup_ratio < 1:
        raise UserError(f"config.warmup_ratio is {config.warmup_ratio}: expected 0 to below 1")


def _start_or_resume(workdir: Path, config: ml_collections.ConfigDict) -> None:
    """Prepares `workdir`, or makes sure that the run begun there had the same settings."""
    path = workdir / "finetune.json"
    if not path.exists():
        files.require_absent(workdir)
        try:
            workdir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create {workdir}: {error.strerror}") from error
        files.write_json(path, config.to_dict())
        return
    earlier = files.read_json(path)
    for key, value in config.to_dict().items():
        if earlier.get(key) != value:
            raise UserError(
                f"the run in {workdir} was begun with {key}={earlier.get(key)!r}, now it is "
                f"{value!r}: choose a new folder, or remove it first"
            )


def _last_checkpoint(folder: Path) -> str | None:
    """Returns the newest checkpoint that was written whole."""
    # The trainer writes its state last.
    steps = [int(path.parent.name.split("-")[1]) for path in folder.glob("*/trainer_state.json")]
    if not steps:
        return None
    log.info("resuming from step %d", max(steps))
    return str(folder / f"checkpoint-{max(steps)}")
