"""What a model's vectors are, from and to the files of sentence-transformers.

The functions take and return the parsed contents of the files, and neither read nor write them.
"""

from collections.abc import Mapping, Sequence
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
_KIND = "SentenceTransformer"  # of models; releases before 5 wrote none
_TRANSFORMER = "sentence_bert_config.json"
# As older releases named it, after the class of the network. The library takes the first that says
# anything, and none of them where there is no modules.json.
TRANSFORMERS = (
    _TRANSFORMER,
    *(
        f"sentence_{kind}_config.json"
        for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_TOKENIZER = "tokenizer_config.json"
_NETWORK = "config.json"
_NO_LIMIT = 10**9  # tokens: transformers writes 10**30 for a tokenizer without a limit
# How the tokens of the last layer become a vector, by the names that all releases of
# sentence-transformers read, in the order in which it joins several.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# What a Dense or Normalize module of sentence-transformers (6.2.0) may be told besides what `Dense`
# holds: any other value means another computation.
_USUAL = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_CONFIGURED = ("Pooling", "Dense", "Normalize")  # what has a config.json of its own


def json_files(modules: Any) -> list[str]:
    """Returns the names of the files that `from_files` reads beside modules.json.

    Args:
      modules: the content of modules.json; None for a folder without it.
    """
    if modules is None:
        return [_NETWORK, _TOKENIZER]
    layers = _kinds_and_paths(modules)
    networks = [path for kind, path in layers if kind == "Transformer"]
    settings = [_join(path, name) for path in networks for name in (*TRANSFORMERS, _TOKENIZER)]
    others = [_join(path, "config.json") for kind, path in layers if kind in _CONFIGURED]
    return [SETTINGS, *settings, *others]


def dense_paths(modules: Any) -> list[str]:
    """Returns the folders, within a model's, of its Dense layers, in their order.

    Args:
      modules: the content of modules.json; None for a folder without it.
    """
    return [path for kind, path in _kinds_and_paths(modules) if kind == "Dense"]


def network_path(modules: Any) -> str:
    """Returns the folder, within a model's, of its network; "" where modules.json is silent."""
    paths = [path for kind, path in _kinds_and_paths(modules) if kind == "Transformer"]
    return paths[0] if paths else ""


def from_files(modules: Any, files: Mapping[str, Any]) -> Representation:
    """Returns what a model folder's vectors are.

    Without modules.json, they are what sentence-transformers makes of such a folder: the mean over
    all tokens, or the last token of a network that generates text; compared by their cosine. It
    reads no other settings there.

    Args:
      modules: the content of modules.json; None for a folder without it.
      files: the contents, by name, of those of `json_files` that the folder has.

    Raises:
      ValueError: for modules that the record cannot describe, or files that are not as
        sentence-transformers writes them. The message begins with a verb, for a caller to
        put the name of the folder before it.
    """
    settings = _mapping(files.get(SETTINGS, {}) if modules is not None else {}, SETTINGS)
    kind = settings.get("model_type", _KIND)
    if kind != _KIND:  # the library would make a model of the network alone
        raise ValueError(f"is a {kind!r} by its {SETTINGS}; expected {_KIND}")
    prompts = _prompts(settings)
    default = str(settings.get("default_prompt_name"))
    size = _whole(settings, "truncate_dim", SETTINGS)
    published = Representation(
        similarity=similarity_of(settings),
        sizes=(size,) if size else (),
        prompts=prompts,
        default_prompt=default if default in dict(prompts) else None,
        max_length=_token_limit(files.get(_TOKENIZER, {})),
    )
    if modules is None:
        architectures = _mapping(files.get(_NETWORK, {}), _NETWORK).get("architectures")
        generates = "ForCausalLM" in str(architectures)
        return published._replace(pooling="lasttoken" if generates else "mean")
    layers = _kinds_and_paths(modules)
    kinds = [kind for kind, _ in layers]
    before, dense, after = (len(part) for part in _around_dense(kinds[2:]))
    expected = ["Normalize"] * before + ["Dense"] * dense + ["Normalize"] * after
    if kinds != ["Transformer", "Pooling", *expected]:
        raise ValueError(
            f"makes its vectors by {', '.join(kinds) or 'no modules'};"
            " expected Transformer, Pooling, perhaps Dense and perhaps Normalize"
        )
    configs = {
        kind: [_join(path, "config.json") for of, path in layers if of == kind]
        for kind in _CONFIGURED
    }
    names = [*configs["Pooling"], *configs["Dense"]]
    pooling, *projections = (_mapping(files.get(name), name) for name in names)
    for name in configs["Normalize"]:  # releases before 6 wrote no file there
        _require_usual("Normalize", _mapping(files.get(name, {}), name))
    name, network = _transformer(files, layers[0][1])
    limit = _token_limit(files.get(_join(layers[0][1], _TOKENIZER), {}))
    return published._replace(
        pooling=_pooling(pooling),
        scaled_before_dense=before > 0,
        dense=tuple(_dense(config) for config in projections),
        normalized=after > 0,
        include_prompt=bool(pooling.get("include_prompt", True)),
        max_length=_whole(network, "max_seq_length", name) or limit,
        query_length=_whole(network, "query_length", name),
        passage_length=_whole(network, "document_length", name),
    )


def lowers_case(modules: Any, files: Mapping[str, Any]) -> bool:
    """Returns whether sentence-transformers lowers the case of a text before the tokenizer does.

    Args and errors are those of `from_files`.
    """
    return bool(_transformer(files, network_path(modules))[1].get("do_lower_case"))


def longest_input(modules: Any, files: Mapping[str, Any]) -> int | None:
    """Returns how many tokens a folder's settings of its network keep; None: they do not say.

    Args and errors are those of `from_files`.
    """
    name, network = _transformer(files, network_path(modules))
    return _whole(network, "max_seq_length", name)


def default_prompt(modules: Any, files: Mapping[str, Any]) -> str:
    """Returns what is put before inputs for which no prompt is named; "" for nothing.

    Args and errors are those of `from_files`.
    """
    settings = _mapping(files.get(SETTINGS, {}) if modules is not None else {}, SETTINGS)
    return dict(_prompts(settings)).get(str(settings.get("default_prompt_name")), "")


def similarity_of(settings: Mapping[str, Any]) -> Similarity:
    """Returns how a folder compares vectors, by its settings.

    Silence means cosine, as in sentence-transformers: releases before 3.0 did not write it down.

    Raises:
      ValueError: for a measure that inner products do not rank by.
    """
    match settings.get("similarity_fn_name"):
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
    model_args: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the contents of a model folder's files by name, as every release reads them.

    Args:
      representation: with one of POOLINGS.
      hidden_size: of the network.
      longest: tokens that the network can read.
      model_args: what transformers is told when it loads the network.
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * len(representation.dense)]
    if representation.is_cosine:
        kinds.append("Normalize")
    paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    pooling = {
        flag: representation.pooling == mode for flag, mode in _MODES.items() if mode in POOLINGS
    }
    if not representation.include_prompt:  # releases before 2.4 do not know it
        pooling["include_prompt"] = False
    lengths = {  # only releases from 6.0 know them
        "query_length": representation.query_length,
        "document_length": representation.passage_length,
    }
    settings: dict[str, Any] = {
        "model_type": _KIND,
        "prompts": dict(representation.prompts),
        "default_prompt_name": representation.default_prompt,
        "similarity_fn_name": representation.similarity,
    }
    if representation.is_cut(hidden_size):
        settings["truncate_dim"] = representation.sizes[0]
    return {
        MODULES: _modules(kinds, paths),
        "1_Pooling/config.json": {"word_embedding_dimension": hidden_size, **pooling},
        **{
            f"{path}/config.json": {
                "in_features": dense.in_features,
                "out_features": dense.out_features,
                "bias": dense.bias,
                "activation_function": dense.activation,
            }
            for path, dense in zip(paths[2:], representation.dense, strict=False)
        },
        _TRANSFORMER: {
            "max_seq_length": min(representation.max_length or longest, longest),
            "do_lower_case": False,
            "model_args": dict(model_args),
            **{name: length for name, length in lengths.items() if length},
        },
        SETTINGS: settings,
    }


def resolved_files(
    modules: Any, files: Mapping[str, Any], representation: Representation, hidden_size: int
) -> dict[str, Any]:
    """Returns the files of a folder that say what its vectors are, with all of it written down.

    Args:
      modules: the content of modules.json; None for a folder without it.
      files: the contents, by name, of those of `json_files` that the folder has.
      representation: what the vectors are to be: a module is left out, but none is added, but for
        those of a folder without modules.json. The files of the network are in the folder itself.
      hidden_size: of the network.
    """
    if modules is None:
        modules = _modules(["Transformer", "Pooling"], ["", "1_Pooling"])
    layers = list(zip(modules, _kinds_and_paths(modules), strict=True))
    if not representation.normalized:
        *parts, _ = _around_dense([kind for _, (kind, _) in layers])
        layers = layers[: sum(map(len, parts))]
    kept = [
        {**module, "path": ""} if kind == "Transformer" else module for module, (kind, _) in layers
    ]
    (pooling_file,) = (
        _join(path, "config.json") for _, (kind, path) in layers if kind == "Pooling"
    )
    pooling = dict(files.get(pooling_file, {"word_embedding_dimension": hidden_size}))
    modes = representation.pooling.split("+")
    pooling |= {
        flag: mode in modes for flag, mode in _MODES.items() if flag in pooling or mode in modes
    }
    pooling.pop("pooling_mode", None)
    settings = {
        "model_type": _KIND,
        **files.get(SETTINGS, {}),
        "prompts": library_prompts(dict(representation.prompts)),
        "default_prompt_name": representation.default_prompt,
        "similarity_fn_name": representation.similarity,
        "truncate_dim": representation.sizes[0] if representation.sizes else None,
    }
    return {MODULES: kept, pooling_file: pooling, SETTINGS: settings}


def _modules(kinds: Sequence[str], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the content of modules.json, as every release reads it."""
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]


def _around_dense(kinds: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Splits the kinds of modules into those before Dense layers, these, and what scales after.

    Without a Dense layer, all that scales comes after.
    """
    n_after = next((i for i, kind in enumerate(reversed(kinds)) if kind != "Normalize"), len(kinds))
    end = len(kinds) - n_after
    start = kinds.index("Dense") if "Dense" in kinds[:end] else end
    return kinds[:start], kinds[start:end], kinds[end:]


def _kinds_and_paths(modules: Any) -> list[tuple[str, str]]:
    try:
        layers = [(str(each["type"]), str(each["path"])) for each in modules or []]
    except (KeyError, TypeError) as error:
        raise ValueError(f"has a {MODULES} without the type and path of each module") from error
    for kind, _ in layers:
        if not kind.startswith("sentence_transformers."):
            raise ValueError(f"has a module {kind!r}, which needs code of its own: none is run")
    return [(kind.rpartition(".")[2], path) for kind, path in layers]


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"has no JSON object in {name}")
    return value


def _whole(values: Mapping[str, Any], key: str, name: str) -> int | None:
    value = values.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"has a {name} where {key} is {value!r}; expected a whole number from 1")
    return value


def _transformer(files: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, Any]]:
    """Returns the name and the content of a network's file of TRANSFORMERS."""
    names = [_join(path, name) for name in TRANSFORMERS]
    name = next((name for name in names if files.get(name)), names[0])
    return name, _mapping(files.get(name, {}), name)


def _token_limit(tokenizer: Any) -> int | None:
    """Returns how many tokens a tokenizer keeps: all that newer releases write of a model's."""
    limit = _mapping(tokenizer, _TOKENIZER).get("model_max_length")
    return limit if type(limit) is int and 0 < limit < _NO_LIMIT else None


def _pooling(config: Mapping[str, Any]) -> str:
    """Returns the mode of a Pooling module, which older releases give as a flag for each mode.

    Several modes are joined by "+"; where all flags are off, sentence-transformers takes the mean.
    """
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _MODES.items() if config.get(flag)] or ["mean"]
    names = [modes] if isinstance(modes, str) else modes
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"pools by {modes!r}; expected the name of a mode")
    return "+".join(names)


def _dense(config: Mapping[str, Any]) -> Dense:
    defaults = Dense._field_defaults
    _require_usual("Dense", config)
    try:
        return Dense(
            in_features=int(config["in_features"]),
            out_features=int(config["out_features"]),
            bias=bool(config.get("bias", defaults["bias"])),
            activation=str(config.get("activation_function", defaults["activation"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("has a Dense module without in_features and out_features") from error


def _require_usual(kind: str, config: Mapping[str, Any]) -> None:
    for key, usual in _USUAL.items():
        if config.get(key) not in (None, usual):
            raise ValueError(f"has a {kind} module with {key} {config[key]!r}; expected {usual!r}")


def _prompts(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    prompts = _mapping(settings.get("prompts") or {}, f"{SETTINGS}: prompts")
    return tuple((str(name), str(text)) for name, text in prompts.items() if text)
