"""Documents of many files, gathered on any number of machines: a dataset builder on Apache Beam.

python examples/gather.py --source=FOLDER --out=DATASETS [Beam's own flags]

It writes array_record files with tensorflow-datasets (without TensorFlow), and
`cocondenser corpus --source=tfds:DATASETS/documents/1.0.0` reads them. Beam is not installed with
this package, because its dependencies conflict with ours: it has an environment of its own
(constraints-beam.txt), which needs little of this package.
"""

import argparse
import contextlib
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow_datasets as tfds
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from cocondenser_jax.corpus.sources import ACCEPTED_FILES, Document, choose_files, read_file
from cocondenser_jax.errors import UserError


class Documents(tfds.core.BeamBasedBuilder):
    """`id` and `text` of every document that is not empty, each text once.

    Of several copies of a text, the one with the smallest id remains, however the work is divided.
    Documents that are already cut into spans lose the borders.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, files: Sequence[str], data_dir: str) -> None:
        """Takes files as `corpus.sources` reads them, each read by one worker."""
        self._files = files
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"id": text, "text": text})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> beam.PTransform:
        return (
            beam.Create(self._files)
            | beam.Reshuffle()  # else one worker would read them all
            | beam.FlatMap(_read)
            | beam.Map(lambda document: (_digest(document.text), document))
            | beam.CombinePerKey(lambda copies: min(copies, key=attrgetter("id")))
            | beam.MapTuple(lambda digest, first: (digest, {"id": first.id, "text": first.text}))
        )


def _read(path: str) -> Iterator[Document]:
    """Yields a file's documents from a copy on the worker's disk: the file may be in a bucket."""
    name = path.rpartition("/")[2]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / name
        raw = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
        with raw, copy.open("wb") as file:
            shutil.copyfileobj(raw, file)
        try:
            for document in read_file(copy, prefix=f"{name}:"):
                if document.text.strip():
                    yield document
        except UserError as error:
            raise UserError(str(error).replace(str(copy), path)) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, help=f"{ACCEPTED_FILES}; also gs://...")
    parser.add_argument("--out", required=True, help="the folder in which to make the dataset")
    arguments, options = parser.parse_known_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # tensorflow-datasets prints
            folder = build(arguments.source, arguments.out, options)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    print(folder)
    return 0


def build(source: str, out: str, options: Sequence[str]) -> str:
    """Runs the builder, with flags of Beam; returns the folder that it made in `out`.

    The source is a file or folder of any file system that Beam knows.
    """
    builder = Documents(_source_files(source), out)
    if builder.data_path.exists():
        raise UserError(f"{builder.data_path} already exists: remove it or choose another --out")
    beam_options = PipelineOptions(list(options))
    config = tfds.download.DownloadConfig(beam_options=beam_options)
    builder.download_and_prepare(download_config=config)
    return str(builder.data_path)


def _source_files(source: str) -> list[str]:
    matches = FileSystems.match([source, f"{source.rstrip('/')}/*"])
    files = choose_files(file.path for match in matches for file in match.metadata_list)
    if not files:
        raise UserError(f"{source}: no file found; expected {ACCEPTED_FILES}")
    return files


if __name__ == "__main__":
    sys.exit(main())
