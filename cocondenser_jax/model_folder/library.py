"""Reads model folders with transformers and sentence-transformers; needs PyTorch.

The representation is derived from the modules that sentence-transformers itself builds from a
folder. It therefore matches the published model by construction.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Router, Transformer
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from cocondenser_jax.backbones import MAX_LAYERS, find_backbone, first_position
from cocondenser_jax.errors import UserError, first_three, whole_message
from cocondenser_jax.model_folder.folder import TOKENIZERS, Network
from cocondenser_jax.model_folder.modules import (
    NO_LIMIT,
    TASKS,
    TRANSFORMER,
    around_dense,
    dense_of,
    require_order,
    require_usual,
    similarity_of,
    sizes_of,
    whole,
)
from cocondenser_jax.representation import Representation

_LAYERS = "num_hidden_layers"  # transformers' common name; a family may have its own, too
# Without it, the libraries ask on the terminal whether to run a folder's own code.
NO_CODE = {"trust_remote_code": False}
NO_OTHER_CODE: dict[str, Any] = {"config_kwargs": NO_CODE, "processor_kwargs": NO_CODE}

SHORTEST_TEXT = 3  # tokens, those around a text included
# Attributes of a Transformer module: maximum tokens of any text, of a query, of a passage.
_LIMITS = "max_seq_length", "query_length", "document_length"


def require_loadable(network: Network) -> None:
    """Raises a UserError for a network that the libraries would refuse or load differently."""
    folder, config = network.path, network.config
    model_type = config.get("model_type")
    if config.get("auto_map") and model_type not in CONFIG_MAPPING:
        raise UserError(
            f"{folder} needs code of its own (auto_map in its config.json), which is never run"
        )
    _require_layers(folder, config)
    # transformers (5.23) ignores the setting and always computes absolute positions.
    positions = config.get("position_embedding_type") or "absolute"
    if find_backbone(model_type) and positions != "absolute":
        raise UserError(
            f"{folder}/config.json: position_embedding_type is {positions!r}; only 'absolute' is"
            " supported"
        )
    # transformers (5.23) would make a tokenizer with nothing but special tokens.
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise UserError(
            f"{folder} has no tokenizer: expected tokenizer.json, vocab.txt or the like"
        )


def _require_layers(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises a UserError for an implausible number of layers; transformers allocates them first."""
    family = config.get("model_type")
    is_known = isinstance(family, str) and family in CONFIG_MAPPING
    synonyms = CONFIG_MAPPING[str(family)].attribute_map if is_known else {}
    for name in (_LAYERS, synonyms.get(_LAYERS, _LAYERS)):
        n_layers = config.get(name)
        if isinstance(n_layers, int) and n_layers > MAX_LAYERS:
            raise UserError(
                f"{folder}/config.json: {name} is {n_layers:,}; expected at most {MAX_LAYERS:,}"
            )


_ONE_THREAD = threading.RLock()  # at a time changes how transformers loads


@contextlib.contextmanager
def _loading_by(replacement: Callable[..., Any]) -> Iterator[None]:
    """Makes transformers load by `replacement(from_pretrained, cls, *args, **kwargs)`, silently.

    Hidden are progress bars of a fraction of a second, and a report about unused heads.
    """
    models: Any = transformers.PreTrainedModel
    with _ONE_THREAD:
        own, verbosity = models.__dict__["from_pretrained"], logging.get_verbosity()
        logging.disable_progress_bar()
        logging.set_verbosity_error()

        def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return replacement(own.__func__, cls, *args, **kwargs)

        models.from_pretrained = classmethod(from_pretrained)
        try:
            yield
        finally:
            models.from_pretrained = own
            logging.set_verbosity(verbosity)


@contextlib.contextmanager
def loading(folder: Path, kind: str, drawn: Collection[str] = ()) -> Iterator[None]:
    """Silences the libraries while a model loads, and turns their errors into one line.

    Args:
      folder: the model's folder, for messages.
      kind: of the model, for messages.
      drawn: substrings of the names of parameters that may be initialized at random.

    Raises:
      UserError: also if a parameter is missing from the weights, or has another shape than in
        config.json.
    """
    missing: list[str] = []
    misshapen: list[str] = []

    def load_and_note(load: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        # Without these, its errors refer to a report that is not shown.
        told = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = load(cls, *args, **{**kwargs, **told})
        for name, found, expected in info["mismatched_keys"]:
            misshapen.append(f"{name} is {tuple(found)}, expected {tuple(expected)}")
        missing.extend(
            name for name in info["missing_keys"] if not any(text in name for text in drawn)
        )
        return model

    try:
        # sentence-transformers (6.2.0) does not pass on the loading report of transformers.
        with _loading_by(load_and_note):
            yield
    except Exception as error:  # the libraries raise anything for a broken folder
        raise UserError(f"{folder} cannot be loaded as a {kind}: {whole_message(error)}") from error
    if misshapen:
        raise UserError(
            f"the weights of {folder} have another shape than its config.json implies: "
            f"{first_three(sorted(misshapen))}"
        )
    if missing:
        raise UserError(
            f"the weights of {folder} lack {len(missing)} parameters that its config.json implies: "
            f"{first_three(sorted(missing))}"
        )


def model_kwargs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns transformers' arguments for loading a network as an encoder."""
    backbone = find_backbone(config.get("model_type"))
    return {"add_pooling_layer": False} if backbone and backbone.pooler else {}


def require_rows(tower: Transformer, folder: Path) -> None:
    """Raises a UserError if a token of the tokenizer has no row in the embedding table."""
    network: Any = tower.auto_model
    tokenizer: Any = tower.tokenizer
    n_rows = network.get_input_embeddings().num_embeddings
    last = max(tokenizer.get_vocab().values())
    if last >= n_rows:
        raise UserError(
            f"{folder} has a tokenizer with token ids up to {last}, but {n_rows} word embeddings:"
            " its tokenizer is another model's"
        )


def require_lengths(
    networks: Iterable[Network], lengths: Mapping[str, int | None], least: int = SHORTEST_TEXT
) -> None:
    """Raises a UserError for texts longer than a model reads, or too short, without loading it.

    Args:
      networks: of the model; or that of a cross-encoder.
      lengths: in tokens, by the name of the flag or setting that says them; None: not said.
      least: the shortest, in tokens.
    """
    for network in networks:
        require_loadable(network)
        with loading(network.path, "transformer"):
            config = AutoConfig.from_pretrained(network.path, **NO_CODE)
        for name, length in lengths.items():
            require_within(name, length, (least, max_tokens(config)), network.path)


def require_within(name: str, length: int | None, limits: tuple[int, int], folder: Path) -> None:
    """Raises a UserError unless a length is within limits, both included, or not said."""
    least, most = limits
    if length is not None and not least <= length <= most:
        raise UserError(f"{name}={length}: expected {least} to {most} tokens for {folder}")


def max_tokens(config: Any) -> int:
    """Returns how many tokens the network of a config can read; with relative positions, any."""
    if not hasattr(config, "max_position_embeddings"):
        return sys.maxsize
    offset = first_position(config.model_type, getattr(config, "pad_token_id", None))
    return int(config.max_position_embeddings) - offset


def read_modules(folder: Path) -> tuple[Representation, bool]:
    """Reads the representation of a folder from the modules that sentence-transformers builds.

    Networks are built without weights.

    Returns:
      The representation, and whether texts are lower-cased before tokenization.

    Raises:
      UserError: for modules that `Representation` cannot describe, or two towers with different
        representations.
    """
    with loading(folder, "bi-encoder"), _loading_by(_make_from_config):
        model = SentenceTransformer(str(folder), device="meta", local_files_only=True)
    try:
        passages, *others = [_describe(model, modules) for modules in _routes(model)]
        if any(each._replace(max_length=passages.max_length) != passages for each in others):
            raise ValueError("makes the vectors of queries otherwise than those of passages")
    except ValueError as error:
        raise UserError(f"{folder} {error}") from error
    towers = [module for module in model.modules() if isinstance(module, Transformer)]
    return passages, any(tower.do_lower_case for tower in towers)


def _make_from_config(_: Any, cls: Any, *__: Any, config: Any, **___: Any) -> Any:
    """Builds a network from config.json alone, without reading weights."""
    with torch.device("meta"):
        return cls(config)


def _routes(model: SentenceTransformer) -> list[list[Any]]:
    """Returns the modules of each tower: one list, or that of passages and that of queries."""
    first, *others = model
    if not isinstance(first, Router):
        return [[first, *others]]
    routes: Any = first.sub_modules
    if missing := [task for task in TASKS if task not in routes]:
        raise ValueError(f"has a Router without a route named {missing[0]}")
    return [[*routes[task], *others] for task in TASKS]


def _describe(model: SentenceTransformer, modules: list[Any]) -> Representation:
    require_order([type(module).__name__ for module in modules])
    tower, pooling, *others = modules
    for module in others:
        require_usual(type(module).__name__, module.get_config_dict())
    before, _, after = around_dense([type(module).__name__ for module in others])
    mode = pooling.pooling_mode
    dense = tuple(
        dense_of(module.get_config_dict()) for module in others if isinstance(module, Dense)
    )
    cut = {"truncate_dim": model.truncate_dim}
    limits = {name: getattr(tower, name) for name in _LIMITS}
    longest, query_length, passage_length = (whole(limits, name, TRANSFORMER) for name in _LIMITS)
    return Representation(
        pooling=mode if isinstance(mode, str) else "+".join(mode),
        dense=dense,
        normalized=len(after) > 0,
        similarity=similarity_of(model.similarity_fn_name),
        sizes=sizes_of(cut, dense, pooling.get_embedding_dimension()),
        scaled_before_dense=len(before) > 0,
        prompts=tuple((name, text) for name, text in model.prompts.items() if text),
        default_prompt=model.default_prompt_name,
        include_prompt=bool(pooling.include_prompt),
        max_length=longest if longest is not None and longest < NO_LIMIT else None,
        query_length=query_length,
        passage_length=passage_length,
    )
