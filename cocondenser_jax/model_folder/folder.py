"""Files of a model folder, in the layouts of Hugging Face and sentence-transformers."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256, read_object

# Weights by format, in one file or in shards listed by an index. transformers prefers the first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# The Condenser head: our file, and that of the published research checkpoints.
OWN_HEAD = "condenser_head.safetensors"
HEADS = (OWN_HEAD, "model.pt")
# Files that define a tokenizer. A BPE tokenizer has its merges next to vocab.json.
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")
# Files that vectors depend on: weights (also of adapters), settings and tokenizers.
_OF_VECTORS = ("*.safetensors", "pytorch_model*.bin", "*.json", "merges.txt", *TOKENIZERS)


def find_weights(folder: Path) -> list[Path]:
    """Returns the weight files that transformers reads in a folder; [] if there are none."""
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
    """Returns a SHA-256 over the names and contents of `files_of_vectors`, in hexadecimal."""
    digest = hashlib.sha256()
    for path in files_of_vectors(folder, also):
        digest.update(f"{os.path.relpath(path, folder)}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()


def files_of_vectors(folder: Path, also: Sequence[Path]) -> list[Path]:
    """Returns all files that a model's vectors depend on, sorted, including linked ones.

    Args:
      folder: the model's folder.
      also: other files and folders that are read with it.
    """
    found = {path for path in also if path.is_file()}
    for root in (folder, *also):
        for place, _, _ in os.walk(root, followlinks=True):
            found.update(path for pattern in _OF_VECTORS for path in Path(place).glob(pattern))
    return sorted(path for path in found if path.is_file())  # without broken links


def require_outside(folder: Path, out: Path) -> None:
    """Raises a UserError for an output inside a model's folder: it would become part of the model.

    Args:
      folder: the model's folder; anything else, such as a name on the Hub, is accepted.
      out: the folder to write.
    """
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{out} lies in the folder of the model, {folder}: choose another place")
