"""Contrastive fine-tuning of a bi-encoder, on sentence-transformers' trainer."""

import functools
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
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState

from cocondenser_jax import files
from cocondenser_jax.errors import UserError
from cocondenser_jax.retrieval import data, trainer
from cocondenser_jax.retrieval.models import load_retriever

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
      retriever (path), steps, loss (mean of the last logged steps), seconds, and pairs.

    Raises:
      UserError: for data, a model or a setting that cannot be used, or a workdir that holds
        something else.
    """
    _require_settings(config)
    files.require_absent(workdir / "retriever")
    rows, fill = _training_rows(config)
    model = load_retriever(
        Path(config.model), config.query_length, config.passage_length, config.pooling or None
    )
    trainer.start_or_resume(workdir, config)
    columns = _columns(config)
    result = trainer.run(
        SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(
                **trainer.arguments(config, workdir),
                batch_sampler=BatchSamplers.NO_DUPLICATES,
                router_mapping=columns,
            ),
            rows,
            loss=MultipleNegativesRankingLoss(model, config.scale, inner_products),
            data_collator=SentenceTransformerDataCollator(
                remembering_tokenizer(model.tokenizer),
                router_mapping=columns,
                prompts={column: model.prompts.get(task) or "" for column, task in columns.items()},
                max_length={"query": config.query_length, "document": config.passage_length},
            ),
            callbacks=[_Redraw(rows, fill)],
        ),
        workdir,
        "retriever",
    )
    return result | {"pairs": len(rows)}


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


def _require_settings(config: ml_collections.ConfigDict) -> None:
    trainer.require_settings(config)
    if config.negatives_per_query and not config.negatives_run:
        raise UserError(
            f"config.negatives_per_query is {config.negatives_per_query}, but there is no "
            "config.negatives_run to draw them from: name a TREC run, or set it to 0"
        )
    for name, least in (("batch_size", 2), ("scale", 1e-6)):
        if config[name] < least:
            raise UserError(f"config.{name} is {config[name]}: expected at least {least}")
