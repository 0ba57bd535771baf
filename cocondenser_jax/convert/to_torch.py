"""Flax parameters → a Hugging Face folder that retrieval toolkits load unchanged."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from cocondenser_jax.convert.names import (
    DENSE_MODULE,
    DENSE_PREFIX,
    HEAD_FIELDS,
    HEAD_PREFIX,
    NAMES,
    OWN_FIELDS,
    to_tensors,
)
from cocondenser_jax.corpus.tokenizer import load_tokenizer, save_tokenizer
from cocondenser_jax.errors import escape_control
from cocondenser_jax.files.whole import new_folder, require_absent, write_json, write_text
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model_folder.folder import OWN_HEAD
from cocondenser_jax.model_folder.modules import dense_folders, to_files
from cocondenser_jax.representation import Representation, passage_prompt, query_prompt

_WORD = re.compile(r"[\w.+-]+\Z", re.ASCII)


def export_folder(
    params: Mapping[str, Any],
    config: ModelConfig,
    tokenizer_folder: Path,
    out: Path,
    facts: Mapping[str, Any],
) -> None:
    """Writes a Condenser as a Hugging Face folder, in float32.

    `transformers` loads the backbone with its MLM projection from it, and sentence-transformers a
    retriever with the model's representation. Pre-training can start from it.

    Args:
      params: the Flax parameter tree, without the outer "params".
      config: the model's shape.
      tokenizer_folder: the tokenizer that the model was trained with.
      out: the folder to make.
      facts: facts about the run by name; values may be nested. The model card shows only numbers
        and single words, no paths or URLs.
    """
    require_absent(out)
    tokenizer = load_tokenizer(str(tokenizer_folder))
    config.require_tokenizer(tokenizer_folder, tokenizer.vocab_size, tokenizer.pad_id)
    tensors = to_tensors(params, config)

    with new_folder(out) as folder:
        vectors, has_pooler = config.representation.as_exported, config.backbone.pooler
        files = to_files(vectors, config.hidden_size, config.max_length, has_pooler=has_pooler)
        files["config.json"] = _transformers_config(config)
        if config.n_head_layers:
            files["condenser.json"] = {name: getattr(config, name) for name in HEAD_FIELDS}
        for file, content in files.items():
            write_json(folder / file, content)
        for file, part in _files_of_weights(tensors, dense_folders(files)).items():
            save_file(part, folder / file, metadata={"format": "pt"})
        save_tokenizer(tokenizer, folder, config.max_length)
        write_text(folder / "README.md", _model_card(out.name, config, facts))


def _files_of_weights(
    tensors: Mapping[str, np.ndarray], dense: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the tensors of each weight file; `dense` has the folder of each dense layer."""
    folders = {f"{DENSE_PREFIX}{number}.": f"{path}/" for number, path in enumerate(dense)}
    files: dict[str, dict[str, np.ndarray]] = {}
    for name, value in tensors.items():
        # The head's tensors keep their prefix, as in the published research checkpoints.
        file = OWN_HEAD if name.startswith(HEAD_PREFIX) else "model.safetensors"
        prefix = next(filter(name.startswith, folders), "")
        file = folders.get(prefix, "") + file
        files.setdefault(file, {})[name.removeprefix(prefix)] = value
    return files


def _transformers_config(config: ModelConfig) -> dict[str, Any]:
    names = NAMES[config.model_type]
    return {
        "architectures": [names.architecture],
        **{
            names.renamed.get(field, field): value
            for field, value in config.to_dict().items()
            if field not in (*OWN_FIELDS, *names.lacks)
        },
        **{key: getattr(config, field) for key, field in names.copied.items()},
        **names.constant,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _model_card(name: str, config: ModelConfig, facts: Mapping[str, Any]) -> str:
    shown = {name: str(fact) for name, fact in flatten_dict(dict(facts), sep=".").items()}
    literal = _literal(name)
    template = Template(Path(__file__).with_name("model_card.md").read_text(encoding="utf-8"))
    values = {
        **config.to_dict(),
        "options": ", add_pooling_layer=False" if config.backbone.pooler else "",
        "training": "pre-trained",
        "vector": _description(config.representation),
        "similarity": "cosine" if config.representation.is_cosine else "inner product",
        "vectors": _program(config.representation, config.hidden_size, literal),
        **_prompts(config.representation),
        "title": html.escape(escape_control(name), quote=False),
        "literal": literal,
        "rows": "\n".join(f"| {k} | {fact} |" for k, fact in shown.items() if _WORD.match(fact)),
    }
    if config.n_head_layers:
        values["training"] = (
            f"pre-trained with a Condenser head (`n_head_layers` {config.n_head_layers},"
            f" `skip_from` {config.skip_from}, `late_mlm` {str(config.late_mlm).lower()})"
        )
    return template.substitute(values)


def _description(representation: Representation) -> str:
    """Describes the vector in words."""
    words = "the last layer at [CLS]"
    if representation.pooling == "mean":
        words = "the mean of the last layer over its tokens"
    if not representation.include_prompt:
        words += " (without [CLS] and the prompt where it has one)"
    if representation.dense:
        words += f", after {len(representation.dense)} dense layers"
    first, *others = representation.sizes or [0]
    if first:
        words += f", its first {first:,} numbers"
    if others:
        words += f" (trained to be used shorter, too: {', '.join(map(str, others))})"
    return words


def _program(representation: Representation, hidden_size: int, name: str) -> str:
    """Returns the code that computes `vectors` from `hidden` and `batch`; `name` is a literal."""
    prompt = passage_prompt(dict(representation.prompts))
    lines = []
    if prompt and not representation.include_prompt:
        lines += [
            f'n = len(tokenizer({_literal(prompt)})["input_ids"]) - 1  # not pooled',
            'hidden, batch["attention_mask"] = hidden[:, n:], batch["attention_mask"][:, n:]',
        ]
    if representation.pooling == "mean":
        lines += [
            'mask = batch["attention_mask"][:, :, None]',
            "vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1)",
        ]
    else:
        lines.append("vectors = hidden[:, 0]")
    if representation.dense:
        lines += [
            "from safetensors.torch import load_file",
            "from torch import nn",
            "from transformers.utils import cached_file",
        ]
    for number, layer in enumerate(representation.dense, 2):
        tensors = ["weight", "bias"] if layer.bias else ["weight"]
        arguments = ", ".join(f'layer["{DENSE_MODULE}.{tensor}"]' for tensor in tensors)
        lines += [
            f'layer = load_file(cached_file({name}, "{number}_Dense/model.safetensors"))',
            f"vectors = nn.functional.linear(vectors, {arguments})",
            f"vectors = nn.{layer.activation_name}()(vectors)",
        ]
    to_unit_length = "vectors = vectors / vectors.norm(dim=1, keepdim=True)"
    if representation.similarity == "dot" and representation.normalized:
        lines.append(to_unit_length)
    if representation.is_cut(hidden_size):
        lines.append(f"vectors = vectors[:, :{representation.sizes[0]}]")
    if representation.similarity == "cosine":
        lines.append(to_unit_length)
    return "\n".join(lines)


def _prompts(representation: Representation) -> dict[str, str]:
    """Returns the card's text about prompts; the texts in its code are passages."""
    prompts = dict(representation.prompts)
    query, passage = query_prompt(prompts), passage_prompt(prompts)
    said = f" Queries begin with `{_literal(query)}`, passages with `{_literal(passage)}`."
    return {
        "prompts": said if query or passage else "",
        # sentence-transformers (6.2.0) ignores a prompt named "passage".
        "option": f", prompt={_literal(passage)}" if passage else "",
        "texts": f"{_literal(passage + 'a text')}, {_literal(passage + 'another text')}",
    }


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
