r"""Searches in OpenSearch, by k-NN and BM25 in one query, instead of a faiss and a BM25 index.

pip install opensearch-py
cocondenser encode --model=MODEL --corpus=DATA --out=runs/embeddings
python examples/search_opensearch.py --embeddings=runs/embeddings --model=MODEL \
    --database=http://localhost:9200 --query="oscar winners in 1953"

For OpenSearch 2.11 or later. It was not tested with a real server, only with a simulated one that
follows OpenSearch's documentation.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset
from opensearchpy import OpenSearch, helpers

from cocondenser_jax.cli.output import print_search
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.layouts import Passage
from cocondenser_jax.retriever.search.opening import open_query_model

DEPTH = 100  # of each ranking before fusing
FUSION = {
    "normalization-processor": {
        "normalization": {"technique": "min_max"},
        "combination": {"technique": "arithmetic_mean", "parameters": {"weights": [0.5, 0.5]}},
    }
}


def read_passages(embeddings: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of all shards, with the names of the shards' columns."""
    shards = pyarrow.dataset.dataset(sorted(embeddings.rglob("*.arrow")), format="arrow")
    for batch in shards.to_batches(batch_size=1_000):
        yield from batch.to_pylist()


def load(client: OpenSearch, name: str, embeddings: Path, size: int) -> None:
    """Fills a new index, which gets its name when it is complete."""
    partial = f"{name}-1"
    method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
    fields = {
        "id": {"type": "keyword"},
        "title": {"type": "text", "copy_to": "words"},
        "text": {"type": "text", "copy_to": "words"},
        "words": {"type": "text", "analyzer": "english"},  # of title and text, for BM25
        "vector": {"type": "knn_vector", "dimension": size, "method": method},
    }
    body = {"settings": {"index": {"knn": True}}, "mappings": {"properties": fields}}
    client.indices.delete(index=partial, ignore_unavailable=True)
    client.indices.create(index=partial, body=body)
    helpers.bulk(client, read_passages(embeddings), index=partial)
    client.indices.refresh(index=partial)
    client.indices.put_alias(index=partial, name=name)


def main() -> None:
    """Loads the passages on the first call; prints the best ones for a query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--query", required=True)
    parser.add_argument("--depth", type=int, default=10)
    arguments = parser.parse_args()
    model, name = open_query_model(arguments.embeddings, open_model(arguments.model, None))
    vector_D = model.encode_query(arguments.query).tolist()

    client = OpenSearch(arguments.database)
    if not client.indices.exists_alias(name=name):
        load(client, name, arguments.embeddings, len(vector_D))
    depth = max(DEPTH, arguments.depth)
    lexical = {"match": {"words": arguments.query}}
    dense = {"knn": {"vector": {"vector": vector_D, "k": depth}}}
    body = {
        "size": depth,
        "_source": ["id", "title", "text"],
        "query": {"hybrid": {"queries": [lexical, dense]}},
        "search_pipeline": {"phase_results_processors": [FUSION]},
    }
    found = client.search(index=name, body=body)["hits"]["hits"][: arguments.depth]
    rows = [(hit["_score"], hit["_source"]) for hit in found]
    hits = [(score, Passage(**payload)) for score, payload in rows]
    print_search(arguments.query, hits, "nothing found")


if __name__ == "__main__":
    main()
