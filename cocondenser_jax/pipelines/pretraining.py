"""Pre-training as a step of a pipeline, with its probe by retrieval."""

from pathlib import Path

from ml_collections import ConfigDict

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.pretrain.export import export_run
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.probe import Probe
from cocondenser_jax.retriever.data.folder import split_files
from cocondenser_jax.retriever.data.probe import open_search


def pretrain_model(config: ConfigDict, workdir: Path, model: Path) -> None:
    """Pre-trains in `workdir` and exports the result to the folder `model`."""
    train(config, workdir, folder_probes(config))
    export_run(workdir, model)


def folder_probes(config: ConfigDict) -> list[Probe]:
    """Returns the probe that searches the folder `probe.data` of a config; [] if it is empty.

    Raises:
      UserError: if the folder cannot be read, or no probe is due.
    """
    data, split, every = config.probe.data, config.probe.split, config.probe.every
    if not data:
        return []
    if not every:
        raise UserError(
            f"config.probe.data is {data!r}, but config.probe.every is 0: expected a number of"
            " steps between two probes"
        )
    search = open_search(Path(data), split, config.probe.passages)
    files = split_files(Path(data), split)
    record = {name: file_sha256(path) for name, path in files.items()}
    return [Probe(lambda snapshot: search(snapshot.encode), every, record)]
