"""Paths of what several machines make in parts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError, first_three


def shard_folder(folder: Path, shard: tuple[int, int]) -> Path:
    """Returns the folder of part i of n, from 0, in the folder of all; the only part has that."""
    index, n_shards = shard
    if not 0 <= index < n_shards:
        raise UserError(f"shard {index}/{n_shards}: expected i/n with 0 <= i < n")
    return folder / f"shard-{index:05d}-of-{n_shards:05d}" if n_shards > 1 else folder


def shard_folders(folder: Path) -> list[Path]:
    """Returns the folders of all parts in a folder, in their order; without parts, itself."""
    present = {path.name for path in folder.glob("shard-*-of-" + "[0-9]" * 5)}
    if not present:
        return [folder]
    n_shards = max(int(name[-5:]) for name in present)
    expected = [shard_folder(folder, (index, n_shards)) for index in range(n_shards)]
    names = [path.name for path in expected]
    if missing := [name for name in names if name not in present]:
        raise UserError(f"{folder} lacks {first_three(missing)}")
    if alien := sorted(present.difference(names)):
        raise UserError(f"{folder} also holds {first_three(alien)}, from a different sharding")
    return expected


def require_same(
    folders: Sequence[Path], manifests: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> None:
    """Raises a UserError for parts of one whole whose manifests differ in what has these names."""
    for folder, manifest in zip(folders, manifests, strict=True):
        if differing := [name for name in names if manifest.get(name) != manifests[0].get(name)]:
            raise UserError(f"{folder} differs from {folders[0]} in its {first_three(differing)}")
