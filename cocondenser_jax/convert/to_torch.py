"""Flax parameters → a Hugging Face folder that retrieval toolkits load as it is."""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from cocondenser_jax.convert.names import (
    HEAD_FIELDS,
    HEAD_PREFIX,
    NAMES,
    OWN_FIELDS,
    to_tensors,
)
from cocondenser_jax.corpus.tokenizer import load_tokenizer, save_tokenizer
from cocondenser_jax.errors import escape_control
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.representation import to_files
from cocondenser_jax.storage.files import new_folder, require_absent, write_json, write_text
from cocondenser_jax.storage.model_folder import OWN_HEAD

_WORD = re.compile(r"[\w.+-]+\Z", re.ASCII)


def export_folder(
    params: Mapping[str, Any],
    config: ModelConfig,
    tokenizer_folder: Path,
    out: Path,
    facts: Mapping[str, Any],
) -> None:
    """Writes a Condenser as a Hugging Face folder, float32.

    From it, `transformers` loads the backbone with its MLM projection, and sentence-transformers a
    retriever with the model's representation. Pre-training can start from it.

    Args:
      params: the Flax parameter tree, without the outer "params".
      config: the model's shape.
      tokenizer_folder: the tokenizer that the model was trained with.
      out: the folder to make.
      facts: facts about the run by name; values may be nested. The model card shows only numbers
        and single words, no paths or addresses.
    """
    require_absent(out)
    tokenizer = load_tokenizer(str(tokenizer_folder))
    config.require_tokenizer(tokenizer_folder, tokenizer.vocab_size, tokenizer.pad_id)
    tensors = to_tensors(params, config)
    head = {name: value for name, value in tensors.items() if name.startswith(HEAD_PREFIX)}
    lm = {name: value for name, value in tensors.items() if name not in head}

    with new_folder(out) as folder:
        # The vector needs no pooler, and the folder has no weights for one.
        model_args = {"add_pooling_layer": False} if config.backbone.pooler else {}
        files = to_files(config.representation, config.hidden_size, config.max_length, model_args)
        files["config.json"] = _transformers_config(config)
        if head:
            files["condenser.json"] = {name: getattr(config, name) for name in HEAD_FIELDS}
        for file, content in files.items():
            write_json(folder / file, content)
        save_file(lm, folder / "model.safetensors", metadata={"format": "pt"})
        save_tokenizer(tokenizer, folder, config.max_length)
        if head:
            save_file(head, folder / OWN_HEAD, metadata={"format": "pt"})
        write_text(folder / "README.md", _model_card(out.name, config, facts))


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
    is_cosine = config.representation.is_cosine
    template = Template(Path(__file__).with_name("model_card.md").read_text(encoding="utf-8"))
    values = {
        **config.to_dict(),
        "options": ", add_pooling_layer=False" if config.backbone.pooler else "",
        "training": "pre-trained",
        "vector": "the last layer at [CLS]",
        "similarity": "cosine" if is_cosine else "inner product",
        "pooling": "vectors = hidden[:, 0]",
        "title": html.escape(escape_control(name), quote=False),
        "literal": json.dumps(name, ensure_ascii=False),
        "rows": "\n".join(f"| {k} | {fact} |" for k, fact in shown.items() if _WORD.match(fact)),
    }
    if config.representation.pooling == "mean":
        values["vector"] = "the mean of the last layer over its tokens"
        values["pooling"] = (
            'mask = batch["attention_mask"][:, :, None]\n'
            "vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1)"
        )
    if is_cosine:
        values["pooling"] += "\nvectors = vectors / vectors.norm(dim=1, keepdim=True)"
    if config.n_head_layers:
        values["training"] = (
            f"pre-trained with a Condenser head ({config.n_head_layers} layers, `skip_from`"
            f" {config.skip_from}, `late_mlm` {str(config.late_mlm).lower()})"
        )
    return template.substitute(values)
