"""The files of a model folder, as Hugging Face and sentence-transformers lay them out."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256, read_object

# The weights by format: in one file; or in shards, which an index names. transformers prefers the
# first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# The Condenser head: as we write it, or as the published research checkpoints have it.
OWN_HEAD = "condenser_head.safetensors"
HEADS = (OWN_HEAD, "model.pt")
# Of which a tokenizer is made; the merges of a BPE are beside its vocab.json.
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")
# What vectors depend on: weights, those of adapters too, settings and tokenizers.
_OF_VECTORS = ("*.safetensors", "pytorch_model*.bin", "*.json", "merges.txt", *TOKENIZERS)


def find_weights(folder: Path) -> list[Path]:
    """Returns the files of a folder's weights that transformers reads; none where it has none."""
    for name in WEIGHTS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            places = read_object(index).get("weight_map")
            if not isinstance(places, dict) or not places:
                raise UserError(f"{index}: expected the file of each tensor in weight_map")
            return [folder / str(place) for place in sorted({*places.values()}, key=str)]
    return []


def sha256_of(folder: Path, also: Sequence[Path]) -> str:
    """Returns a hash of everything that a model depends on; see `files_of_vectors`."""
    digest = hashlib.sha256()
    for path in files_of_vectors(folder, also):
        digest.update(f"{os.path.relpath(path, folder)}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()


def files_of_vectors(folder: Path, also: Sequence[Path]) -> list[Path]:
    """Returns all files that a folder's vectors depend on, those behind links too.

    Args:
      folder: of the model.
      also: files and folders that are read with it, wherever they are.
    """
    found = {path for path in also if path.is_file()}
    for root in (folder, *also):
        for place, _, _ in os.walk(root, followlinks=True):
            found.update(path for pattern in _OF_VECTORS for path in Path(place).glob(pattern))
    return sorted(path for path in found if path.is_file())  # no link that leads nowhere


def require_outside(folder: Path, out: Path) -> None:
    """Raises a UserError for an output within a model's folder, where it would count as its files.

    Args:
      folder: of the model; the name of one on the hub has none.
      out: the folder to write.
    """
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{out} lies in the folder of the model, {folder}: choose another place")
