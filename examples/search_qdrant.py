r"""Searches in Qdrant, in its local mode without a server, instead of a faiss index.

pip install qdrant-client
cocondenser encode --model=MODEL --corpus=DATA --out=runs/embeddings
python examples/search_qdrant.py --embeddings=runs/embeddings --model=MODEL \
    --database=runs/qdrant --query="oscar winners in 1953"
"""

import argparse
from pathlib import Path

import pyarrow.dataset
from qdrant_client import QdrantClient, models

from cocondenser_jax.cli.output import print_search
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.opening import open_query_model


def load(client: QdrantClient, name: str, embeddings: Path, size: int) -> None:
    """Puts the rows of all shards into a new collection; a point's number is that of its row.

    The collection gets its name when it has all of them.
    """
    partial = f"{name}-1"
    vectors = models.VectorParams(size=size, distance=models.Distance.DOT)
    client.delete_collection(partial)
    client.create_collection(partial, vectors_config=vectors)
    row = 0
    shards = pyarrow.dataset.dataset(sorted(embeddings.rglob("*.arrow")), format="arrow")
    for batch in shards.to_batches(batch_size=1_000):
        points = []
        for passage in batch.to_pylist():
            vector = passage.pop("vector")
            points.append(models.PointStruct(id=row, vector=vector, payload=passage))
            row += 1
        client.upsert(partial, points)
    alias = models.CreateAlias(collection_name=partial, alias_name=name)
    client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])


def main() -> None:
    """Loads the passages the first time, and prints the best for a query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--query", required=True)
    parser.add_argument("--depth", type=int, default=10)
    arguments = parser.parse_args()
    model, name = open_query_model(arguments.embeddings, open_model(arguments.model, None))
    vector_D = model.encode_query(arguments.query).tolist()

    client = QdrantClient(path=str(arguments.database))  # or url="http://...", of a server
    if not client.collection_exists(name):
        load(client, name, arguments.embeddings, len(vector_D))
    found = client.query_points(name, query=vector_D, limit=arguments.depth).points
    rows = [(point.score, point.payload) for point in found]
    hits = [(score, Passage(**payload)) for score, payload in rows]
    print_search(arguments.query, hits, "nothing found")
    client.close()


if __name__ == "__main__":
    main()
