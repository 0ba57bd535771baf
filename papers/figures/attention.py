r"""Plot the entropy of the attention of CLS in each layer, for several models.

  python -m papers.figures.attention --model=runs/condenser.model --model=runs/cocondenser.model \
      --texts=data/msmarco --out=attention.svg

Shape legend: B texts of a batch, N heads, L tokens of the longest text.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.data.data_collator import pad_without_fast_tokenizer_warning as pad

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.tables import plain_name
from cocondenser_jax.files.whole import numbered_lines, write_json
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus
from cocondenser_jax.retriever.search.models import load_retriever, towers
from papers.figures.output import add_outputs, at_least, print_columns, run_script
from papers.figures.plot import Axis, numbered, write_plot

# Attention weights per head of a batch: 300 MB for all 12 layers and heads of a BERT-base.
_MAX_WEIGHTS = 1 << 19


class LayerEntropies(NamedTuple):
    """Entropies (nats), averaged over heads and texts."""

    entropy: list[float]  # of each layer, from the one above the embeddings
    uniform: float  # of uniform attention, the mean of log(tokens): no layer can exceed it


def measure_models(
    folders: Sequence[Path], source: Path, *, n_texts: int, seed: int, passage_length: int
) -> dict[str, Any]:
    """Measures the attention of CLS in several encoders, on the same texts.

    The folders contain retrievers or pre-trained models; each tower is an encoder. `n_texts` texts,
    or all if there are fewer, are drawn by the seed from a data folder, its file of passages, or a
    .txt file with one text per line, and truncated to `passage_length` tokens.

    Returns:
      {texts: their number, seed, passage_length, models: {name: {folder, entropy, uniform}}}.
    """
    # All are loaded first, so that a wrong folder is reported before any measurement.
    encoders: dict[str, tuple[Path, Any]] = {
        f"{folder}, {tower}" if tower else str(folder): (folder, encoder)
        for folder in folders
        for tower, encoder in towers(load_retriever(folder, passage_length=passage_length)).items()
    }
    texts = _draw_texts(source, n_texts, seed)
    models = {}
    for name, (folder, encoder) in encoders.items():
        entropies = layer_entropies(encoder.model, encoder.tokenizer, texts, passage_length)
        models[name] = {"folder": str(folder), **entropies._asdict()}
    return {
        "texts": len(texts),
        "seed": seed,
        "passage_length": passage_length,
        "models": models,
    }


def _draw_texts(source: Path, n: int, seed: int) -> list[str]:
    """Draws n texts, or all if there are fewer; keeps no others in memory."""
    n_texts = sum(1 for _ in _read_texts(source))
    if not n_texts:
        raise UserError(f"{source} holds no text")
    drawn = set(np.random.default_rng(seed).permutation(n_texts)[:n])
    return [text for i, text in enumerate(_read_texts(source)) if i in drawn]


def _read_texts(source: Path) -> Iterator[str]:
    """Yields the non-blank lines of a .txt file, or passages as encoders read them."""
    if plain_name(source).endswith(".txt"):
        return (text for _, text in numbered_lines(source))
    return map(passage_text, read_corpus(source))


def cls_entropy(weights_BxNxLxL: torch.Tensor) -> torch.Tensor:
    """Returns H_bn = -Σ_l a_l log a_l (nats) of what the first position attends to, [B, N].

    A weight of 0, as padding has it, adds nothing.
    """
    return torch.special.entr(weights_BxNxLxL[:, :, 0]).sum(-1)


def layer_entropies(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_tokens: int,
) -> LayerEntropies:
    """Measures the entropy of the attention of CLS per layer, averaged over heads and texts.

    The measure is of Clark et al., *What does BERT look at?* (arXiv 1906.04341); Gao and Callan,
    *Condenser* (arXiv 2104.08253), plot it for models before and after fine-tuning. The model, as
    `AutoModel` loads it, is left in float32, in evaluation mode, with eager attention. The
    distribution is over at most `max_tokens` of a text, CLS and SEP among them.

    Raises:
      UserError: if the tokenizer does not put a CLS token first.
    """
    rows = tokenizer(list(texts), truncation=True, max_length=max_tokens)["input_ids"]
    if any(row[:1] != [tokenizer.cls_token_id] for row in rows):
        raise UserError(
            f"the tokenizer of {model.name_or_path} puts no CLS token first: "
            "expected a BERT, RoBERTa, XLM-R or ModernBERT"
        )
    model.set_attn_implementation("eager")
    model.float().eval()
    total = torch.zeros(model.config.num_hidden_layers, dtype=torch.float64)
    with tqdm(total=len(rows), desc="attention", unit=" texts") as progress, torch.inference_mode():
        for batch in _batches(rows):
            # On the right, so that CLS stays in the first column.
            inputs = pad(tokenizer, {"input_ids": batch}, padding_side="right", return_tensors="pt")
            attentions = model(**inputs.to(model.device), output_attentions=True).attentions
            sums = [cls_entropy(weights).double().mean(1).sum() for weights in attentions]
            total += torch.stack(sums).cpu()
            progress.update(len(batch))
    uniform = np.mean([math.log(len(row)) for row in rows])
    return LayerEntropies((total / len(rows)).tolist(), float(uniform))


def _batches(rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Splits the rows, longest first, into batches with similar memory for attention."""
    rest = sorted(rows, key=len, reverse=True)
    while rest:
        size = max(1, _MAX_WEIGHTS // len(rest[0]) ** 2)
        yield rest[:size]
        rest = rest[size:]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    run_script(make_parser(), _draw, argv)


def make_parser() -> argparse.ArgumentParser:
    """Declares the flags."""
    parser = argparse.ArgumentParser(prog="attention", allow_abbrev=False)
    model = "a folder as convert and finetune write it, or a hub name; may be repeated"
    parser.add_argument("--model", type=Path, required=True, action="append", help=model)
    texts = "a data folder, its file of passages, or a .txt of one text per line (also compressed)"
    parser.add_argument("--texts", type=Path, required=True, help=texts)
    n_texts = "drawn at random; all where there are fewer (default: 1000)"
    parser.add_argument("--n_texts", type=at_least(1), default=1000, help=n_texts)
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the draw (default: 0)")
    length = "tokens kept of a text (default: 128)"
    parser.add_argument("--max_length", type=at_least(1), default=128, help=length)
    add_outputs(parser)
    return parser


def _draw(arguments: argparse.Namespace) -> None:
    result = measure_models(
        arguments.model,
        arguments.texts,
        n_texts=arguments.n_texts,
        seed=arguments.seed,
        passage_length=arguments.max_length,
    )
    models = result["models"]
    entropies = {name: model["entropy"] for name, model in models.items()}
    n_layers = max(map(len, entropies.values()))
    print_columns("layer", entropies, range(1, n_layers + 1))
    if arguments.json_out:
        write_json(arguments.json_out, result)
    # With tokenizers that cut texts in different ways, uniform attention has no one height.
    uniform = {model["uniform"] for model in models.values()}
    write_plot(
        arguments.out,
        "Entropy of the attention of CLS (nats)",
        numbered(entropies),
        Axis("layer"),
        reference=(uniform.pop(), "uniform attention") if len(uniform) == 1 else None,
    )


if __name__ == "__main__":
    main()
