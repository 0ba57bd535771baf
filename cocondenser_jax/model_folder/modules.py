"""Converts between `Representation` and the contents of sentence-transformers' files.

The functions take and return parsed contents; they do not access files.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cocondenser_jax.representation import (
    POOLINGS,
    Dense,
    Representation,
    Similarity,
    library_prompts,
)

MODULES = "modules.json"  # a folder without it is a plain Hugging Face folder
SETTINGS = "config_sentence_transformers.json"
TASKS = ("document", "query")  # the routes of a model with two towers
NETWORK = "config.json"
_SCALE = "score_scale"  # ours, in SETTINGS: sentence-transformers reads other keys alone
_KIND = "SentenceTransformer"  # the model_type; releases before 5 wrote none
TRANSFORMER = "sentence_bert_config.json"
_TOKENIZER = "tokenizer_config.json"
NO_LIMIT = 10**9  # tokens: transformers writes 10**30 for a tokenizer without a limit
# Poolings by the flags that all releases of sentence-transformers read.
_MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
# Settings of a Transformer module in sentence-transformers 6.2.0, with the values for which it
# reads a folder as the files beside them say; and its settings of how libraries load these files,
# of which some change no vector.
_AS_FILES_SAY = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
    "processing_kwargs": {},
    "query_expansion": None,
}
_OF_LOADING = (
    *("model_args", "tokenizer_args", "config_args"),  # their names before 6.0
    *("model_kwargs", "processor_kwargs", "config_kwargs"),
)
_NEUTRAL = {"add_pooling_layer", "attn_implementation", "dtype", "torch_dtype", "trust_remote_code"}
# Other settings of a Dense or Normalize module in sentence-transformers 6.2.0, and the only values
# with which it computes what `Dense` describes.
_USUAL = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}


def from_files(modules: Any, read: Callable[[str], Any]) -> Representation:
    """Returns the representation of a plain folder, or of one in the form that `to_files` writes.

    Without modules.json, it is sentence-transformers' default: mean pooling, or the last token for
    a network that generates text, and cosine similarity.

    Args:
      modules: the content of modules.json; None for a folder without it.
      read: returns the JSON object in a file of the folder; {} if there is no such file.

    Raises:
      ValueError: for a folder in any other form. The message begins with a verb; the caller puts
        the folder's name before it.
    """
    limit = _token_limit(read(_TOKENIZER))
    if modules is None:
        names = read(NETWORK).get("architectures")
        if not isinstance(names, list | None):
            raise ValueError(f"has a {NETWORK} where architectures is {names!r}; expected a list")
        pooling = "lasttoken" if "ForCausalLM" in str(names) else "mean"
        return Representation(pooling=pooling, similarity="cosine", max_length=limit)
    layers = kinds_and_paths(modules)
    before, kinds, after = around_dense([kind for kind, _ in layers[2:]])
    network, pooling_file = read(TRANSFORMER), read(join(layers[1][1], "config.json"))
    if layers[0][1] or before or not network:
        raise ValueError(f"is written in another form than {TRANSFORMER} in the folder itself")
    others = {path: read(join(path, "config.json")) for _, path in layers[2:]}
    for (kind, _), config in zip(layers[2:], others.values(), strict=True):
        require_usual(kind, config)
    settings = read(SETTINGS)
    prompts = _prompts(settings)
    default = str(settings.get("default_prompt_name"))
    dense = tuple(dense_of(each) for each in [*others.values()][: len(kinds)])
    return Representation(
        pooling=_pooling(pooling_file),
        dense=dense,
        normalized=len(after) > 0,
        similarity=similarity_of(settings.get("similarity_fn_name")),
        scale=scale_of(settings),
        sizes=sizes_of(settings, dense, read(NETWORK).get("hidden_size")),
        prompts=prompts,
        default_prompt=default if default in dict(prompts) else None,
        include_prompt=bool(pooling_file.get("include_prompt", True)),
        max_length=whole(network, "max_seq_length", TRANSFORMER) or limit,
        query_length=whole(network, "query_length", TRANSFORMER),
        passage_length=whole(network, "document_length", TRANSFORMER),
    )


def lowers_case(read: Callable[[str], Any]) -> bool:
    """Returns whether a folder of `from_files` lower-cases texts before tokenization."""
    return bool(read(TRANSFORMER).get("do_lower_case"))


def read_otherwise(transformer: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the settings of TRANSFORMER that change how its network or tokenizer is read.

    sentence-transformers obeys them; what reads the files themselves does not.

    Raises:
      ValueError: for a tokenizer in another place, which no checksum covers.
    """
    if transformer.get("tokenizer_name_or_path") is not None:
        raise ValueError(f"names a tokenizer elsewhere in {TRANSFORMER}; expected it in the folder")
    said = {name: transformer.get(name) for name in _AS_FILES_SAY}
    others = [name for name, value in said.items() if value not in (None, _AS_FILES_SAY[name])]
    for name in _OF_LOADING:
        others += [f"{name}: {key}" for key in transformer.get(name) or {} if key not in _NEUTRAL]
    return tuple(others)


def require_kind(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for another kind of model: the library would load its network alone."""
    kind = settings.get("model_type", _KIND)
    if kind != _KIND:
        raise ValueError(f"is a {kind!r} by its {SETTINGS}; expected {_KIND}")


def require_order(kinds: Sequence[str]) -> None:
    """Raises a ValueError for modules that `Representation` cannot describe."""
    before, dense, after = (len(part) for part in around_dense(kinds[2:]))
    expected = ["Normalize"] * before + ["Dense"] * dense + ["Normalize"] * after
    if [*kinds] != ["Transformer", "Pooling", *expected]:
        raise ValueError(
            f"makes its vectors by {', '.join(kinds) or 'no modules'};"
            " expected Transformer, Pooling, perhaps Dense and perhaps Normalize"
        )


def similarity_of(name: str | None) -> Similarity:
    """Returns the similarity by sentence-transformers' name; None, from before 3.0, means cosine.

    Raises:
      ValueError: for any other name than None, "cosine" or "dot".
    """
    match name:
        case None | "cosine":
            return "cosine"
        case "dot":
            return "dot"
        case other:
            raise ValueError(f"compares vectors by {other!r}; expected cosine or dot")


def to_files(
    representation: Representation,
    hidden_size: int,
    longest: int,
    *,
    has_pooler: bool,
    lowers_case: bool = False,
) -> dict[str, Any]:
    """Returns the contents of a model folder's files, by name, in a form that all releases read.

    A scale of scores, which sentence-transformers keeps with its losses, is written beside them.

    Args:
      representation: with one of POOLINGS.
      hidden_size: dimension of the network's token vectors.
      longest: maximum number of tokens that the network reads.
      has_pooler: whether transformers' network has a pooler, which the vector does not use and
        the folder has no weights for.
      lowers_case: whether texts are lower-cased before tokenization.
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * len(representation.dense)]
    if representation.normalized:
        kinds.append("Normalize")
    paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    pooling = {flag: representation.pooling == mode for flag, mode in _MODES.items()}
    if not representation.include_prompt:  # unknown to releases before 2.4
        pooling["include_prompt"] = False
    lengths = {  # known to releases from 6.0
        "query_length": representation.query_length,
        "document_length": representation.passage_length,
    }
    return {
        MODULES: _modules(kinds, paths),
        "1_Pooling/config.json": {"word_embedding_dimension": hidden_size, **pooling},
        **{
            f"{path}/config.json": _dense_config(dense)
            for path, dense in zip(paths[2:], representation.dense, strict=False)
        },
        TRANSFORMER: {
            "max_seq_length": min(representation.max_length or longest, longest),
            "do_lower_case": lowers_case,
            "model_args": {"add_pooling_layer": False} if has_pooler else {},
            **{name: length for name, length in lengths.items() if length},
        },
        SETTINGS: _settings(representation, hidden_size),
    }


def _settings(representation: Representation, hidden_size: int) -> dict[str, Any]:
    """Returns the content of SETTINGS."""
    prompts = dict(representation.prompts)
    settings: dict[str, Any] = {
        "model_type": _KIND,
        "prompts": library_prompts(prompts) if prompts else {},
        "default_prompt_name": representation.default_prompt,
        "similarity_fn_name": representation.similarity,
    }
    if representation.is_cut(hidden_size):
        settings["truncate_dim"] = representation.sizes[0]
    if representation.scale:
        settings[_SCALE] = representation.scale
    return settings


def dense_folders(files: Mapping[str, Any]) -> list[str]:
    """Returns the folder of each Dense module in what `to_files` returns."""
    return [path for kind, path in kinds_and_paths(files[MODULES]) if kind == "Dense"]


def sizes_of(
    settings: Mapping[str, Any], dense: Sequence[Dense], hidden_size: int | None
) -> tuple[int, ...]:
    """Returns the `sizes` by a folder's SETTINGS: () for a `truncate_dim` that leaves nothing out.

    Raises:
      ValueError: if `truncate_dim` is not a positive integer.
    """
    size = whole(settings, "truncate_dim", SETTINGS)
    full_size = dense[-1].out_features if dense else hidden_size
    return () if size in (None, full_size) else (size,)


def scale_of(settings: Mapping[str, Any]) -> float:
    """Returns the scale of scores in a folder's SETTINGS; 0.0 if they say nothing.

    Raises:
      ValueError: if it is not a positive number.
    """
    scale = settings.get(_SCALE, 0.0)
    if _SCALE in settings and not (type(scale) in (int, float) and 0 < scale < math.inf):
        raise ValueError(f"has a {SETTINGS} where {_SCALE} is {scale!r}; expected a number above 0")
    return float(scale)


def _modules(kinds: Sequence[str], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the content of modules.json, in a form that all releases read."""
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]


def around_dense(kinds: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Splits kinds of modules into those before the Dense layers, these, and final Normalizes.

    Without Dense layers, all Normalize modules are final ones.
    """
    n_after = next((i for i, kind in enumerate(reversed(kinds)) if kind != "Normalize"), len(kinds))
    end = len(kinds) - n_after
    start = kinds.index("Dense") if "Dense" in kinds[:end] else end
    return kinds[:start], kinds[start:end], kinds[end:]


def kinds_and_paths(modules: Any) -> list[tuple[str, str]]:
    """Returns the kind and folder of each module in modules.json.

    Raises:
      ValueError: for a module that does not belong to sentence-transformers.
    """
    try:
        layers = [(str(each["type"]), str(each["path"])) for each in modules or []]
    except (KeyError, TypeError) as error:
        raise ValueError(f"has a {MODULES} without the type and path of each module") from error
    names = [each.get("name") for each in modules or []]
    if twice := [name for name in names if name is not None and names.count(name) > 1]:
        raise ValueError(f"has a {MODULES} with two modules named {twice[0]!r}: one would be lost")
    for kind, _ in layers:
        if not kind.startswith("sentence_transformers."):
            raise ValueError(f"has a module {kind!r}, which needs code of its own: none is run")
    return [(kind.rpartition(".")[2], path) for kind, path in layers]


def join(path: str, name: str) -> str:
    """Returns the path of a module's file, relative to the model's folder."""
    return f"{path}/{name}" if path else name


def whole(values: Mapping[str, Any], key: str, name: str) -> int | None:
    """Returns the positive integer at `key`, or None if it is absent.

    Raises:
      ValueError: for any other value; `name` is that of the file.
    """
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"has a {name} where {key} is {value!r}; expected a whole number from 1")
    return value


def _token_limit(tokenizer: Mapping[str, Any]) -> int | None:
    """Returns a tokenizer's maximum tokens, where newer releases write a model's limit."""
    limit = tokenizer.get("model_max_length")
    return limit if type(limit) is int and 0 < limit < NO_LIMIT else None


def _pooling(config: Mapping[str, Any]) -> str:
    """Returns the mode of a Pooling module; older releases write one flag for each mode."""
    modes = [mode for flag, mode in _MODES.items() if config.get(flag)]
    others = {key for key, value in config.items() if value is True and key not in _MODES}
    said = config.get("pooling_mode", modes[0] if len(modes) == 1 else None)
    if said not in POOLINGS or others - {"include_prompt"}:
        raise ValueError(f"pools otherwise than by {' or '.join(POOLINGS)}")
    return str(said)


def dense_of(config: Mapping[str, Any]) -> Dense:
    """Returns the linear layer that a Dense module's config describes.

    Raises:
      ValueError: without in_features and out_features.
    """
    defaults = Dense._field_defaults
    try:
        return Dense(
            in_features=int(config["in_features"]),
            out_features=int(config["out_features"]),
            bias=bool(config.get("bias", defaults["bias"])),
            activation=str(config.get("activation_function", defaults["activation"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("has a Dense module without in_features and out_features") from error


def _dense_config(dense: Dense) -> dict[str, Any]:
    """Inverts `dense_of`."""
    return {
        "in_features": dense.in_features,
        "out_features": dense.out_features,
        "bias": dense.bias,
        "activation_function": dense.activation,
    }


def require_usual(kind: str, config: Mapping[str, Any]) -> None:
    """Raises a ValueError for a Dense or Normalize module with a setting outside _USUAL."""
    for key, usual in _USUAL.items():
        if config.get(key) not in (None, usual):
            raise ValueError(f"has a {kind} module with {key} {config[key]!r}; expected {usual!r}")


def _prompts(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, Mapping):
        raise ValueError(f"has no JSON object in {SETTINGS}: prompts")
    return tuple((str(name), str(text)) for name, text in prompts.items() if text)
