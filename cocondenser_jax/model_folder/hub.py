"""Downloads models from the Hugging Face Hub."""

import re
from pathlib import Path

from cocondenser_jax.errors import UserError, whole_message
from cocondenser_jax.model_folder.folder import HEADS, TOKENIZERS, WEIGHTS

_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# By format, in one file or in shards.
_WEIGHTS = tuple((name, name.replace(".", "-*-of-*.")) for name in WEIGHTS)
# All other files; [0-9]_* are the modules of sentence-transformers.
_FILES = ("*.json", "*.txt", "[0-9]_*", *TOKENIZERS, *HEADS)


def require_place(name_or_folder: str | Path) -> None:
    """Raises a UserError for neither a folder nor a valid model name; does not contact the Hub."""
    path = Path(name_or_folder)
    if not path.is_dir() and (path.exists() or not _NAME.fullmatch(str(name_or_folder))):
        raise UserError(f"{name_or_folder}: no such folder, and not the name of a model on the hub")


def find_folder(name_or_folder: str | Path) -> Path:
    """Returns a model's local folder; downloads a model of the Hub unless it is cached.

    Raises:
      UserError: if there is no such folder, and the Hub and its cache have no such model.
    """
    require_place(name_or_folder)
    path = Path(name_or_folder)
    name = str(name_or_folder)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # Many models are published in both formats; fetching both would double the download.
        for weights in _WEIGHTS:
            of_two_towers = [f"*_[0-9]_*/{pattern}" for pattern in weights]
            patterns = [*_FILES, *weights, *of_two_towers]
            folder = Path(snapshot_download(name, allow_patterns=patterns))
            if any(path for pattern in weights for path in folder.rglob(pattern)):
                break
    except LocalEntryNotFoundError as error:
        raise UserError(
            f"{name}: no such folder, no network, and not in the hub's cache: give a folder"
            f" ({whole_message(error)})"
        ) from error
    except Exception as error:  # also errors of the library underneath, httpx
        raise UserError(
            f"{name}: no such folder, and the model cannot be had from the hub: "
            f"{whole_message(error)}"
        ) from error
    return folder
