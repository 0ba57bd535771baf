"""A published model → a folder with everything explicit, readable without PyTorch."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import save_file

from cocondenser_jax.convert.from_torch import load_vectors, read_shape, read_weights
from cocondenser_jax.errors import UnsupportedError, UserError
from cocondenser_jax.files.whole import new_folder, write_json
from cocondenser_jax.model_folder.folder import (
    TOKENIZERS,
    ModelFolder,
    find_weights,
    require_outside,
)
from cocondenser_jax.model_folder.modules import NETWORK, dense_folders, to_files

_BESIDE_TOKENIZER = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)


def resolve_model(model: ModelFolder, out: Path) -> None:
    """Copies a model that the Flax network computes, with what was given or is known written down.

    Args:
      model: the opened model.
      out: the folder to make; `open_model` and sentence-transformers find the same representation
        in it.

    Raises:
      UserError: if the Flax network cannot compute the model.
    """
    require_outside(model.path, out)
    try:
        shape = read_shape(model)
    except UnsupportedError as error:
        raise UserError(f"{model.path}: {error.reason}") from error
    load_vectors(model)  # finds weights that are damaged, or another network's
    network = model.network
    files = to_files(
        shape.representation,
        shape.hidden_size,
        shape.max_length,
        has_pooler=shape.backbone.pooler,
        lowers_case=model.lowers_case,
    )
    with new_folder(out) as folder:
        for name, content in {**files, NETWORK: dict(network.config)}.items():
            write_json(folder / name, content)
        for pattern in (*TOKENIZERS, *_BESIDE_TOKENIZER):
            for path in network.path.glob(pattern):
                shutil.copyfile(path, folder / path.name)
        if model.head:
            shutil.copyfile(model.head, folder / model.head.name)
            if (model.path / "condenser.json").is_file():
                shutil.copyfile(model.path / "condenser.json", folder / "condenser.json")
        _copy_weights(network.weights, network.path, folder)
        for place, layer in zip(dense_folders(files), model.dense, strict=True):
            _copy_weights(find_weights(layer), layer, folder / place)


def _copy_weights(files: Sequence[Path], read_from: Path, out: Path) -> None:
    """Writes weights as one file that can be read without PyTorch."""
    save_file(read_weights(files, read_from), out / "model.safetensors", metadata={"format": "pt"})
