r"""Searches in LanceDB, which runs embedded and needs no server, instead of a faiss index.

pip install lancedb
cocondenser encode --model=MODEL --corpus=DATA --out=runs/embeddings
python examples/search_lancedb.py --embeddings=runs/embeddings --model=MODEL \
    --database=runs/lancedb --query="oscar winners in 1953"
"""

import argparse
import shutil
from pathlib import Path

import lancedb
import pyarrow.dataset

from cocondenser_jax.cli.output import print_search
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.opening import open_query_model


def load(embeddings: Path, database: Path) -> None:
    """Makes a database of all passages, which gets its name when it is complete."""
    partial = database.with_name(f"{database.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = sorted(embeddings.rglob("*.arrow"))
    passages = pyarrow.dataset.dataset(files, format="arrow")
    lancedb.connect(partial).create_table("passages", passages.to_batches(), passages.schema)
    partial.rename(database)


def main() -> None:
    """Loads the passages on the first call; prints the best ones for a query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--database", type=Path, required=True, help="a folder of databases")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--query", required=True)
    parser.add_argument("--depth", type=int, default=10)
    arguments = parser.parse_args()
    model, name = open_query_model(arguments.embeddings, open_model(arguments.model, None))
    vector_D = model.encode_query(arguments.query)

    database = arguments.database / name
    if not database.exists():
        load(arguments.embeddings, database)
    table = lancedb.connect(database).open_table("passages")
    # Exact until there is an index: table.create_index(metric="dot") builds an approximate one.
    rows = table.search(vector_D).distance_type("dot").limit(arguments.depth).to_list()
    hits = [(1 - r["_distance"], Passage(r["id"], r["title"], r["text"])) for r in rows]
    print_search(arguments.query, hits, "nothing found")


if __name__ == "__main__":
    main()
