"""Loads bi-encoders with sentence-transformers."""

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    Pooling,
    Router,
    Transformer,
)

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.folder import ModelFolder
from cocondenser_jax.model_folder.library import (
    NO_CODE,
    NO_OTHER_CODE,
    SHORTEST_TEXT,
    loading,
    max_tokens,
    model_kwargs,
    require_loadable,
    require_rows,
    require_within,
)
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.model_folder.modules import TASKS
from cocondenser_jax.representation import NOTHING_GIVEN, Given, Representation, library_prompts
from cocondenser_jax.retriever.search.finite import broken_rows

# Precision of matrix multiplications; "auto": see `uses_bfloat16`.
Precision = Literal["auto", "float32", "bfloat16"]
# Weights are loaded in float32 even if stored in 16 bits; `Precision` is for speed.
DTYPE = {"dtype": "float32"}


def load_retriever(
    name_or_folder: str | Path,
    query_length: int | None = None,
    passage_length: int | None = None,
    given: Given = NOTHING_GIVEN,
    *,
    plain: Given = NOTHING_GIVEN,
    two_towers: bool = False,
) -> SentenceTransformer:
    """Loads a model as a bi-encoder; see `open_model` and `load`."""
    model = open_model(name_or_folder, given, plain)
    return load(model, query_length, passage_length, two_towers=two_towers)


def load(
    folder: ModelFolder,
    query_length: int | None = None,
    passage_length: int | None = None,
    *,
    two_towers: bool = False,
) -> SentenceTransformer:
    """Loads a model as a bi-encoder that computes the vectors of its representation.

    The vectors are those of sentence-transformers. For cosine similarity they have length 1, so
    that scores are inner products. A pooler is dropped, since pre-trained retrievers have a random
    one.

    Args:
      folder: the opened model, possibly with another representation.
      query_length: maximum tokens of a query, prompt included; None: the folder's limit or, without
        one, the network's.
      passage_length: the same for a passage (see `folder.passage_text`).
      two_towers: whether to copy a single encoder, so that queries and passages have one each.

    Raises:
      UserError: also if its vectors are not finite, or do not have the dimension in its files.
    """
    model = _open_bi_encoder(folder)
    found: dict[str, Any] = dict(towers(model))
    if not found:
        raise UserError(f"{folder.path} does not start with a transformer: expected BERT or such")
    for name, tower in found.items():
        # sentence-transformers 6.2.0 reads these from a module's config but does not save them:
        # other programs would load the saved model with a random pooler.
        tower.model_kwargs = model_kwargs(folder.networks[name].config)
        # Neither does it save the lower-casing of texts before tokenization.
        tower.config_keys = [*tower.config_keys, "model_kwargs", "do_lower_case"]
        require_rows(tower, folder.path)
        _limit_tokens(tower, query_length, passage_length, folder.path)
    _apply(folder.representation, model, folder.path)
    with loading(folder.path, "bi-encoder"):  # modules with unequal dimensions fail only here
        vectors_2xD = np.stack([model.encode_document("a word"), model.encode_query("a word")])
    if len(broken_rows(vectors_2xD)):
        raise UserError(f"{folder.path} makes vectors that are not finite: its weights are damaged")
    n_said, n_made = model.get_embedding_dimension(), vectors_2xD.shape[1]
    if n_made != n_said:
        raise UserError(
            f"{folder.path} makes vectors of {n_made} dimensions, and its files say {n_said}"
        )
    if two_towers and "" in found:
        model = SentenceTransformer(
            modules=[Router.for_query_document([*copy.deepcopy(model)], [*model])],
            prompts={task: prompt for task, prompt in model.prompts.items() if prompt},
            default_prompt_name=model.default_prompt_name,
            similarity_fn_name=model.similarity_fn_name,
            truncate_dim=model.truncate_dim,
        )
    if model.truncate_dim:
        model.register_forward_hook(_cut_output)
    without_model_card(model)
    return model


def _limit_tokens(
    tower: Transformer, query_length: int | None, passage_length: int | None, folder: Path
) -> None:
    """Sets the maximum length of a tower's texts, at most the network's limit; see `load`."""
    limit = max_tokens(tower.config)
    # If the tokenizer has no limit, sentence-transformers counts all rows of the position table,
    # including those before the first position.
    if limit < sys.maxsize:
        tower.max_seq_length = tower.max_seq_length or limit
        for name in ("max_seq_length", "query_length", "document_length"):
            said = getattr(tower, name)
            if said is None or said <= limit:
                continue
            if not _has_position_table(tower):  # the library would read texts of any length
                raise UserError(
                    f"{folder} says of {name} {said}, but its config.json that there are {limit}"
                    " positions"
                )
            setattr(tower, name, limit)
    for name, length in (("query_length", query_length), ("passage_length", passage_length)):
        if length is not None:
            require_within(name, length, (SHORTEST_TEXT, limit), folder)
            setattr(tower, name.replace("passage", "document"), length)


def _has_position_table(tower: Transformer) -> bool:
    """Returns whether positions are rows of a table, which limits the length of texts."""
    network: Any = tower.auto_model
    return any(name.endswith("position_embeddings.weight") for name in network.state_dict())


def _apply(representation: Representation, model: SentenceTransformer, folder: Path) -> None:
    """Changes a loaded model to compute a representation other than its folder's."""
    for layer in model.modules():
        if isinstance(layer, Pooling) and _mode(layer) != representation.pooling:
            layer.pooling_mode = representation.pooling
            layer.pooling_output_dimension = layer.embedding_dimension
        if isinstance(layer, torch.nn.Sequential) and not representation.is_cosine:
            while _ends_normalized(layer):
                del layer[-1]
    if representation.is_cosine and not is_normalized(model):
        model.append(Normalize())
    model.similarity_fn_name = representation.similarity
    prompts = library_prompts(dict(representation.prompts))
    model.prompts = {**dict.fromkeys(model.prompts, ""), **prompts}
    model.truncate_dim = None
    n_numbers = model.get_embedding_dimension() or 0
    if representation.sizes:
        model.truncate_dim = representation.sizes[0]
        if model.truncate_dim > n_numbers:
            raise UserError(
                f"{folder} makes vectors of {n_numbers} dimensions: cannot keep"
                f" {model.truncate_dim}"
            )


@contextlib.contextmanager
def new_parameters(seed: int) -> Iterator[None]:
    """Seeds new parameters in the block; restores torch's global generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def uses_bfloat16(precision: str, *, on_cpu: bool = False) -> bool:
    """Returns whether matrix multiplications are in bfloat16.

    Args:
      precision: "auto" means on a GPU that supports it.
      on_cpu: whether "auto" also means on a CPU that supports it; PyTorch then encodes twice as
        fast.
    """
    if precision != "auto":
        return precision == "bfloat16"
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return on_cpu and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """Returns whether the CPU multiplies in bfloat16 and ATEN_CPU_CAPABILITY permits it."""
    # Older versions of PyTorch lack this function.
    units: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    may = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return may and bool(units.get("avx512_bf16") or units.get("amx_bf16"))


def cut_vectors(
    vectors_NxD: torch.Tensor, size: int | None, similarity: str | None
) -> torch.Tensor:
    """Truncates vectors to `size` dimensions (None: all), and normalizes them for cosine.

    sentence-transformers (6.2.0) truncates after all modules, so that a cosine model's vectors are
    shorter than 1, and inner products are not cosines.
    """
    vectors_NxE = vectors_NxD[:, :size]
    if similarity == "cosine":
        return torch.nn.functional.normalize(vectors_NxE, dim=1)
    return vectors_NxE


def _cut_output(
    model: SentenceTransformer, inputs: object, features: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Truncates the vectors of a forward pass to the model's `truncate_dim`; a forward hook."""
    vectors_NxE = cut_vectors(
        features["sentence_embedding"], model.truncate_dim, model.similarity_fn_name
    )
    return features | {"sentence_embedding": vectors_NxE}


def towers(model: SentenceTransformer) -> dict[str, Transformer]:
    """Returns the transformers by task, "query" and "document", or a single one under ""."""
    first: dict[str, Any] = {"": model[0]}
    if isinstance(model[0], Router):
        routes: dict[str, Any] = dict(model[0].sub_modules)
        first = {name: routes[name][0] for name in TASKS}
    return first if all(isinstance(tower, Transformer) for tower in first.values()) else {}


def pooling_of(model: SentenceTransformer) -> str | None:
    """Returns the pooling of passages, such as "cls" or "mean"; None without a pooling module."""
    modes = [_mode(layer) for layer in model.modules() if isinstance(layer, Pooling)]
    return modes[-1] if modes else None


def _mode(layer: Pooling) -> str:
    mode = layer.pooling_mode
    return mode if isinstance(mode, str) else "+".join(mode)


def is_normalized(model: SentenceTransformer) -> bool:
    """Returns whether vectors are normalized at the end, as cosine similarity requires."""
    parts = [layer for layer in model.modules() if isinstance(layer, torch.nn.Sequential)]
    return any(map(_ends_normalized, parts))


def _ends_normalized(modules: torch.nn.Sequential) -> bool:
    return len(modules) > 0 and isinstance(modules[-1], Normalize)


def passage_tokens(model: SentenceTransformer) -> int | None:
    """Returns the maximum tokens of a passage; None if the tokenizer has no limit."""
    found = towers(model)
    tower = found.get("document", found.get(""))
    length: int | None = tower.document_length or tower.max_seq_length if tower else None
    return length


def _open_bi_encoder(folder: ModelFolder) -> SentenceTransformer:
    for network in folder.networks.values():
        require_loadable(network)
    first = next(iter(folder.networks.values()))
    kwargs = model_kwargs(first.config) | DTYPE
    path = str(folder.path)
    with loading(folder.path, "bi-encoder"):
        if not folder.is_plain:
            return SentenceTransformer(path, local_files_only=True, model_kwargs=kwargs)
        backbone = Transformer(path, model_kwargs=kwargs | NO_CODE, **NO_OTHER_CODE)
        size = backbone.get_embedding_dimension()
        return SentenceTransformer(modules=[backbone, Pooling(size, folder.representation.pooling)])


def without_model_card(model: SentenceTransformer | CrossEncoder) -> None:
    """Keeps training from collecting facts for a model card, from the Hub and the texts."""
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
