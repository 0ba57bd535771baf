r"""Searches your own index.

python examples/search.py --index=runs/quickstart/index --model=runs/quickstart/retriever \
    "solve a linear system" "remove missing values from a table"
"""

import argparse
from pathlib import Path

import cocondenser_jax as cj


def main() -> None:
    """Prints the three best passages for each query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("queries", nargs="+")
    arguments = parser.parse_args()
    index = cj.open_index(arguments.index, arguments.model)
    for query in arguments.queries:
        print(query)
        for score, passage in cj.search_text(index, query, k=3):
            print(f"  {score:8.2f}  {passage.id}  {passage.text[:80]!r}")


if __name__ == "__main__":
    main()
