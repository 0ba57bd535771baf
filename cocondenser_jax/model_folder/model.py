"""A published model as one value: opened once by folder or name, and passed on."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.whole import read_json, read_object
from cocondenser_jax.model_folder import modules as module_files
from cocondenser_jax.model_folder.folder import HEADS, find_weights, sha256_of
from cocondenser_jax.model_folder.hub import find_folder
from cocondenser_jax.model_folder.known_models import find_known_model, find_namesake
from cocondenser_jax.model_folder.modules import (
    MODULES,
    NETWORK,
    SETTINGS,
    TASKS,
    join,
    kinds_and_paths,
    require_kind,
    require_order,
)
from cocondenser_jax.representation import (
    NOTHING_GIVEN,
    Given,
    Representation,
    passage_prompt,
    query_prompt,
    with_given,
)

logger = logging.getLogger(__name__)

_ROUTER = "router_config.json"  # of two towers


class Network(NamedTuple):
    """The network of a model, or of one of its two towers, and the folder of its tokenizer."""

    path: Path
    config: Mapping[str, Any]  # its config.json
    weights: tuple[Path, ...]  # the files that transformers reads; (): there are none

    def sha256(self) -> str:
        """Returns a hash of everything that it computes depends on."""
        return sha256_of(self.path, self.weights)


class ModelFolder(NamedTuple):
    """A model: what its files say, read once.

    What reads it, in JAX or in PyTorch, reads the same: `weights` are the files that transformers
    reads, the representation is that of sentence-transformers' modules, and `sha256` is of every
    file that one of them reads.
    """

    name: str  # as it was given
    path: Path
    networks: Mapping[str, Network]  # by TASKS where there are two towers, else by ""
    representation: Representation
    dense: tuple[Path, ...]  # the folders of the Dense layers, in their order
    lowers_case: bool  # whether texts are lowered before the tokenizer reads them
    is_plain: bool  # whether it has no modules.json

    def __hash__(self) -> int:
        """Hashes the place: a mapping has no hash."""
        return hash(self.path)

    @property
    def network(self) -> Network:
        """The network; a UserError where there are two."""
        if len(self.networks) > 1:
            raise UserError(f"{self.path} has two towers (a Router): expected one")
        return next(iter(self.networks.values()))

    @property
    def head(self) -> Path | None:
        """The file of the Condenser head."""
        files = (self.path / name for name in HEADS)
        return next((file for file in files if file.is_file()), None)

    def sha256(self) -> str:
        """Returns a hash of everything that the vectors depend on."""
        read = [*self.dense]
        for network in self.networks.values():
            read += [network.path, *network.weights]
        return sha256_of(self.path, read)


def open_model(
    name_or_folder: str | Path, given: Given | None = NOTHING_GIVEN, plain: Given = NOTHING_GIVEN
) -> ModelFolder:
    """Opens a model; logs, once, what is assumed of it.

    Where PyTorch is installed, its vectors are those of sentence-transformers' modules; else its
    folder must be plain, or written as `modules.to_files` writes it.

    Args:
      name_or_folder: a folder of transformers or of sentence-transformers, with one tower or two;
        or the name of a model on the hub. What is known of that name and its folder does not say
        is taken from `known_models`.
      given: what a user says in place of what the folder says; None: nothing is assumed or said,
        for its vectors are known already.
      plain: what a folder without modules.json means, where that is not what it means to
        sentence-transformers and the model is not known.

    Raises:
      UserError: for modules that a `Representation` does not describe; or for two towers that make
        different vectors.
    """
    path = find_folder(name_or_folder)
    read = _reader(path)
    modules = read_json(path / MODULES) if (path / MODULES).is_file() else None
    try:
        networks, dense = _places(path, modules, read)
        for network in networks.values():
            _require_config(network)
        published, lowers_case = _published(path, modules, networks, read)
    except ValueError as error:
        raise UserError(f"{path} {error}") from error
    except OSError as error:  # a name that is too long for a file, say
        raise UserError(f"{path} cannot be read as its {MODULES} says: {error.strerror}") from error
    opened = ModelFolder(
        name=str(name_or_folder),
        path=path,
        networks=networks,
        representation=published,
        dense=dense,
        lowers_case=lowers_case,
        is_plain=modules is None,
    )
    if given is None:
        return opened
    return opened._replace(representation=_complete(opened, given, plain))


def open_network(name_or_folder: str | Path) -> Network:
    """Opens the network of a cross-encoder, by its folder or the name of one on the hub."""
    path = find_folder(name_or_folder)
    network = Network(path, read_object(path / NETWORK, {}), tuple(find_weights(path)))
    _require_config(network)
    return network


def _require_config(network: Network) -> None:
    if network.config:
        return
    is_adapter = (network.path / "adapter_config.json").is_file()
    raise UserError(
        f"{network.path} holds an adapter alone: merge it with its model (PEFT's merge_and_unload)"
        if is_adapter
        else f"{network.path} has no config.json: expected the folder of a model"
    )


def has_pytorch() -> bool:
    """Whether sentence-transformers, and with it PyTorch, is installed."""
    return importlib.util.find_spec("sentence_transformers") is not None


def is_cross_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a network has a head that scores or classifies texts, by its config.json."""
    return "ForSequenceClassification" in str(config.get("architectures"))


def require_float_weights(network: Network) -> None:
    """Raises a UserError for codes in the place of weights: they are no numbers to train."""
    if quantization := network.config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UserError(
            f"{network.path}/config.json: quantization_config says that the weights are quantized"
            f" ({method}), which cannot be trained: expected the unquantized model"
        )


def _reader(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Returns what reads the JSON object in a file of a folder, once; {} without a file."""
    contents: dict[str, dict[str, Any]] = {}

    def read(name: str) -> dict[str, Any]:
        if name not in contents:
            contents[name] = read_object(folder / name, {})
        return contents[name]

    return read


def _places(
    folder: Path, modules: Any, read: Callable[[str], dict[str, Any]]
) -> tuple[dict[str, Network], tuple[Path, ...]]:
    """Returns the networks of a model, and the folders of its Dense layers."""
    layers = kinds_and_paths(modules)
    places = {"": layers[0][1] if layers else ""}
    if layers and layers[0][0] in ("Router", "Asym"):
        places = _towers(read(join(layers[0][1], _ROUTER)))
    elif modules is not None:
        require_order([kind for kind, _ in layers])
    networks = {}
    for task, place in places.items():
        network = folder / place
        weights = tuple(find_weights(network))
        networks[task] = Network(network, read(join(place, NETWORK)), weights)
    return networks, tuple(folder / place for kind, place in layers if kind == "Dense")


def _towers(router: Mapping[str, Any]) -> dict[str, str]:
    """Returns the folders of the networks of two towers, within the model's."""
    try:
        return {task: str(router["structure"][task][0]) for task in TASKS}
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"has no {_ROUTER} with routes named {' and '.join(TASKS)}") from error


def _published(
    folder: Path,
    modules: Any,
    networks: Mapping[str, Network],
    read: Callable[[str], dict[str, Any]],
) -> tuple[Representation, bool]:
    """Returns what a folder's vectors are, and whether texts are lowered before tokenizing."""
    if modules is None:
        return module_files.from_files(None, read), False
    require_kind(read(SETTINGS))
    if has_pytorch():
        from cocondenser_jax.model_folder import library  # slow to import

        for network in networks.values():
            library.require_loadable(network.path, network.config)
        return library.read_modules(folder)
    try:
        return module_files.from_files(modules, read), module_files.lowers_case(read)
    except ValueError as error:
        raise ValueError(
            f"{error}: without PyTorch, expected what `cocondenser resolve` writes where it is"
            " installed"
        ) from error


def _complete(model: ModelFolder, given: Given, plain: Given) -> Representation:
    """Returns a model's representation with what is known of it, assumed or given."""
    known = find_known_model(model.name) if not Path(model.name).is_dir() else None
    published = model.representation
    assumed = published._replace(scale=known.scale) if known else published
    if model.is_plain:
        assumed = with_given(assumed, plain)
        if known:
            assumed = with_given(assumed, known.plain)
        if plain == NOTHING_GIVEN and not (given.pooling and given.similarity):
            _say_what_is_assumed(model, assumed, is_known=bool(known and known.plain.pooling))
    if known and known.prompts != NOTHING_GIVEN and not published.prompts:
        assumed = with_given(assumed, known.prompts)
    if not published.prompts and None in (given.query_prompt, given.passage_prompt):
        _say_which_prompts(model, assumed)
    return with_given(assumed, given)


def _say_what_is_assumed(model: ModelFolder, assumed: Representation, *, is_known: bool) -> None:
    if is_cross_encoder(model.network.config):
        raise UserError(
            f"{model.path} scores pairs of texts, by its config.json, and makes no vectors of them:"
            " expected a bi-encoder (--pooling and --similarity make one of it all the same)"
        )
    source = model.name if is_known else "sentence-transformers"
    log_once(
        logger,
        f"{model.path} has no {MODULES}: pooling {assumed.pooling} and similarity"
        f" {assumed.similarity} are assumed, as in {source};"
        " --pooling and --similarity say otherwise",
    )


def _say_which_prompts(model: ModelFolder, assumed: Representation) -> None:
    """Names the prompts of a known model, or how to give those of one that is called so."""
    if assumed.prompts:
        prompts = dict(assumed.prompts)
        log_once(
            logger,
            f"{model.path} names no prompts: those of {model.name} are used,"
            f" {query_prompt(prompts)!r} for queries and {passage_prompt(prompts)!r} for"
            " passages; --query_prompt and --passage_prompt say otherwise",
        )
        return
    origin = str(next(iter(model.networks.values())).config.get("_name_or_path"))
    if found := find_namesake([model.path.resolve().name, origin]):
        name, given = found
        flags = {"query_prompt": given.query_prompt, "passage_prompt": given.passage_prompt}
        said = " ".join(f"--{flag}={text!r}" for flag, text in flags.items() if text)
        log_once(
            logger,
            f"{model.path} names no prompts, and none are used; {name} is published with {said}:"
            " give them if this model was trained with them",
        )
