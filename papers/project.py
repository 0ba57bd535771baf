"""Append a projection to a retriever, whose vectors become A·h for a new matrix A and pooled h.

python -m papers.project --model=runs/model --size=768 --out=runs/projected

makes a folder to fine-tune from, as `finetune --config.model.folder=runs/projected` does.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from sentence_transformers.sentence_transformer.modules import Dense

from cocondenser_jax.files.whole import new_folder
from cocondenser_jax.representation import AS_IN_PAPERS, Given
from cocondenser_jax.retriever.search.models import load_retriever, new_parameters
from papers.figures.output import at_least, run_script


def write_projected(folder: Path, size: int, seed: int, out: Path) -> None:
    """Writes the retriever with a random matrix, drawn by the seed, atomically."""
    # Loaded as by `finetune`, with unnormalized pooled vectors.
    model = load_retriever(folder, given=Given(similarity="dot"), plain=AS_IN_PAPERS)
    n_inputs = model.get_embedding_dimension() or 0
    with new_parameters(seed):
        dense = Dense(n_inputs, size, bias=False, activation_function=torch.nn.Identity())
    model.append(dense.to(model.device))
    with new_folder(out) as partial:
        model.save_pretrained(str(partial), create_model_card=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _write, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="project", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="a folder or Hub name")
    parser.add_argument("--size", type=at_least(1), required=True, help="dimensions of a vector")
    parser.add_argument("--seed", type=at_least(0), default=42, help="of A (default: 42)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    return parser


def _write(arguments: argparse.Namespace) -> None:
    write_projected(arguments.model, arguments.size, arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
