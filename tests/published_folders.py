"""Tiny model folders of sentence-transformers, written file by file as its releases wrote them."""

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sentence_transformers.sentence_transformer.modules as library
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

from tests.published_networks import HIDDEN, POSITIONS, draw_weights, write_network
from tests.published_tokenizers import files_of, load

IDENTITY = "torch.nn.modules.linear.Identity"
TANH = "torch.nn.modules.activation.Tanh"


class Module(NamedTuple):
    """A module after the transformer: the name of its class, and the config.json of its folder."""

    kind: str
    config: Mapping[str, Any] = {}


class Folder(NamedTuple):
    """The files of a model folder."""

    network: str  # of NETWORKS
    tokenizer: str  # of `published_tokenizers.load`
    modules: tuple[Module, ...] | None  # after the transformer; None: a plain folder
    max_length: int | None = POSITIONS  # max_seq_length; None: no sentence_bert_config.json
    settings: Mapping[str, Any] | None = None  # config_sentence_transformers.json; None: no file
    weights: str = "safetensors"  # see `write_network`
    padded_by: int = 0  # rows of the table without a token
    changes: Mapping[str, Mapping[str, Any]] = {}  # of the contents of JSON files, by their names
    lacks: tuple[str, ...] = ()  # files that are deleted
    transformer: str = "sentence_transformers.models.Transformer"  # its class in modules.json
    in_subfolder: bool = False  # the transformer is in 0_Transformer, as before release 2
    saved_as: str = ""  # of SAVED_AS: what the installed release then makes of the folder


def pooling(mode: str, **config: Any) -> Module:
    """Returns a Pooling module as the releases before 6 write it, with a flag for each mode."""
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    on = {f"pooling_mode_{flag}": flag.removesuffix("_tokens").startswith(mode) for flag in flags}
    on["pooling_mode_mean_sqrt_len_tokens"] = False
    return Module("Pooling", {"word_embedding_dimension": HIDDEN, **on, **config})


def dense(out: int, activation: str, n: int = HIDDEN, *, bias: bool = True, **more: Any) -> Module:
    """Returns a Dense module."""
    config = {"in_features": n, "out_features": out, "bias": bias}
    return Module("Dense", {**config, "activation_function": activation, **more})


def write_folder(folder: Folder, out: Path) -> Path:
    """Writes the files of a folder; returns it."""
    out.mkdir(parents=True)
    tokenizer = load(folder.tokenizer)
    n_rows = max(tokenizer.backend.get_vocab().values()) + 1 + folder.padded_by
    write_network(out, folder.network, n_rows, tokenizer.pad_id, folder.weights)
    for name, content in files_of(folder.tokenizer).items():
        _write_json(out / name, content)
    tokenizer.backend.model.save(str(out))  # vocab.txt and the like, which old releases read
    if folder.settings is not None:
        _write_json(out / "config_sentence_transformers.json", folder.settings)
    if folder.modules is not None:
        _write_modules(folder, out)
        if folder.max_length is not None:
            config = {"max_seq_length": folder.max_length, "do_lower_case": False}
            _write_json(out / "sentence_bert_config.json", config)
    if folder.in_subfolder:
        _move_transformer(out)
    for name, change in folder.changes.items():
        _write_json(out / name, json.loads((out / name).read_text()) | change)
    for name in folder.lacks:
        (out / name).unlink()
    if folder.saved_as:
        model = SentenceTransformer(str(out), model_kwargs={"dtype": "float32"})
        shutil.rmtree(out)
        made = SAVED_AS[folder.saved_as](model)
        made.save_pretrained(str(out), create_model_card=False)
    return out


def _move_transformer(out: Path) -> None:
    files = [path for path in out.iterdir() if path.is_file()]
    below = out / "0_Transformer"
    below.mkdir()
    for path in files:
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(below / path.name)
    modules = json.loads((out / "modules.json").read_text())
    modules[0]["path"] = below.name
    _write_json(out / "modules.json", modules)


def _two_towers(model: SentenceTransformer) -> SentenceTransformer:
    """Copies the modules into a Router; those of queries get other weights."""
    of_queries = copy.deepcopy([*model])
    draw_weights(of_queries[0], seed=8)
    router = library.Router.for_query_document(of_queries, [*model])
    return SentenceTransformer(modules=[router], prompts=model.prompts)


def _static(model: SentenceTransformer) -> SentenceTransformer:
    backend = model.tokenizer.backend_tokenizer
    return SentenceTransformer(modules=[library.StaticEmbedding(backend, embedding_dim=HIDDEN)])


def _inserted(module: torch.nn.Module, at: int, model: SentenceTransformer) -> SentenceTransformer:
    modules = [*model]
    modules.insert(at, module)
    return SentenceTransformer(modules=modules)


SAVED_AS: dict[str, Callable[[SentenceTransformer], SentenceTransformer]] = {
    "the same": lambda model: model,
    "two towers": _two_towers,
    "a table of words": _static,
    "with an LSTM": lambda model: _inserted(library.LSTM(HIDDEN, HIDDEN // 2), 1, model),
    "with weights of words": lambda model: _inserted(
        library.WordWeights(["the", "sea"], {"the": 0.1}), 1, model
    ),
    "with LayerNorm": lambda model: _inserted(library.LayerNorm(HIDDEN), 2, model),
    "with two transformers": lambda model: _inserted(copy.deepcopy(model[0]), 1, model),
}


def _write_modules(folder: Folder, out: Path) -> None:
    """Writes modules.json, and the config and weights of each module after the transformer."""
    modules = [Module("Transformer"), *(folder.modules or ())]
    paths = ["" if i == 0 else f"{i}_{module.kind}" for i, module in enumerate(modules)]
    _write_json(
        out / "modules.json",
        [
            {
                "idx": i,
                "name": str(i),
                "path": path,
                "type": f"sentence_transformers.models.{module.kind}" if i else folder.transformer,
            }
            for i, (module, path) in enumerate(zip(modules, paths, strict=True))
        ],
    )
    for module, path in zip(modules, paths, strict=True):
        if not path:
            continue
        (out / path).mkdir()
        if module.kind != "Normalize":
            _write_json(out / path / "config.json", module.config)
        if module.kind == "Dense":
            _write_dense(module, out / path, folder.weights)


def _write_dense(module: Module, out: Path, weights: str) -> None:
    keys = ("in_features", "out_features", "bias")
    layer = library.Dense(**{key: module.config[key] for key in keys})
    draw_weights(layer)
    dtype = getattr(torch, weights) if "float" in weights else torch.float32
    tensors = layer.to(dtype).state_dict()
    if weights == "bin":
        torch.save(tensors, out / "pytorch_model.bin")
    else:
        save_file(tensors, out / "model.safetensors")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
