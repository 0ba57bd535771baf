"""The files of a model folder, as Hugging Face and sentence-transformers lay them out."""

import itertools
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import (
    MODULES,
    NOTHING_GIVEN,
    ROUTER,
    Given,
    Representation,
    dense_paths,
    from_files,
    json_files,
    unrouted,
    with_given,
)
from cocondenser_jax.storage.files import read_json

# The weights by format, in one file or in shards; transformers prefers the first.
WEIGHTS = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
)
# The Condenser head: as we write it, or as the published research checkpoints have it.
OWN_HEAD = "condenser_head.safetensors"
HEADS = (OWN_HEAD, "model.pt")
# What vectors depend on: weights, those of adapters too, settings and tokenizers.
_OF_VECTORS = (
    "*.safetensors",
    "pytorch_model*.bin",
    "*.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
)


def find_weights(folder: Path) -> list[Path]:
    """Returns the files of a folder's weights, in one format; none where it has no weights."""
    for pattern in itertools.chain.from_iterable(WEIGHTS):
        if paths := sorted(folder.glob(pattern)):
            return paths
    return []


def find_dense(folder: Path) -> list[Path]:
    """Returns the folders of the dense layers after the pooling, in their order."""
    return [folder / path for path in dense_paths(read_json(folder / MODULES))]


def files_of_vectors(folder: Path) -> list[Path]:
    """Returns all files that a folder's vectors depend on, those of its modules too."""
    return sorted({path for pattern in _OF_VECTORS for path in folder.rglob(pattern)})


def read_representation(
    folder: Path, given: Given = NOTHING_GIVEN, plain: Given = NOTHING_GIVEN
) -> Representation:
    """Returns what the vectors of a model folder are.

    Args:
      folder: of transformers or of sentence-transformers, with one tower or two.
      given: what a user says in place of what the folder says.
      plain: what a folder without modules.json means, where that is not what it means to
        sentence-transformers; see `representation.from_files`.

    Raises:
      UserError: see `representation.from_files`; or for two towers that make different vectors.
    """
    try:
        passages, *others = [_read_modules(folder, modules) for modules in _routes(folder)]
        if any(each._replace(max_length=passages.max_length) != passages for each in others):
            raise ValueError("makes the vectors of queries otherwise than those of passages")
    except ValueError as error:
        raise UserError(f"{folder} {error}") from error
    if not (folder / MODULES).is_file():
        passages = with_given(passages, plain)
    return with_given(passages, given)


def _routes(folder: Path) -> list[Any]:
    """Returns the modules of passages, and those of queries too where there are two towers."""
    if not (folder / MODULES).is_file():
        return [None]
    modules = read_json(folder / MODULES)
    if not (folder / ROUTER).is_file():
        return [modules]
    router = read_json(folder / ROUTER)
    return [unrouted(modules, router, route) for route in ("document", "query")]


def _read_modules(folder: Path, modules: Any) -> Representation:
    names = [name for name in json_files(modules) if (folder / name).is_file()]
    return from_files(modules, {name: read_json(folder / name) for name in names})
