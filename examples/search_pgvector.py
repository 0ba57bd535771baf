r"""Searches in PostgreSQL with pgvector, instead of a faiss index.

pip install "psycopg[binary]" pgvector
cocondenser encode --model=MODEL --corpus=DATA --out=runs/embeddings
python examples/search_pgvector.py --embeddings=runs/embeddings --model=MODEL \
    --database=postgresql://USER:PASSWORD@localhost/NAME --query="oscar winners in 1953"

The server needs the extension `vector` (package postgresql-16-pgvector of Ubuntu 24.04).
"""

import argparse
from pathlib import Path

import psycopg
import pyarrow.dataset
from pgvector import Vector
from pgvector.psycopg import register_vector

from cocondenser_jax.cli.output import print_search
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.opening import open_query_model


def load(connection: psycopg.Connection, table: str, embeddings: Path, size: int) -> None:
    """Copies the rows of all shards into a new table."""
    connection.execute(
        f"CREATE TABLE {table} (id text, title text, text text, vector vector({size}))"
    )
    shards = pyarrow.dataset.dataset(sorted(embeddings.rglob("*.arrow")), format="arrow")
    copied = f"COPY {table} (id, title, text, vector) FROM STDIN WITH (FORMAT BINARY)"
    with connection.cursor().copy(copied) as rows:
        rows.set_types(["text", "text", "text", "vector"])
        for batch in shards.to_batches(batch_size=1_000):
            for p in batch.to_pylist():
                rows.write_row((p["id"], p["title"], p["text"], Vector(p["vector"])))


def main() -> None:
    """Loads the passages on the first call; prints the best ones for a query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--query", required=True)
    parser.add_argument("--depth", type=int, default=10)
    arguments = parser.parse_args()
    model, table = open_query_model(arguments.embeddings, open_model(arguments.model, None))
    vector_D = model.encode_query(arguments.query)

    with psycopg.connect(arguments.database) as connection:  # all in one transaction
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        register_vector(connection)
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            load(connection, table, arguments.embeddings, len(vector_D))
        # Exact until there is an index: "CREATE INDEX ON ... USING hnsw (vector
        # vector_ip_ops)" builds an approximate one. <#> is the negative inner product.
        found = connection.execute(
            f"SELECT -(vector <#> %(query)s), id, title, text FROM {table}"
            " ORDER BY vector <#> %(query)s LIMIT %(depth)s",
            {"query": Vector(vector_D), "depth": arguments.depth},
        )
        hits = [(score, Passage(*fields)) for score, *fields in found]
    print_search(arguments.query, hits, "nothing found")


if __name__ == "__main__":
    main()
