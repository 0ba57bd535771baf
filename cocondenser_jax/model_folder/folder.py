"""A published model as one value that is passed on, and the files of its folder."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256, read_object
from cocondenser_jax.representation import Representation

# Weights by format, in one file or in shards listed by an index. transformers prefers the first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# The Condenser head: our file, and that of the published research checkpoints.
OWN_HEAD = "condenser_head.safetensors"
HEADS = (OWN_HEAD, "model.pt")
# Files that define a tokenizer. A BPE tokenizer has its merges next to vocab.json.
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken", "*.codes")
# Files that vectors depend on: weights (also of adapters), settings and tokenizers.
_OF_VECTORS = ("*.safetensors", "pytorch_model*.bin", "*.json", "merges.txt", *TOKENIZERS)


class Network(NamedTuple):
    """The network of a model, or of one of its two towers, and the folder of its tokenizer."""

    path: Path
    config: Mapping[str, Any]  # its config.json
    weights: tuple[Path, ...]  # the files that transformers reads; () if there are none
    # Settings by which sentence-transformers reads it otherwise than these files say.
    read_otherwise: tuple[str, ...] = ()

    def sha256(self) -> str:
        """Returns a hash of all files that its outputs depend on."""
        return sha256_of(self.path, self.weights)


class ModelFolder(NamedTuple):
    """A model's description, read once from its files.

    JAX and PyTorch code read the same: the weight files of transformers and the representation of
    sentence-transformers' modules. `sha256` covers every file that either reads.
    """

    name: str  # as it was given
    path: Path
    networks: Mapping[str, Network]  # by TASKS if there are two towers, else by ""
    representation: Representation
    dense: tuple[Path, ...]  # the folders of the Dense layers, in their order
    lowers_case: bool  # whether texts are lower-cased before tokenization
    is_plain: bool  # whether it has no modules.json

    def __hash__(self) -> int:
        """Hashes the path, since mappings have no hash."""
        return hash(self.path)

    @property
    def network(self) -> Network:
        """The network of a model with one tower; a UserError for two."""
        if len(self.networks) > 1:
            raise UserError(f"{self.path} has two towers (a Router): expected one")
        return next(iter(self.networks.values()))

    @property
    def head(self) -> Path | None:
        """The file of the Condenser head."""
        files = (self.path / name for name in HEADS)
        return next((file for file in files if file.is_file()), None)

    def sha256(self) -> str:
        """Returns a hash of all files that the vectors depend on."""
        read = [*self.dense]
        for network in self.networks.values():
            read += [network.path, *network.weights]
        return sha256_of(self.path, read)


def is_cross_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a network has a head that scores or classifies texts, by its config.json."""
    return "ForSequenceClassification" in str(config.get("architectures"))


def require_float_weights(network: Network) -> None:
    """Raises a UserError for quantized weights, which cannot be trained."""
    if quantization := network.config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UserError(
            f"{network.path}/config.json: quantization_config says that the weights are quantized"
            f" ({method}), which cannot be trained: expected the unquantized model"
        )


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
