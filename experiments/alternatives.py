"""Train TSDAE or SimCSE, the alternatives to `adapt`, with sentence-transformers.

  python -m experiments.alternatives simcse --model=MINILM --corpus=DATA --core_minutes=10 --out=OUT

This command trains a model on the passages of a collection for the given minutes of CPU time, with
batches of 32 passages of up to 128 tokens, the settings of `adapt`. SentenceTransformer and
`encode` load the folder.

TSDAE (Wang et al., arXiv 2104.06979): the vector of a passage without 60 % of its words lets a
decoder, whose weights are the encoder's, write the whole passage. SimCSE (Gao et al., arXiv
2104.08821): two vectors of a passage, by different dropout, find each other among the batch.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    DenoisingAutoEncoderLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.trainer import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.training_args import (
    SentenceTransformerTrainingArguments,
)
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.train.processes import on_one_gpu

DELETED = 0.6  # of the words, the best fraction in section 5 of TSDAE
LENGTH = 128
BATCH_SIZE = 32
LEARNING_RATE = 3e-5


class _StopAfter(TrainerCallback):
    """Ends training once this process has used as many seconds of the cores."""

    def __init__(self, seconds: float) -> None:
        self._end = time.process_time() + seconds
        self._bar = tqdm(total=round(seconds), desc="core seconds")

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        left = self._end - time.process_time()
        self._bar.n = self._bar.total - max(round(left), 0)
        self._bar.set_postfix(steps=state.global_step)
        control.should_training_stop = left <= 0


def without_words(text: str) -> str:
    """Returns a text without 60 % of its words; one is kept at least."""
    words = text.split()
    left = [word for word in words if random.random() >= DELETED]
    return " ".join(left or random.sample(words, min(len(words), 1)))


def pairs(method: str, batch: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns what a batch of passages is trained on: the text that is read, and its target."""
    texts = list(batch["text"])
    read = [without_words(text) for text in texts] if method == "tsdae" else texts
    return {"read": read, "target": texts}


def make_loss(method: str, model: SentenceTransformer) -> torch.nn.Module:
    """Returns the loss of a method; SimCSE's is by cosines times 20, as the model was trained."""
    if method == "tsdae":
        return DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)
    return MultipleNegativesRankingLoss(model, scale=20.0)


def train(method: str, model_folder: Path, corpus: Path, core_minutes: float, out: Path) -> int:
    """Trains a model by a method on the passages of a collection, and saves it.

    Args:
      method: tsdae or simcse.
      model_folder: see `models.load_retriever`.
      corpus: a data folder, or its file of passages.
      core_minutes: of one core's time, for training alone.
      out: the folder that is made.

    Returns:
      The number of steps.
    """
    random.seed(0)
    model = load_retriever(model_folder)
    own_length = model.max_seq_length
    model.max_seq_length = min(LENGTH, own_length or LENGTH)
    passages = Dataset.from_dict({"text": [passage_text(one) for one in read_corpus(corpus)]})
    passages.set_transform(lambda batch: pairs(method, batch))
    with new_folder(out) as folder, tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            scratch,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=12,
            max_steps=1_000_000,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=0,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=on_one_gpu(arguments),
            train_dataset=passages,
            loss=make_loss(method, model),
            callbacks=[_StopAfter(60 * core_minutes)],
        )
        trainer.train()
        model.max_seq_length = own_length
        model.save_pretrained(str(folder), create_model_card=False)
    return trainer.state.global_step


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=("tsdae", "simcse"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--core_minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    given = make_parser().parse_args(arguments)
    steps = train(given.method, given.model, given.corpus, given.core_minutes, given.out)
    print(f"{steps} steps of {BATCH_SIZE} passages")


if __name__ == "__main__":
    main()
