"""Make the data for the papers' recipes from published files.

  python -m papers.get_data --list --downloads=downloads
  python -m papers.get_data msmarco dpr --downloads=downloads --data=data

It downloads nothing: it looks for the files in DOWNLOADS and its subfolders, and names missing ones
with their addresses. Known sizes and checksums are compared. Each data set becomes a folder in
DATA, atomically; existing ones are kept. Large files are links to the downloads, which must stay.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from cocondenser_jax.errors import UserError, lookup
from cocondenser_jax.files.whole import new_folder
from papers import data_folders
from papers.downloads import Published, Source, find, require_as_published
from papers.estimates import require_free
from papers.figures.output import run_script

MARCO = "https://msmarco.z22.web.core.windows.net/msmarcoranking/"
DPR = "https://dl.fbaipublicfiles.com/dpr/"
HUB = "https://huggingface.co/datasets/"

Files = Mapping[str, list[Source]]


class DataSet(NamedTuple):
    """A folder that recipes read, and the files from which it is made."""

    files: tuple[Published, ...]
    make: Callable[[Files, Path], None]
    bytes: float  # of what is written, estimated


_QUERIES = Published(
    "collectionandqueries.tar.gz",
    f"{MARCO}collectionandqueries.tar.gz",
    1_057_717_952,
    "31644046b18952c1386cd4564ba2ae69",
    members=(
        "queries.train.tsv",
        "qrels.train.tsv",
        "queries.dev.tsv",
        "queries.dev.small.tsv",
        "qrels.dev.small.tsv",
    ),
)
_COLLECTION = _QUERIES._replace(members=("collection.tsv",))
_DEV = Published(
    "qrels.dev.tsv", f"{MARCO}qrels.dev.tsv", 1_201_626, "9157ccaeaa8227f91722ba5770787b16"
)
_DL19 = Published(
    "msmarco-test2019-queries.tsv.gz",
    f"{MARCO}msmarco-test2019-queries.tsv.gz",
    4_276,
    "eda71eccbe4d251af83150abe065368c",
    others=("msmarco-test2019-queries.tsv",),
)
_DL19_PASSAGES = Published(
    "2019qrels-pass.txt",
    "https://trec.nist.gov/data/deep/2019qrels-pass.txt",
    187_092,
    "2f4be390198da108f6845c822e5ada14",
)
_DL19_DOCUMENTS = Published(
    "2019qrels-docs.txt",
    "https://trec.nist.gov/data/deep/2019qrels-docs.txt",
    339_438,
    "d7ef53b995ef7e01676ea85d7ec01dda",
)
_TITLES = Published(
    "marco.tar.gz",
    "https://rocketqa.bj.bcebos.com/corpus/marco.tar.gz",
    members=("para.txt", "para.title.txt"),
)
_TRIPLES = Published(
    "qidpidtriples.train.full.2.tsv.gz",
    f"{MARCO}qidpidtriples.train.full.2.tsv.gz",
    1_841_693_309,
    "219083e80a0a751c08b968c2f31a4e0b",
    others=("qidpidtriples.train.full.2.tsv",),
)


def _of_documents(name: str, size: int = 0, md5: str = "") -> Published:
    return Published(f"{name}.tsv.gz", f"{MARCO}{name}.tsv.gz", size, md5, (f"{name}.tsv",))


def _of_dpr(path: str, size: int = 0, md5: str = "", unpacked: str = "") -> Published:
    """A file of DPR, with the name to which its download_data.py unpacks it."""
    name = path.rpartition("/")[2]
    plain = name.removesuffix(".gz")
    others = tuple(dict.fromkeys(each for each in (plain, unpacked) if each and each != name))
    return Published(name, f"{DPR}{path}", size, md5, others)


DATA_SETS = {
    "wikipedia": DataSet(
        (
            Published(
                "20231101.en/*.parquet",
                f"{HUB}wikimedia/wikipedia (hf download wikimedia/wikipedia --repo-type=dataset"
                ' --include="20231101.en/*" --local-dir=DOWNLOADS/wikipedia), or a dump as'
                " wikiextractor --json writes it",
                others=("wikipedia/*/wiki_*", "wikipedia/*.jsonl"),
            ),
        ),
        data_folders.link_texts,
        0,
    ),
    "bookcorpus": DataSet(
        (
            Published(
                "bookcorpus/**/*.parquet",
                f"{HUB}bookcorpus/bookcorpus (hf download bookcorpus/bookcorpus"
                " --repo-type=dataset --revision=refs/convert/parquet"
                " --local-dir=DOWNLOADS/bookcorpus)",
                others=("bookcorpus/**/*.txt", "bookcorpus/**/*.jsonl"),
            ),
        ),
        data_folders.write_books,
        5e9,
    ),
    "msmarco": DataSet(
        (_TITLES, _QUERIES, _DEV, _DL19, _DL19_PASSAGES), data_folders.write_titled, 3.4e9
    ),
    "msmarco-untitled": DataSet(
        (_COLLECTION, _QUERIES, _DEV, _DL19, _DL19_PASSAGES), data_folders.write_untitled, 3.1e9
    ),
    "msmarco-triples": DataSet((_TRIPLES,), data_folders.write_packed, 0),
    "msmarco-docs": DataSet(
        (
            _of_documents("msmarco-docs"),
            _of_documents(
                "msmarco-doctrain-queries", 6_457_962, "4086d31a9cf2d7b69c4932609058111d"
            ),
            _of_documents("msmarco-doctrain-qrels", 2_385_717, "9d1609e240113b0504fd2e61cb36d924"),
            _of_documents("msmarco-docdev-queries", 91_837, "ac20593d71b9c32ab2633230f9cdf10d"),
            _of_documents("msmarco-docdev-qrels", 38_553, "5eeafaeb4960979a62e7fed93273254e"),
            _DL19,
            _DL19_DOCUMENTS,
        ),
        data_folders.write_documents,
        0.1e9,
    ),
    "dpr": DataSet(
        (
            _of_dpr(
                "wikipedia_split/psgs_w100.tsv.gz",
                4_694_541_059,
                "612fe66e0b6b41ee28f806140226c563",
            ),
            _of_dpr(
                "data/retriever/biencoder-nq-train.json.gz",
                2_314_892_908,
                "a1c927b5adae71388eb064329387709f",
                "retriever/nq-train.json",
            ),
            _of_dpr(
                "data/retriever/biencoder-nq-adv-hn-train.json.gz",
                unpacked="retriever/nq-adv-hn-train.json",
            ),
            _of_dpr(
                "data/retriever/biencoder-trivia-train.json.gz",
                1_848_559_940,
                "5aa4d3577c91425cd20e239ed89a252b",
                "retriever/trivia-train.json",
            ),
            _of_dpr("data/retriever/nq-test.qa.csv", unpacked="qas/nq-test.csv"),
            _of_dpr("data/retriever/trivia-test.qa.csv.gz", unpacked="qas/trivia-test.csv"),
        ),
        data_folders.write_dpr,
        0.1e9,
    ),
    "stsbenchmark": DataSet(
        (
            Published(
                "Stsbenchmark.tar.gz",
                "http://ixa2.si.ehu.eus/stswiki/images/4/48/Stsbenchmark.tar.gz",
                members=("sts-train.csv", "sts-dev.csv", "sts-test.csv"),
            ),
        ),
        data_folders.copy_all,
        0,
    ),
    "allnli": DataSet(
        (Published("AllNLI.tsv.gz", "https://sbert.net/datasets/AllNLI.tsv.gz"),),
        data_folders.write_packed,
        0,
    ),
    "sections": DataSet(
        (
            Published(
                "wikipedia-sections-triplets.zip",
                "https://sbert.net/datasets/wikipedia-sections-triplets.zip",
                members=("train.csv", "validation.csv", "test.csv"),
            ),
        ),
        data_folders.copy_all,
        1e9,
    ),
}


def get_data(names: Sequence[str], downloads: Path, data: Path) -> None:
    """Makes the missing data sets, as described at the top of this file.

    Raises:
      UserError: naming all missing files, before anything is written; or for a file that differs
        from the published one.
    """
    wanted = {name: lookup(DATA_SETS, name, "data set") for name in names}
    left = {name: each for name, each in wanted.items() if not (data / name).exists()}
    found = {name: [(file, find(downloads, file)) for file in left[name].files] for name in left}
    if missing := {file.name: file for name in left for file, at in found[name] if at is None}:
        lacking = "; ".join(f"{name} from {file.url}" for name, file in missing.items())
        raise UserError(f"{downloads} lacks {len(missing)} files: {lacking}")
    require_free(data, sum(each.bytes for each in left.values()), "choose --data on a larger disk")
    for name, each in left.items():
        files: dict[str, list[Source]] = {}
        for file, at in found[name]:
            sources = at or {}
            require_as_published(file, {one.path for each in sources.values() for one in each})
            files |= sources
        with new_folder(data / name) as folder:
            each.make(files, folder)
        print(f"{data / name}: made", flush=True)


def _print_list(downloads: Path) -> None:
    for name, each in DATA_SETS.items():
        print(name)
        lacking = {file.name for file in each.files if find(downloads, file) is None}
        # An archive of which a data set takes members in two ways is listed once.
        for file in {file.name: file for file in each.files}.values():
            size = f"{tqdm.format_sizeof(file.bytes)}B" if file.bytes else "size not known"
            state = "is missing" if file.name in lacking else "is there"
            print(f"  {file.name} ({size}) {state}: {file.url}")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _run, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="get_data", description=__doc__, formatter_class=plain, allow_abbrev=False
    )
    names = f"data sets: {', '.join(DATA_SETS)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--list", action="store_true", help="print which files are needed")
    downloads = "where the published files are (default: downloads)"
    parser.add_argument("--downloads", type=Path, default=Path("downloads"), help=downloads)
    data = "the folder to make data sets in (default: data)"
    parser.add_argument("--data", type=Path, default=Path("data"), help=data)
    return parser


def _run(given: argparse.Namespace) -> None:
    if given.list == bool(given.names):
        raise UserError(f"give either data sets, of {', '.join(DATA_SETS)}, or --list")
    if not given.downloads.is_dir() and (given.names or given.downloads.exists()):
        raise UserError(f"{given.downloads} is no folder: expected one of published files")
    if given.list:
        _print_list(given.downloads)
    else:
        get_data(given.names, given.downloads, given.data)


if __name__ == "__main__":
    main()
