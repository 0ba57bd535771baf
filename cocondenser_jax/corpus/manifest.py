"""manifest.json of a token store: read, and checked before anything in it is used."""

from pathlib import Path
from typing import Any

from cocondenser_jax.corpus.token_files import FILE_NAMES
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import is_inside, read_object

FORMAT_VERSION = 2
# Facts about its tokenizer that a store is opened by: each a whole number.
TOKENIZER_SIZES = ("vocab_size", "cls_id", "sep_id", "pad_id", "mask_id")
_LONGEST_NAME = 200  # a file name that no file system takes would raise an error of its own


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads and checks the manifest of a store, or of one shard."""
    file = folder / "manifest.json"
    if not file.exists():
        raise UserError(f"{folder} is not a store, or is unfinished: it has no manifest.json")
    manifest = read_object(file)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{file} has format version {version}, expected {FORMAT_VERSION}: make the store anew"
        )
    if wrong := _wrong_part(manifest):
        raise UserError(f"{file} is damaged: its {wrong!r} is not what `corpus` writes")
    return manifest


def _wrong_part(manifest: dict[str, Any]) -> str | None:
    """Returns the name of a part that cannot be used; None if all can."""
    tokenizer, counts, files = (manifest.get(key) for key in ("tokenizer", "counts", "files"))
    shard = manifest.get("shard")
    parts = {
        "source": isinstance(manifest.get("source"), str),
        "max_tokens": _is_count(manifest.get("max_tokens"), 1),
        "shard": isinstance(shard, list) and len(shard) == 2 and all(map(_is_count, shard)),
        "tokenizer": isinstance(tokenizer, dict)
        and all(_is_count(tokenizer.get(name)) for name in TOKENIZER_SIZES)
        and isinstance(tokenizer.get("special_ids"), list)
        and all(map(_is_count, tokenizer["special_ids"]))
        and isinstance(tokenizer.get("sha256"), str),
        "counts": isinstance(counts, dict)
        and all(_is_count(counts.get(name), 1) for name in ("documents", "spans", "tokens")),
        "files": isinstance(files, dict)
        and files.keys() >= set(FILE_NAMES)
        and all(
            isinstance(facts, dict)
            and _is_count(facts.get("bytes"))
            and isinstance(facts.get("sha256"), str)
            and len(name) <= _LONGEST_NAME
            and is_inside(name)
            for name, facts in files.items()
        ),
    }
    return next((name for name, is_right in parts.items() if not is_right), None)


def _is_count(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 63
