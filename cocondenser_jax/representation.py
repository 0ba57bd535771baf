"""What a model's vectors are: plain data, from and to the files of a model folder.

The files are those of sentence-transformers. The functions take and return their parsed contents,
and neither read nor write them.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

Similarity = Literal["dot", "cosine"]
MODULES = "modules.json"  # a folder without it is a plain Hugging Face folder
SETTINGS = "config_sentence_transformers.json"
_TRANSFORMER = "sentence_bert_config.json"
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
Pooling = Literal["cls", "mean"]  # what the networks here have
POOLINGS = {mode: flag for flag, mode in _MODES.items() if mode in get_args(Pooling)}
QUERY_PROMPT = "query"  # the name of what is put before queries
# What may follow a linear layer, by the names of torch.nn, of which published folders name the
# first three. All networks here have them.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")
PASSAGE_PROMPTS = ("document", "passage", "corpus")  # the names of what is put before passages
# What a Dense module of sentence-transformers (6.2.0) may be told besides what `Dense` holds: any
# other value means another computation.
_USUAL_OF_DENSE = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
COSINE_SCALE = 20.0  # sentence-transformers' default


class Dense(NamedTuple):
    """A linear layer after the pooling."""

    in_features: int
    out_features: int
    bias: bool = True
    activation: str = "torch.nn.modules.activation.Tanh"  # as in the folder

    @property
    def activation_name(self) -> str:
        """The activation, by its name in torch.nn; a class of another package by its full name."""
        package, _, name = self.activation.rpartition(".")
        return name if f"{package}.".startswith("torch.nn.") else self.activation


class Representation(NamedTuple):
    """How texts become vectors, and how vectors are compared."""

    pooling: str = "cls"  # of POOLINGS: the last layer at [CLS], or its mean over all tokens
    dense: tuple[Dense, ...] = ()
    normalized: bool = False  # whether a module scales vectors to length 1
    similarity: Similarity = "dot"
    scale: float = 0.0  # of scores in a contrastive loss; 0: see `score_scale`
    # How many numbers of a vector are used, the largest first; (): all. The first is what a vector
    # has, and a folder's `truncate_dim`, which is written where it leaves numbers out. In training,
    # vectors that are cut further count as much (Kusupati et al., arXiv 2205.13147); no folder
    # names those.
    sizes: tuple[int, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()  # kind of text, and what is put before such texts
    # The name of the prompt of texts that are neither queries nor passages; None: they have none.
    default_prompt: str | None = None
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    max_length: int | None = None  # tokens that are read of a text; None: all that the network can
    query_length: int | None = None  # of a query, and of a passage; None: as of other texts
    passage_length: int | None = None

    @property
    def is_cosine(self) -> bool:
        """Whether scores are cosines: inner products, as all are here, of vectors of length 1."""
        return self.normalized or self.similarity == "cosine"

    def full_size(self, hidden_size: int) -> int:
        """Returns the numbers of a vector before it is cut, of a network of a hidden size."""
        return self.dense[-1].out_features if self.dense else hidden_size

    def vector_size(self, hidden_size: int) -> int:
        """Returns the numbers of a vector, of a network of a hidden size."""
        return self.sizes[0] if self.sizes else self.full_size(hidden_size)

    def is_cut(self, hidden_size: int) -> bool:
        """Whether a vector leaves numbers out that the network makes."""
        return self.vector_size(hidden_size) < self.full_size(hidden_size)

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by in a contrastive loss: 1 / temperature."""
        return self.scale or (COSINE_SCALE if self.is_cosine else 1.0)


class Given(NamedTuple):
    """What a user says of a model's vectors in place of what its folder says; None: as it says."""

    pooling: Pooling | None = None
    similarity: Similarity | None = None
    query_prompt: str | None = None  # "": none
    passage_prompt: str | None = None  # "": none
    dimensions: int | None = None  # that are kept of a vector


NOTHING_GIVEN = Given()
# What a plain folder means where a model is trained, as in the papers (arXiv 2104.08253).
AS_IN_PAPERS = Given(pooling="cls", similarity="dot")


def is_falling(sizes: Sequence[int]) -> bool:
    """Whether sizes of vectors are in their order: each smaller than the one before it."""
    return all(size > smaller for size, smaller in pairwise(sizes))


_COSINE = Representation(normalized=True, similarity="cosine")
# As settings and the command line name them.
SPELLINGS = {
    "cls": Representation(),
    "mean": Representation("mean"),
    "cls-cosine": _COSINE,
    "mean-cosine": _COSINE._replace(pooling="mean"),
}


def json_files(modules: Any) -> list[str]:
    """Returns the names of the files that `from_files` reads beside modules.json.

    Args:
      modules: the content of modules.json; None for a folder without it.
    """
    if modules is None:
        return [SETTINGS, _NETWORK, _TOKENIZER]
    layers = _kinds_and_paths(modules)
    networks = [path for kind, path in layers if kind == "Transformer"]
    settings = [_join(path, name) for path in networks for name in (_TRANSFORMER, _TOKENIZER)]
    sizes = [_join(path, "config.json") for kind, path in layers if kind in ("Pooling", "Dense")]
    return [SETTINGS, *settings, *sizes]


def dense_paths(modules: Any) -> list[str]:
    """Returns the folders, within a model's, of its Dense layers, in their order.

    Args:
      modules: the content of modules.json; None for a folder without it.
    """
    return [path for kind, path in _kinds_and_paths(modules) if kind == "Dense"]


def from_files(modules: Any, files: Mapping[str, Any]) -> Representation:
    """Returns what a model folder's vectors are.

    Without modules.json, they are what sentence-transformers makes of such a folder: the mean over
    all tokens, or the last token of a network that generates text; compared by their cosine.

    Args:
      modules: the content of modules.json; None for a folder without it.
      files: the contents, by name, of those of `json_files` that the folder has.

    Raises:
      ValueError: for modules that the record cannot describe, or files that are not as
        sentence-transformers writes them. The message begins with a verb, for a caller to
        put the name of the folder before it.
    """
    settings = _mapping(files.get(SETTINGS, {}), SETTINGS)
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
    dense = ["Dense"] * kinds.count("Dense")
    normalize = ["Normalize"] * kinds.count("Normalize")
    if kinds != ["Transformer", "Pooling", *dense, *normalize]:
        raise ValueError(
            f"makes its vectors by {', '.join(kinds) or 'no modules'};"
            " expected Transformer, Pooling, perhaps Dense and perhaps Normalize"
        )
    names = [_join(path, "config.json") for _, path in layers[1 : 2 + len(dense)]]
    pooling, *projections = (_mapping(files.get(name), name) for name in names)
    name = _join(layers[0][1], _TRANSFORMER)
    network = _mapping(files.get(name, {}), name)
    limit = _token_limit(files.get(_join(layers[0][1], _TOKENIZER), {}))
    return published._replace(
        pooling=_pooling(pooling),
        dense=tuple(_dense(config) for config in projections),
        normalized=bool(normalize),
        include_prompt=bool(pooling.get("include_prompt", True)),
        max_length=_whole(network, "max_seq_length", name) or limit,
        query_length=_whole(network, "query_length", name),
        passage_length=_whole(network, "document_length", name),
    )


def with_given(published: Representation, given: Given) -> Representation:
    """Returns a representation with what a user says in place of what its folder says.

    Another pooling keeps what follows it. Inner products are those of vectors as they are, so
    a module that scales them to length 1 is left out where "dot" is given.
    """
    changed = published
    if given.pooling is not None:
        changed = changed._replace(pooling=given.pooling)
    if given.similarity is not None:
        normalized = published.normalized and given.similarity == "cosine"
        changed = changed._replace(similarity=given.similarity, normalized=normalized)
    if given.dimensions is not None:
        changed = changed._replace(sizes=(given.dimensions,))
    prompts = dict(published.prompts)
    if given.query_prompt is not None:
        prompts[QUERY_PROMPT] = given.query_prompt
    if given.passage_prompt is not None:
        prompts |= dict.fromkeys(PASSAGE_PROMPTS, "")
        prompts[PASSAGE_PROMPTS[0]] = given.passage_prompt
    return changed._replace(prompts=tuple((name, text) for name, text in prompts.items() if text))


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


def query_prompt(prompts: Mapping[str, str | None]) -> str:
    """Returns what is put before queries."""
    return prompts.get(QUERY_PROMPT) or ""


def passage_prompt(prompts: Mapping[str, str | None]) -> str:
    """Returns what is put before passages, by the names that sentence-transformers looks for."""
    return next((text for name in PASSAGE_PROMPTS if (text := prompts.get(name))), "")


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
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    pooling = {flag: representation.pooling == name for name, flag in POOLINGS.items()}
    if not representation.include_prompt:  # releases before 2.4 do not know it
        pooling["include_prompt"] = False
    lengths = {  # only releases from 6.0 know them
        "query_length": representation.query_length,
        "document_length": representation.passage_length,
    }
    settings: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "prompts": dict(representation.prompts),
        "default_prompt_name": representation.default_prompt,
        "similarity_fn_name": representation.similarity,
    }
    if representation.is_cut(hidden_size):
        settings["truncate_dim"] = representation.sizes[0]
    return {
        MODULES: modules,
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


def to_json(representation: Representation) -> dict[str, Any]:
    """Returns the fields as plain JSON values."""
    return {
        **representation._asdict(),
        "dense": [dense._asdict() for dense in representation.dense],
        "sizes": list(representation.sizes),
        "prompts": dict(representation.prompts),
    }


def from_json(values: Mapping[str, Any]) -> Representation:
    """Returns what `to_json` was made of; a ValueError for anything else."""
    try:
        made = Representation(
            **{
                **values,
                "dense": tuple(Dense(**dense) for dense in values["dense"]),
                "sizes": tuple(values["sizes"]),
                "prompts": tuple(values["prompts"].items()),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{values!r} is no representation") from error
    if not (
        isinstance(made.pooling, str)
        and isinstance(made.normalized, bool)
        and made.similarity in get_args(Similarity)
        and isinstance(made.scale, float)
        and all(type(size) is int and size > 0 for size in made.sizes)
        and all(isinstance(text, str) for text in dict(made.prompts).values())
    ):
        raise ValueError(f"{values!r} is no representation")
    return made


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
    for key, usual in _USUAL_OF_DENSE.items():
        if config.get(key) not in (None, usual):
            raise ValueError(f"has a Dense module with {key} {config[key]!r}; expected {usual!r}")
    try:
        return Dense(
            in_features=int(config["in_features"]),
            out_features=int(config["out_features"]),
            bias=bool(config.get("bias", defaults["bias"])),
            activation=str(config.get("activation_function", defaults["activation"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("has a Dense module without in_features and out_features") from error


def _prompts(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    prompts = _mapping(settings.get("prompts") or {}, f"{SETTINGS}: prompts")
    return tuple((str(name), str(text)) for name, text in prompts.items() if text)
