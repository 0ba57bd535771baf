"""Documents of many files, gathered by any number of machines: a builder on Apache Beam.

python -m cocondenser_jax.corpus.beam --source=FOLDER --out=DATASETS [Beam's own flags]

It is a builder of tensorflow-datasets (without TensorFlow) that writes array_record files, and
`cocondenser corpus --source=tfds:DATASETS/documents/1.0.0` reads them. Beam is not installed with
this package: its libraries and ours do not agree on versions, so it has an environment of its own,
which needs little of this package (constraints-beam.txt).
"""

import argparse
import contextlib
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow_datasets as tfds
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from cocondenser_jax.corpus.sources import ACCEPTED_FILES, Document, is_source_file, read_file
from cocondenser_jax.errors import UserError


class Documents(tfds.core.BeamBasedBuilder):
    """`id` and `text` of every document that is not empty, each text once.

    Of the copies of a text the one with the first id remains, however the work is divided.
    Documents that come already cut into spans lose the borders.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, files: Sequence[str], data_dir: str) -> None:
        """Takes .txt and .jsonl files of any file system that Beam knows.

        Args:
          files: as `corpus.sources` reads them; one file is read by one worker.
          data_dir: the folder of all datasets.
        """
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
            | beam.CombinePerKey(_first)
            | beam.MapTuple(
                lambda digest, document: (digest, {"id": document.id, "text": document.text})
            )
        )


def _read(path: str) -> Iterator[Document]:
    """Yields a file's documents, which pass over the disk of the worker: it may lie in a bucket."""
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


def _first(copies: Sequence[Document]) -> Document:
    return min(copies, key=lambda document: document.id)


def main() -> int:
    """Gathers the documents of a source; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, help=f"{ACCEPTED_FILES}; also gs://...")
    parser.add_argument(
        "--out", required=True, help="the folder of datasets, in which it makes one"
    )
    arguments, options = parser.parse_known_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # tensorflow-datasets talks
            folder = build(arguments.source, arguments.out, options)
    except UserError as error:
        print(f"cocondenser: {error}", file=sys.stderr)
        return 2
    print(folder)
    return 0


def build(source: str, out: str, options: Sequence[str]) -> str:
    """Runs the builder; returns the folder that it made.

    Args:
      source: a file or folder, of any file system that Beam knows.
      out: the folder of all datasets.
      options: flags of Beam, such as `--runner=DataflowRunner`.

    Raises:
      UserError: where the source has no file, a file is broken, or the dataset is there already.
    """
    builder = Documents(_source_files(source), out)
    if builder.data_path.exists():
        raise UserError(f"{builder.data_path} exists already: remove it or choose another --out")
    beam_options = PipelineOptions(list(options))
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(beam_options=beam_options)
    )
    return str(builder.data_path)


def _source_files(source: str) -> list[str]:
    matches = FileSystems.match([source, f"{source.rstrip('/')}/*"])
    paths = [file.path for match in matches for file in match.metadata_list]
    files = sorted(path for path in paths if is_source_file(path.rpartition("/")[2]))
    if not files:
        raise UserError(f"{source}: no file there; expected {ACCEPTED_FILES}")
    return files


if __name__ == "__main__":
    sys.exit(main())
