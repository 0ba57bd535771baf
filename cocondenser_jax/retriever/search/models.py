"""Loads bi-encoders and cross-encoders as sentence-transformers."""

import contextlib
import copy
import hashlib
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
from cocondenser_jax.files.whole import file_sha256
from cocondenser_jax.model_folder.folder import (
    files_of_vectors,
    is_cross_encoder,
    network_folders,
    read_pair_settings,
    read_representation,
    tower_folder,
)
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.model_folder.modules import MODULES
from cocondenser_jax.representation import (
    NOTHING_GIVEN,
    Given,
    Representation,
    library_prompts,
)
from cocondenser_jax.retriever.search.cut import cut_output
from cocondenser_jax.retriever.search.finite import are_finite
from cocondenser_jax.retriever.search.lengths import (
    SHORTEST_PAIR,
    limit_tokens,
    max_tokens,
    require_within,
)
from cocondenser_jax.retriever.search.loading import (
    NO_CODE,
    NO_OTHER_CODE,
    loading,
    model_kwargs,
    require_loadable,
    require_rows,
)

# Of matrix products; "auto": see `uses_bfloat16`.
Precision = Literal["auto", "float32", "bfloat16"]
# Weights of 16 bits are stored, not computed with: what is to be faster is `Precision`.
_DTYPE = {"dtype": "float32"}


def load_retriever(
    folder: Path,
    query_length: int | None = None,
    passage_length: int | None = None,
    given: Given = NOTHING_GIVEN,
    *,
    plain: Given = NOTHING_GIVEN,
    two_towers: bool = False,
) -> SentenceTransformer:
    """Loads a Hugging Face folder, or one of sentence-transformers, as a bi-encoder.

    Its vectors are those of sentence-transformers; where it compares by cosine they have length 1,
    so scores are inner products. A pooler is left out: in a pre-trained retriever it is random.

    Args:
      folder: with `config.json`, the weights and the tokenizer; or the name of a model on the hub.
      query_length: longest query in tokens, prompt included; None: as in the folder, else the
        model's limit.
      passage_length: longest passage in tokens (`folder.passage_text`); None likewise.
      given: pooling, similarity, prompts and dimensions, instead of the folder's own.
      plain: see `read_representation`.
      two_towers: copy the encoder into a Router, for queries and passages, unless there are two.

    Raises:
      UserError: also for modules that `read_representation` does not know.
    """
    folder = find_folder(folder)
    representation = read_representation(folder, given, plain)
    return load_as(folder, representation, query_length, passage_length, two_towers=two_towers)


def load_as(
    folder: Path,
    representation: Representation,
    query_length: int | None = None,
    passage_length: int | None = None,
    *,
    two_towers: bool = False,
) -> SentenceTransformer:
    """Loads a bi-encoder with vectors that are known already; see `load_retriever`.

    Args:
      folder: see `load_retriever`.
      representation: of `read_representation`, for the same weights.
      query_length: see `load_retriever`.
      passage_length: see `load_retriever`.
      two_towers: see `load_retriever`.
    """
    folder = find_folder(folder)
    model = _open_bi_encoder(folder, representation)
    found: dict[str, Any] = dict(towers(model))
    if not found:
        raise UserError(f"{folder} does not start with a transformer: expected BERT or the like")
    for name, tower in found.items():
        # sentence-transformers 6.2.0 reads them from a module's config, but does not write them
        # there: other programs would load what is saved with a random pooler.
        tower.model_kwargs = model_kwargs(tower_folder(folder, name))
        # Nor does it write there that texts are lowered before the tokenizer gets them.
        tower.config_keys = [*tower.config_keys, "model_kwargs", "do_lower_case"]
        require_rows(tower, folder)
        limit_tokens(tower, query_length, passage_length, folder)
    _apply(representation, model, folder)
    with loading(folder, "bi-encoder"):  # modules that do not fit each other fail only now
        vectors_2xD = np.stack([model.encode_document("a word"), model.encode_query("a word")])
    if not are_finite(vectors_2xD):
        raise UserError(f"{folder} makes vectors that are not finite: its weights are damaged")
    n_said, n_made = model.get_embedding_dimension(), vectors_2xD.shape[1]
    if n_made != n_said:
        raise UserError(f"{folder} makes vectors of {n_made} numbers, and its files say {n_said}")
    if two_towers and "" in found:
        model = SentenceTransformer(
            modules=[Router.for_query_document([*copy.deepcopy(model)], [*model])],
            prompts={task: prompt for task, prompt in model.prompts.items() if prompt},
            default_prompt_name=model.default_prompt_name,
            similarity_fn_name=model.similarity_fn_name,
            truncate_dim=model.truncate_dim,
        )
    if model.truncate_dim:
        model.register_forward_hook(cut_output)
    _without_model_card(model)
    return model


def _apply(representation: Representation, model: SentenceTransformer, folder: Path) -> None:
    """Makes a model compute what a representation says, where its folder says otherwise."""
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
                f"{folder} makes vectors of {n_numbers} numbers: cannot keep {model.truncate_dim}"
            )


def load_cross_encoder(
    folder: Path, max_length: int | None = None, head_seed: int | None = None
) -> CrossEncoder:
    """Loads a cross-encoder: a transformer with a head that gives a pair of texts one logit.

    Its scores are the logits: no activation follows. Of a pair that is too long, the longer text
    is cut, so that a query of up to half of `max_length` is kept whole.

    Args:
      folder: with `config.json`, the weights and the tokenizer; or the name of a model on the hub.
      max_length: tokens kept of a pair, separators included; None: what the folder says.
      head_seed: for a random head where the folder has none; None: such a folder is refused.
    """
    folder = find_folder(folder)
    new_head = not is_cross_encoder(folder)
    if new_head and head_seed is None:
        raise UserError(
            f"{folder} is not a cross-encoder: expected a model for sequence classification, such "
            "as cocondenser finetune makes with configs/cross_encoder.py"
        )
    require_loadable(folder)
    longest, lowers_case = (None, False) if new_head else read_pair_settings(folder)
    task: Any = "sequence-classification"
    drawn = ("classifier.", "pooler.") if new_head else ()
    with loading(folder, "cross-encoder", drawn), new_parameters(head_seed or 0):
        backbone = Transformer(
            str(folder),
            model_kwargs=NO_CODE | _DTYPE,
            do_lower_case=lowers_case,
            transformer_task=task,
            **NO_OTHER_CODE,
        )
    if backbone.config.num_labels != 1:
        raise UserError(
            f"{folder} gives a pair of texts {backbone.config.num_labels} scores: expected 1"
        )
    require_rows(backbone, folder)
    limit = max_tokens(backbone.config)
    require_within("max_length", max_length, (SHORTEST_PAIR, limit), folder)
    backbone.max_seq_length = max_length or min(longest or backbone.max_seq_length or limit, limit)
    backbone.config_keys = [*backbone.config_keys, "do_lower_case"]  # as of a bi-encoder
    model = CrossEncoder(modules=[backbone], activation_fn=torch.nn.Identity())
    # Near 8, neighboring bfloat16 numbers are 1/32 apart: too coarse for logits under autocast.
    model.set_keep_in_fp32_modules(
        [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)][-1:]
    )
    with loading(folder, "cross-encoder"):
        scores_1 = model.predict([("a word", "another")], show_progress_bar=False)
    if not np.isfinite(scores_1).all():
        raise UserError(f"{folder} scores a pair with NaN or infinity: its weights are damaged")
    _without_model_card(model)
    return model


@contextlib.contextmanager
def new_parameters(seed: int) -> Iterator[None]:
    """Seeds what the block adds to a model; torch's global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def uses_bfloat16(precision: str, *, on_cpu: bool = False) -> bool:
    """Returns whether matrix products are in bfloat16.

    Args:
      precision: "auto" means on a GPU that has it.
      on_cpu: whether "auto" means on such a CPU too, where PyTorch encodes twice as fast by it.
    """
    if precision != "auto":
        return precision == "bfloat16"
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return on_cpu and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """Returns whether the CPU multiplies in bfloat16, and ATEN_CPU_CAPABILITY lets it."""
    # Older versions of PyTorch cannot tell.
    units: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    may = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return may and bool(units.get("avx512_bf16") or units.get("amx_bf16"))


def towers(model: SentenceTransformer) -> dict[str, Transformer]:
    """Returns the transformers of "query" and "document", or a single one under "", if any."""
    first: dict[str, Any] = {"": model[0]}
    if isinstance(model[0], Router):
        routes: dict[str, Any] = dict(model[0].sub_modules)
        first = {name: modules[0] for name, modules in routes.items()}
    return first if all(isinstance(tower, Transformer) for tower in first.values()) else {}


def pooling_of(model: SentenceTransformer) -> str | None:
    """Returns how passages are pooled, such as "cls" or "mean"; None without a pooling module."""
    modes = [_mode(layer) for layer in model.modules() if isinstance(layer, Pooling)]
    return modes[-1] if modes else None


def _mode(layer: Pooling) -> str:
    mode = layer.pooling_mode
    return mode if isinstance(mode, str) else "+".join(mode)


def is_normalized(model: SentenceTransformer) -> bool:
    """Returns whether vectors are scaled to length 1 at last, as they must be for cosines."""
    parts = [layer for layer in model.modules() if isinstance(layer, torch.nn.Sequential)]
    return any(map(_ends_normalized, parts))


def _ends_normalized(modules: torch.nn.Sequential) -> bool:
    return len(modules) > 0 and isinstance(modules[-1], Normalize)


def passage_tokens(model: SentenceTransformer) -> int | None:
    """Returns the number of tokens kept of a passage; None: the tokenizer does not limit it."""
    found = towers(model)
    tower = found.get("document", found.get(""))
    length: int | None = tower.document_length or tower.max_seq_length if tower else None
    return length


def model_sha256(folder: Path) -> str:
    """Returns a hash of everything in a model folder that its vectors depend on."""
    folder = find_folder(folder)
    digest = hashlib.sha256()
    for path in files_of_vectors(folder):
        digest.update(f"{path.relative_to(folder)}\0{file_sha256(path)}\0".encode())
    return digest.hexdigest()


def _open_bi_encoder(folder: Path, representation: Representation) -> SentenceTransformer:
    networks = network_folders(folder)
    for network in networks:
        require_loadable(network)
    kwargs = model_kwargs(networks[0]) | _DTYPE
    with loading(folder, "bi-encoder"):
        if (folder / MODULES).is_file():
            return SentenceTransformer(str(folder), local_files_only=True, model_kwargs=kwargs)
        backbone = Transformer(str(folder), model_kwargs=kwargs | NO_CODE, **NO_OTHER_CODE)
        size = backbone.get_embedding_dimension()
        return SentenceTransformer(modules=[backbone, Pooling(size, representation.pooling)])


def _without_model_card(model: SentenceTransformer | CrossEncoder) -> None:
    """Keeps training from looking up what a model card says, on the hub and among the texts."""
    model.model_card_data.local_files_only = True
    model.model_card_data.generate_widget_examples = False
