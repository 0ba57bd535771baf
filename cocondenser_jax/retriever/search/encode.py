"""Encodes a corpus into shards of vectors on disk."""

import functools
import hashlib
import logging
import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from cocondenser_jax.corpus.sources import hashed
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import lock_folder, require_own, start_or_compare, task_folder
from cocondenser_jax.files.workers import Engine, run_tasks
from cocondenser_jax.model_folder.folder import ModelFolder, require_outside
from cocondenser_jax.representation import passage_prompt, title_separator, to_json
from cocondenser_jax.retriever.data.folder import (
    Passage,
    corpus_source,
    passage_text,
    read_corpus,
    survey_passages,
)
from cocondenser_jax.retriever.search.embeddings import (
    FREE_FIELDS,
    MANIFEST,
    PASSAGES,
    Dtype,
    Manifest,
    Products,
    map_shard,
    open_shards,
    passage_table,
    read_manifest,
    shard_file,
    shard_rows,
    write_shard,
)
from cocondenser_jax.retriever.search.finite import require_finite
from cocondenser_jax.retriever.search.gpus import with_gpus
from cocondenser_jax.retriever.search.quantized import (
    QUANTIZED,
    quantize,
    require_quantizable,
    require_whole_bytes,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from cocondenser_jax.retriever.search.models import Precision

logger = logging.getLogger(__name__)

# Replaces the transformer of a retriever; takes the retriever, its model folder, a batch size and a
# precision, and returns the precision that "auto" stands for.
Backend = Callable[["SentenceTransformer", ModelFolder, int, "Precision"], Products]

_TASKS = "tasks.json"  # the settings of a folder that several tasks fill
_BLOCK = 5_000  # passages tokenized and sorted together
_ROUNDING = 1e-2  # of the largest number of a vector; float16 rounds to 5e-4 of it


class Encoding(NamedTuple):
    """The model and settings of an encoding."""

    model: ModelFolder
    max_length: int | None = None  # maximum tokens of a passage; None: the model's
    # See `models.uses_bfloat16`; bfloat16 changes a vector by 0.6 % of its length.
    precision: "Precision" = "auto"
    dtype: Dtype = "float32"  # on disk
    # Passages per forward pass; None: 32 for PyTorch on a CPU, otherwise 128.
    batch_size: int | None = None
    # Runs the transformer instead of PyTorch: `flax_encoder.run_in_flax`.
    backend: Backend | None = None


class Corpus(NamedTuple):
    """The passages to encode, and their division into shards."""

    source: str | Path  # see `folder.read_corpus`
    sha256: str  # of the passages, see `folder.survey_passages`
    n_passages: int
    shard_size: int


class Encoder(NamedTuple):
    """A loaded retriever and its settings."""

    model: "SentenceTransformer"
    sha256: str  # of its model folder
    precision: Products
    batch_size: int


def encode_corpus(
    encoding: Encoding,
    corpus: str | Path,
    out: Path,
    shard_size: int | None = None,
    task: tuple[int, int] = (0, 1),
    engine: Engine | None = None,
) -> Manifest:
    """Encodes all passages into `out`, shard by shard; resumes an interrupted run.

    `embeddings.py` describes the folder. Shards that are incomplete, or have other passages than
    the corpus, are encoded again.

    Args:
      encoding: the model and settings.
      corpus: a data folder, or any source of passages (see `folder.read_corpus`).
      out: the folder for the shards; with several tasks, for their folders.
      shard_size: passages per shard, held in memory; None: see `default_shard_size`.
      task: (i, n) to encode only the shards of task i of n, from 0; see `embeddings.py`.
      engine: runs all tasks on workers; local workers have a GPU each, if there are GPUs. The
        vectors equal those of a single task.

    Returns:
      The manifest of the whole corpus.

    Raises:
      UserError: also if the folder has other vectors, or the corpus changes meanwhile.
    """
    source = corpus_source(corpus)
    if engine:
        engine = with_gpus(engine)
    require_outside(encoding.model.path, out)
    require_own_shards(out, task, in_tasks=engine is not None)
    has_unit_length = encoding.model.representation.has_unit_length
    require_quantizable(encoding.dtype, has_unit_length=has_unit_length)
    # PyTorch is loaded after all checks that do not need it.
    from cocondenser_jax.model_folder.library import require_lengths

    with lock_folder(task_folder(out, task)):
        # Finds errors in the model before the corpus is read.
        networks = encoding.model.networks.values()
        require_lengths(networks, {"--max_length": encoding.max_length})
        if engine:
            return _encode_in_tasks(encoding, _read_facts(source, shard_size), out, engine)
        encoder = load_encoder(encoding)
        to_encode = _read_facts(source, shard_size, n_tasks=task[1])
        return _write_shards(encoder, encoding, to_encode, out, task)


def require_own_shards(out: Path, task: tuple[int, int], *, in_tasks: bool) -> None:
    """Raises a UserError for an output folder with other contents than these vectors.

    Args:
      out: see `encode_corpus`; the model need not exist yet.
      task: see `encode_corpus`.
      in_tasks: whether an engine is to run all tasks.
    """
    if task[1] > 1 and (out / MANIFEST).exists():
        raise UserError(f"{out} holds the embeddings of one task: choose a new folder")
    require_own(out / _TASKS if in_tasks else task_folder(out, task) / MANIFEST)


def _changed(source: str | Path) -> UserError:
    return UserError(
        f"{source} has changed while it was encoded: the vectors may be of other passages;"
        " remove them, and encode again"
    )


def _read_facts(source: str | Path, shard_size: int | None, n_tasks: int = 1) -> Corpus:
    """Reads all passages, so that a broken line is found before the first shard."""
    n_passages, sha256, _ = survey_passages(source)
    shard_size = shard_size or default_shard_size(n_passages // n_tasks)
    return Corpus(source=source, sha256=sha256, n_passages=n_passages, shard_size=shard_size)


def load_encoder(encoding: Encoding) -> Encoder:
    """Loads the retriever of an encoding."""
    from cocondenser_jax.retriever.search.models import load, towers, uses_bfloat16

    model = load(encoding.model, passage_length=encoding.max_length)
    require_whole_bytes(encoding.dtype, model.get_embedding_dimension() or 0)
    torch_on_cpu = encoding.backend is None and model.device.type == "cpu"
    batch_size = encoding.batch_size or (32 if torch_on_cpu else 128)
    for tower in towers(model).values():
        tower.unpad_inputs = False  # True with flash attention, which would join all texts
    precision: Products
    if encoding.backend:
        precision = encoding.backend(model, encoding.model, batch_size, encoding.precision)
    else:
        in_bfloat16 = uses_bfloat16(encoding.precision, on_cpu=True)
        precision = "bfloat16" if in_bfloat16 else "float32"
    return Encoder(
        model=model,
        sha256=encoding.model.sha256(),
        precision=precision,
        batch_size=batch_size,
    )


def _describe(encoder: Encoder, encoding: Encoding, corpus: Corpus) -> Manifest:
    from cocondenser_jax.retriever.search.models import passage_tokens

    return Manifest(
        model=encoding.model.name,
        model_sha256=encoder.sha256,
        representation=encoding.model.representation,
        max_length=passage_tokens(encoder.model),
        precision=encoder.precision,
        backend=_backend_name(encoding),
        batch_size=encoder.batch_size,
        dimension=encoder.model.get_embedding_dimension() or 0,
        dtype=encoding.dtype,
        corpus=str(corpus.source),
        corpus_sha256=corpus.sha256,
        passages=corpus.n_passages,
        shard_size=corpus.shard_size,
    )


def _backend_name(encoding: Encoding) -> Literal["torch", "jax"]:
    return "jax" if encoding.backend else "torch"


# A worker keeps the model for its next task.
_load_encoder_once = functools.lru_cache(maxsize=1)(load_encoder)


def encode_task(encoding: Encoding, corpus: Corpus, out: Path, task: tuple[int, int]) -> None:
    """Encodes the shards of task i of n in a worker."""
    with lock_folder(task_folder(out, task)):
        _write_shards(_load_encoder_once(encoding), encoding, corpus, out, task)


def _write_shards(
    encoder: Encoder, encoding: Encoding, corpus: Corpus, out: Path, task: tuple[int, int]
) -> Manifest:
    """Writes the missing and damaged shards of task i of n.

    Raises:
      UserError: also if the passages differ from `corpus.sha256`.
    """
    import torch

    folder = task_folder(out, task)
    manifest = _describe(encoder, encoding, corpus)
    if (folder / MANIFEST).exists():
        logger.info("resuming with the shards in %s", folder)
    start_or_compare(folder / MANIFEST, manifest.to_json(), FREE_FIELDS)
    digest = hashlib.sha256()
    passages = hashed(read_corpus(corpus.source), digest)
    index, n_tasks = task
    own = range(index, manifest.n_shards, n_tasks)
    n_own = sum(shard_rows(manifest, number) for number in own)
    in_bfloat16 = encoder.precision == "bfloat16"
    with (
        torch.autocast(encoder.model.device.type, torch.bfloat16, enabled=in_bfloat16),
        tqdm(total=n_own, desc="encode", unit=" passages") as progress,
    ):
        for number in range(manifest.n_shards):
            rows = list(islice(passages, corpus.shard_size))
            if number not in own:
                continue
            table = passage_table(rows)
            shard = map_shard(folder, manifest, number)
            if shard is not None and shard.select(PASSAGES.names).equals(table):
                progress.update(len(rows))
                continue
            path = shard_file(folder, number)
            if path.exists():
                logger.warning("%s is damaged: encoding it again", path)
            blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
            vectors_NxD = np.concatenate(
                [_encode(encoder.model, block, encoder.batch_size, progress) for block in blocks]
            )
            write_shard(path, table, *_to_store(vectors_NxD, rows, manifest))
    if next(passages, None) is not None or digest.hexdigest() != corpus.sha256:
        raise _changed(corpus.source)
    return manifest


def _to_store(
    vectors_NxD: np.ndarray, passages: list[Passage], manifest: Manifest
) -> tuple[np.ndarray, np.ndarray | None]:
    """Converts vectors to a manifest's number format; returns them, and ranges for int8.

    Raises:
      UserError: unless all are finite and fit into the format.
    """
    names = [passage.id for passage in passages]
    reason = f"the weights of {manifest.model} are damaged, or too large for what it computes"
    if manifest.precision != "float32":
        reason += f" in {manifest.precision} (--precision=float32 may help)"
    require_finite(vectors_NxD, "passage", names, reason)
    if manifest.dtype in QUANTIZED:
        return quantize(vectors_NxD, manifest.dtype)
    with np.errstate(over="ignore"):
        stored_NxD = vectors_NxD.astype(manifest.dtype)
    too_large = f"too large for {manifest.dtype}, use --dtype=float32"
    require_finite(stored_NxD, "passage", names, too_large)
    largest_N = np.abs(vectors_NxD).max(axis=1)
    lost_N = np.abs(stored_NxD - vectors_NxD).max(axis=1) > _ROUNDING * largest_N
    if lost_N.any():
        raise UserError(
            f"vectors of numbers up to {largest_N[lost_N][0]:.1e} are too small for"
            f" {manifest.dtype}: expected --dtype=float32"
        )
    return stored_NxD, None


def _encode_in_tasks(encoding: Encoding, corpus: Corpus, out: Path, engine: Engine) -> Manifest:
    n = engine.tasks
    started = {
        "tasks": n,
        "model_sha256": encoding.model.sha256(),
        "max_length": encoding.max_length,
        "representation": to_json(encoding.model.representation),
        "precision": encoding.precision,
        "backend": _backend_name(encoding),
        "dtype": encoding.dtype,
        "corpus_sha256": corpus.sha256,
        "shard_size": corpus.shard_size,
    }
    start_or_compare(out / _TASKS, started)

    def is_done(index: int) -> bool:
        folder = task_folder(out, (index, n))
        if not (folder / MANIFEST).exists():
            return False
        manifest = read_manifest(folder)
        own = range(index, manifest.n_shards, n)
        return all(map_shard(folder, manifest, number) is not None for number in own)

    run_tasks("encode", partial(encode_task, encoding, corpus, out), is_done, engine, out / "work")
    manifest = read_manifest(out)
    open_shards(out, manifest)
    shutil.rmtree(out / "work", ignore_errors=True)
    return manifest


def default_shard_size(n_passages: int) -> int:
    """Returns passages per shard: a twentieth of the corpus, within 500 to 5,000.

    A kill loses the current shard. 500 passages take a CPU half a minute (11 TFLOP with BERT-base
    and 128 tokens), and are enough to sort by length. With 5,000, MS MARCO has 1,769 shards.
    """
    return min(max(n_passages // 20, 500), 5_000)


def _encode(
    model: "SentenceTransformer", passages: list[Passage], batch_size: int, progress: "tqdm[Any]"
) -> np.ndarray:
    """Tokenizes passages once, and encodes passages of similar length together.

    `encode_document` sorts by characters, which leaves a fifth of padding for short texts.
    """
    import torch

    separator = title_separator(model.prompts)
    texts = [passage_text(passage, separator) for passage in passages]
    features = model.preprocess(texts, prompt=passage_prompt(model.prompts), task="document")
    mask_NxL = features["attention_mask"]
    order_N = mask_NxL.sum(dim=1).argsort(descending=True, stable=True)
    vectors_NxD = torch.empty(len(texts), model.get_embedding_dimension() or 0)
    model.eval()
    with torch.inference_mode():
        for rows_B in order_N.split(batch_size):
            columns_L = mask_NxL[rows_B].any(dim=0)
            batch = {
                name: value[rows_B][:, columns_L].to(model.device)
                if torch.is_tensor(value)
                else value
                for name, value in features.items()
            }
            vectors_BxD = model(batch, task="document")["sentence_embedding"]
            vectors_NxD[rows_B] = vectors_BxD.float().cpu()
            progress.update(len(rows_B))
    return vectors_NxD.numpy()
