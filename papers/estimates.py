"""Estimates the resources of steps: hours of a TPU or GPU, core hours, disk space."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cocondenser_jax.errors import UserError
from papers.steps import Folders, Step

# Peak bfloat16 operations a second: eight cores of a TPU v3, see pretrain/accelerators.py; NVIDIA's
# data sheets of A100 and H100 SXM, dense.
TPU = "v3-8"
PEAKS = {TPU: 8 * 61.5e12, "A100": 312e12, "H100": 989e12}
UTILIZATION = 0.4  # of the peak, assumed


class Estimate(NamedTuple):
    """The resources of steps, on one TPU or GPU of each kind."""

    pretraining: dict[str, float]  # hours by kind
    models: dict[str, float]  # those of each model that is pre-trained, on a TPU
    others: dict[str, float]  # hours of fine-tuning, encoding and scoring, by kind of GPU
    core_hours: float
    bytes: float  # on disk at most at a time, if no embeddings are deleted
    least_bytes: float  # the same if they are


def estimate(steps: Mapping[Path, Step], folders: Folders) -> Estimate:
    """Estimates the resources of steps (see `steps.unfinished`) in their order."""
    all_flop = sum(step.flop for step in steps.values())
    pretraining = sum(step.flop for step in steps.values() if is_pretraining(step))
    gpus = [kind for kind in PEAKS if kind != TPU]
    return Estimate(
        pretraining={kind: _hours(pretraining, kind) for kind in PEAKS},
        models={
            path.name: _hours(step.flop, TPU)
            for path, step in steps.items()
            if is_pretraining(step)
        },
        others={kind: _hours(all_flop - pretraining, kind) for kind in gpus},
        core_hours=sum(step.core_seconds for step in steps.values()) / 3600,
        bytes=_most_bytes(steps, {}),
        least_bytes=_most_bytes(steps, _freed(steps, folders)),
    )


def is_pretraining(step: Step) -> bool:
    """Returns whether a TPU can run a step, too."""
    return any(command[:2] == ["cocondenser", "pretrain"] for command in step.commands)


def _hours(flop: float, kind: str) -> float:
    return flop / (UTILIZATION * PEAKS[kind] * 3600)


def _most_bytes(steps: Mapping[Path, Step], freed: Mapping[Path, float]) -> float:
    """Returns the peak of bytes on disk, of results and of the running step's temporary files."""
    most = held = 0.0
    for path, step in steps.items():
        held += step.bytes
        most = max(most, held + step.scratch)
        held -= freed.get(path, 0)
    return most


def _freed(steps: Mapping[Path, Step], folders: Folders) -> dict[Path, float]:
    """Returns the bytes of the temporary results that each step is the last to read."""
    last_read = {}
    for reader, step in steps.items():
        last_read[reader] = reader
        last_read |= {folders.result(need): reader for need in step.needs}
    freed: dict[Path, float] = {}
    for path, step in steps.items():
        if step.is_temporary:
            freed[last_read[path]] = freed.get(last_read[path], 0) + step.bytes
    return freed


def lines(found: Estimate) -> list[str]:
    """Describes an estimate in words."""
    models = ", ".join(f"{name} {hours:.1f}" for name, hours in found.models.items())
    return [
        f"hours at {UTILIZATION:.0%} of the peak, on one TPU or GPU:"
        f" pre-training {_list(found.pretraining)}; all else {_list(found.others)}",
        *([f"of the pre-training, on a {TPU}: {models}"] if models else []),
        f"on the CPU: {found.core_hours:.1f} core hours: tokenizing, BM25, exact search, mining",
        f"on the disk: {_gb(found.bytes)}, or with --delete_embeddings at most"
        f" {_gb(found.least_bytes)} at a time",
    ]


def _list(hours: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.1f} ({kind})" for kind, value in hours.items())


def _gb(size: float) -> str:
    return f"{size / 1e9:.{1 if size < 10e9 else 0}f} GB"


def require_room(workdir: Path, found: Estimate, *, deletes: bool) -> None:
    """Raises a UserError if a disk has less space than the estimate."""
    advice = "choose a --workdir on a larger disk"
    if not deletes:
        advice += f", or give --delete_embeddings: then {_gb(found.least_bytes)} are enough"
    require_free(workdir, found.least_bytes if deletes else found.bytes, advice)


def require_free(folder: Path, needed: float, advice: str) -> None:
    """Raises a UserError if the disk of a folder, which need not exist, has too little space."""
    path = folder.absolute()
    place = next(each for each in (path, *path.parents) if each.exists())
    free = free_bytes(place)
    if free < needed:
        raise UserError(
            f"the disk of {folder} has {_gb(free)} free, but about {_gb(needed)} are needed:"
            f" {advice}"
        )


def free_bytes(folder: Path) -> float:
    """Returns the free bytes on the disk of a folder."""
    return float(shutil.disk_usage(folder).free)
