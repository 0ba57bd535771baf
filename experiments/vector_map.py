"""Maps the vectors of a model linearly, by their mean or as a teacher's scores teach.

  python -m experiments.vector_map --model=MODEL --embeddings=EMBEDDINGS --out=OUT \
    [--teacher=TEACHER --teacher_embeddings=EMBEDDINGS]

EMBEDDINGS are of all passages, by the model and by its teacher, as `encode` and `compare` make
them. OUT is the folder of the model with a Dense module: SentenceTransformer and `encode` load it.

The network stays as it is. With x the vector of a text, m the mean of those of the passages and W a
matrix, the new vector is W (x - m), scaled to length 1 where x is. Without a teacher, W is the
identity: a mean that all vectors share makes them alike without telling them apart (Mu et al.,
All-but-the-Top, arXiv 1702.01417). With a teacher, W is learned from there. Queries are made of the
passages (`pseudo_queries`), and minimized is, as mean over them, KL(T || S): T is the softmax over
all passages of the teacher's scores, S that of the new ones, each multiplied by the scale of its
model (distillation, Hinton et al., arXiv 1503.02531).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch.nn.functional import kl_div, log_softmax, normalize
from tqdm import tqdm

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.retriever.data.folder import passage_text
from cocondenser_jax.retriever.search.embeddings import passage_at, read_manifest
from cocondenser_jax.retriever.search.models import is_normalized
from cocondenser_jax.retriever.search.opening import OpenIndex
from experiments.pseudo_queries import make_queries
from experiments.vectors import open_embeddings, read_vectors

N_QUERIES = 4_000
LEARNING_RATE = 1e-3  # of Adam; falls linearly to 0
BATCH_SIZE = 256  # queries
EPOCHS = 8


class Vectors(NamedTuple):
    """Vectors of Q queries and N passages by a model, D numbers each."""

    queries_QxD: np.ndarray
    passages_NxD: np.ndarray
    scale: float  # of their inner products, in a softmax


class LinearMap(NamedTuple):
    """What makes weights x + bias of a vector x."""

    weights_DxD: np.ndarray
    bias_D: np.ndarray


def learn_map(own: Vectors, teacher: Vectors, *, to_unit_length: bool, seed: int) -> LinearMap:
    """Learns the map of the head of this file.

    Args:
      own: of the model.
      teacher: of another model, for the same texts; its vectors may have another size.
      to_unit_length: whether the new vectors are scaled to length 1.
      seed: of the order of the queries.
    """
    queries_QxD, passages_NxD = map(torch.tensor, own[:2])
    taught_QxE, taught_NxE = map(torch.tensor, teacher[:2])
    mean_D = passages_NxD.mean(dim=0)
    centered_QxD, centered_NxD = queries_QxD - mean_D, passages_NxD - mean_D
    scaled: Callable[[torch.Tensor], torch.Tensor] = (
        (lambda vectors: normalize(vectors, dim=1)) if to_unit_length else (lambda vectors: vectors)
    )
    weights_DxD = torch.eye(len(mean_D)).requires_grad_()
    optimizer = torch.optim.Adam([weights_DxD], lr=LEARNING_RATE)
    batches = _batches(len(queries_QxD), seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / len(batches))
    for batch in tqdm(batches, desc="map", unit="step"):
        with torch.no_grad():
            target_BxN = log_softmax(teacher.scale * taught_QxE[batch] @ taught_NxE.T, dim=1)
        mapped_BxD = scaled(centered_QxD[batch] @ weights_DxD.T)
        mapped_NxD = scaled(centered_NxD @ weights_DxD.T)
        scores_BxN = log_softmax(own.scale * mapped_BxD @ mapped_NxD.T, dim=1)
        loss = kl_div(scores_BxN, target_BxN, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    weights = weights_DxD.detach()
    return LinearMap(weights.numpy(), (-weights @ mean_D).numpy())


def _batches(n_queries: int, seed: int) -> list[torch.Tensor]:
    """Returns the numbers of the queries of each step: all in each epoch, in another order."""
    generator = torch.Generator().manual_seed(seed)
    size = min(BATCH_SIZE, n_queries)
    orders = [torch.randperm(n_queries, generator=generator) for _ in range(EPOCHS)]
    return [batch for order in orders for batch in order.split(size) if len(batch) == size]


def map_vectors(
    model: Path, embeddings: Path, out: Path, teacher: tuple[Path, Path] | None = None
) -> None:
    """Writes a model whose vectors are mapped.

    Args:
      model: see `models.load_retriever`.
      embeddings: of the passages by the model.
      out: the folder that is made.
      teacher: the model and its embeddings of the same passages; None: the mean is taken off.
    """
    opened = open_embeddings(embeddings, model)
    retriever, _, passages = opened
    if teacher is None:
        mean_D = read_vectors(passages).mean(axis=0)
        learned = LinearMap(np.eye(len(mean_D), dtype=np.float32), -mean_D)
    else:
        taught = open_embeddings(teacher[1], teacher[0])
        if not taught.passages["id"].equals(passages["id"]):
            raise UserError(f"{embeddings} and {teacher[1]} are of different passages")
        texts = [passage_text(passage_at(passages, row)) for row in range(len(passages))]
        queries = make_queries(texts, N_QUERIES, seed=0)
        learned = learn_map(
            _score_by(opened, queries, embeddings),
            _score_by(taught, queries, teacher[1]),
            to_unit_length=is_normalized(retriever),
            seed=0,
        )
    with new_folder(out) as folder:
        append_map(retriever, learned)
        retriever.save_pretrained(str(folder), create_model_card=False)


def append_map(model: SentenceTransformer, learned: LinearMap) -> None:
    """Makes the vectors of a model those of a map, at length 1 where they have it."""
    size = len(learned.bias_D)
    scales = is_normalized(model)
    layer = Dense(
        size,
        size,
        activation_function=torch.nn.Identity(),
        init_weight=torch.tensor(learned.weights_DxD),
        init_bias=torch.tensor(learned.bias_D),
    )
    model.extend([layer, *([Normalize()] if scales else [])])


def _score_by(opened: OpenIndex, queries: list[str], embeddings: Path) -> Vectors:
    queries_QxD = opened.model.encode_query(queries, show_progress_bar=True)
    scale = read_manifest(embeddings).representation.score_scale
    return Vectors(queries_QxD, read_vectors(opened.passages), scale)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--teacher_embeddings", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    given = make_parser().parse_args(arguments)
    if (given.teacher is None) != (given.teacher_embeddings is None):
        raise SystemExit("vector_map: --teacher and --teacher_embeddings go together")
    teacher = (given.teacher, given.teacher_embeddings) if given.teacher else None
    map_vectors(given.model, given.embeddings, given.out, teacher)


if __name__ == "__main__":
    main()
