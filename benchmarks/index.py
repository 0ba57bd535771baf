"""`index` and its search on a million random vectors; by formula, on more.

The vectors have the spectrum of all-MiniLM-L6-v2, measured on 20,000 paragraphs of Wikipedia; a
query has the cosine 0.6 with one of them. Recall is that of the exact 100 best. Times are those of
one core.

  OMP_WAIT_POLICY=passive python -m benchmarks.index --json_out=benchmarks/results/index.json
"""

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np

from benchmarks.results import report
from cocondenser_jax.representation import Representation
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.embeddings import (
    MANIFEST,
    Manifest,
    open_shards,
    passage_table,
    read_manifest,
    shard_file,
    shard_vectors,
    write_shard,
)
from cocondenser_jax.retriever.search.exact import float_blocks, nearest
from cocondenser_jax.retriever.search.index import build_index
from cocondenser_jax.retriever.search.quantized import Vectors

FACTORIES = ("IVF1024,PQ48", "IVF1024,SQ8")
# Variances along the principal axes, by their rank; 1 on average.
SPECTRUM = {1: 9.7, 2: 7.17, 5: 5.83, 10: 4.47, 20: 3.31, 50: 2.21, 100: 1.28, 150: 0.844}
SPECTRUM |= {200: 0.556, 300: 0.11, 384: 0.001}
DIMENSION = 384
COSINE = 0.6
DEPTH = 100
# Passages, lists, and whether an HNSW finds a vector's lists, for a row of the table by formula.
N_LISTS = 65_536
CASES = ((10**6, 1024, False), (10**8, N_LISTS, True), (10**9, N_LISTS, True))

Row = dict[str, Any]


def main() -> None:
    """Measures at `--passages`, and computes what more would need."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--queries", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        embeddings = Path(temporary) / "embeddings"
        queries_QxD = write_embeddings(embeddings, arguments.passages, arguments.queries)
        vectors = shard_vectors(open_shards(embeddings, read_manifest(embeddings)))
        _, exact_QxK = nearest(vectors, queries_QxD, DEPTH)
        coded, plain = (
            measure(embeddings, factory, queries_QxD, exact_QxK) for factory in FACTORIES
        )
        hnsw = assign_seconds(vectors)
    report([*by_nprobe(coded), *by_nprobe(plain)], arguments.json_out)
    scale = [predict(coded, plain, hnsw, *case) for case in CASES]
    out = arguments.json_out
    report(scale, out and out.with_name(f"{out.stem}_scale.json"))


def draw(rng: np.random.Generator, n: int, axes_DxD: np.ndarray) -> np.ndarray:
    """Draws vectors of length 1; `axes_DxD` has the principal axes, scaled, as its rows."""
    vectors_NxD = rng.standard_normal((n, DIMENSION), np.float32) @ axes_DxD
    faiss.normalize_L2(vectors_NxD)
    return vectors_NxD


def principal_axes(rng: np.random.Generator) -> np.ndarray:
    """Returns random orthogonal axes, each with the standard deviation of its rank."""
    axes_DxD, _ = np.linalg.qr(rng.standard_normal((DIMENSION, DIMENSION)))
    variances = np.interp(
        np.log(np.arange(1, DIMENSION + 1)), np.log([*SPECTRUM]), np.log([*SPECTRUM.values()])
    )
    return (np.exp(variances / 2)[:, None] * axes_DxD).astype(np.float32)


def write_embeddings(folder: Path, n: int, n_queries: int, shard_size: int = 50_000) -> np.ndarray:
    """Writes a folder as `encode` does, with passages without text; returns queries."""
    rng = np.random.default_rng(0)
    axes_DxD = principal_axes(rng)
    folder.mkdir()
    starts = range(0, n, shard_size)
    for number, start in enumerate(starts):
        rows = range(start, min(start + shard_size, n))
        passages = passage_table([Passage(str(row), "", "") for row in rows])
        vectors_NxD = draw(rng, len(rows), axes_DxD)
        write_shard(shard_file(folder, number), passages, vectors_NxD)
    manifest = Manifest(
        model="none",
        model_sha256="none",
        representation=Representation(),
        passage_length=None,
        precision="float32",
        backend="torch",
        batch_size=1,
        dimension=DIMENSION,
        dtype="float32",
        corpus="none",
        corpus_sha256="none",
        passages=n,
        shard_size=shard_size,
    )
    (folder / MANIFEST).write_text(json.dumps(manifest.to_json()))
    noise_QxD = draw(rng, n_queries, axes_DxD)
    return COSINE * vectors_NxD[:n_queries] + np.sqrt(1 - COSINE**2) * noise_QxD


def measure(embeddings: Path, factory: str, queries_QxD: np.ndarray, exact_QxK: np.ndarray) -> Row:
    """Builds an index as `index` does, and searches it with several numbers of lists."""
    out = embeddings.with_name(factory)
    with peak_memory() as peak:
        build = core_seconds(lambda: build_index(embeddings, out, factory))
    index = cast(faiss.IndexIVF, faiss.read_index(str(out / "index.faiss")))
    vectors = shard_vectors(open_shards(embeddings, read_manifest(embeddings)))
    block_NxD = next(float_blocks(vectors))
    added = core_seconds(lambda: index.add(block_NxD)) / len(block_NxD)
    compared = core_seconds(lambda: index.quantizer.search(block_NxD, 1))
    index = cast(faiss.IndexIVF, faiss.read_index(str(out / "index.faiss")))
    search = [search_lists(index, n, queries_QxD, exact_QxK) for n in (1, 4, 16, 64, 256)]
    return {
        "passages": index.ntotal,
        "factory": factory,
        "core minutes": build / 60,
        "peak MiB": round(peak[0] / 2**20),
        "index MiB": round((out / "index.faiss").stat().st_size / 2**20),
        "search": search,
        "add": added,
        "compare": compared / len(block_NxD) / index.nlist,
        "train": build - added * index.ntotal,
    }


def search_lists(
    index: faiss.IndexIVF, nprobe: int, queries_QxD: np.ndarray, exact_QxK: np.ndarray
) -> tuple[int, float, float]:
    """Returns `nprobe`, the recall of a search of so many lists, and its milliseconds per query."""
    index.nprobe = nprobe
    start = time.process_time()
    _, nearest_QxK = index.search(queries_QxD, DEPTH)
    seconds = time.process_time() - start
    pairs = zip(nearest_QxK.tolist(), exact_QxK.tolist(), strict=True)
    recall = np.mean([len({*passages} & {*exact}) for passages, exact in pairs]) / DEPTH
    return nprobe, float(recall), 1000 * seconds / len(queries_QxD)


def by_nprobe(row: Row) -> Iterator[Row]:
    """Yields a row of the table for each number of lists that were searched."""
    shown = {name: row[name] for name in [*row][:5]}
    for nprobe, recall, milliseconds in row["search"]:
        yield shown | {"nprobe": nprobe, "recall@100": recall, "ms/query": milliseconds}


def assign_seconds(vectors: Sequence[Vectors]) -> float:
    """Returns what finding the list of a vector takes, through an HNSW over those of a shard."""
    blocks = float_blocks(vectors)
    lists = faiss.IndexHNSWFlat(DIMENSION, 32, faiss.METRIC_INNER_PRODUCT)
    lists.add(next(blocks))
    vectors_NxD = next(blocks)[:5_000]
    return core_seconds(lambda: lists.search(vectors_NxD, 1)) / len(vectors_NxD)


def predict(measured: Row, plain: Row, hnsw: float, n: int, n_lists: int, has_hnsw: bool) -> Row:
    """Computes what an index of 48 bytes a vector needs, from those of 1,024 lists.

    Training is that of the codes, which does not change, and k-means, which grows with rows times
    lists; at 1,024 lists it is less than the whole `plain` index takes, which trains no codes.
    Adding a vector compares it with every list, or asks the HNSW over them, and computes its code.
    """
    rows = min(n, max(262_144, 64 * n_lists))
    growth = rows * n_lists / (262_144 * 1_024)
    train = measured["train"] + (growth - 1) * 60 * plain["core minutes"]
    compare = measured["compare"]
    add = measured["add"] - 1_024 * compare + (hnsw if has_hnsw else n_lists * compare)
    code = 48 + 8  # with the row's number
    links = 4 * 2 * 32 if has_hnsw else 0
    index = n * code + n_lists * (4 * DIMENSION + links)
    sample = 4 * DIMENSION * rows
    return {
        "passages": n,
        "factory": f"IVF{n_lists}{'_HNSW32' if has_hnsw else ''},PQ48",
        "embeddings, float16 (GiB)": 2 * DIMENSION * n / 2**30,
        "index (GiB)": index / 2**30,
        "training sample (GiB)": sample / 2**30,
        "training (core hours)": train / 3600,
        "adding (core hours)": n * add / 3600,
    }


def core_seconds(work: Callable[[], object]) -> float:
    """Returns the seconds that all threads of this process compute."""
    start = time.process_time()
    work()
    return time.process_time() - start


@contextlib.contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Gives a list of one: the most bytes, mapped files aside, that the block adds."""
    ended = threading.Event()
    before = _anonymous_bytes()
    peak = [0]

    def look() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], _anonymous_bytes() - before)

    thread = threading.Thread(target=look)
    thread.start()
    yield peak
    ended.set()
    thread.join()


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
