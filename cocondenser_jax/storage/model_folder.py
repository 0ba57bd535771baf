"""The files of a model folder, as Hugging Face and sentence-transformers lay them out."""

from pathlib import Path

from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import MODULES, Representation, from_files, json_files
from cocondenser_jax.storage.files import read_json


def read_representation(folder: Path) -> Representation:
    """Returns what the vectors of a model folder are; see `representation.from_files`."""
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else None
    try:
        names = [name for name in json_files(modules) if (folder / name).is_file()]
        return from_files(modules, {name: read_json(folder / name) for name in names})
    except ValueError as error:
        raise UserError(f"{folder} {error}") from error
