"""Opens a published model by its folder or name: what its files say, is known or assumed."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.whole import read_json, read_object
from cocondenser_jax.model_folder import modules as module_files
from cocondenser_jax.model_folder.folder import (
    ModelFolder,
    Network,
    find_weights,
    is_cross_encoder,
)
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


def open_model(
    name_or_folder: str | Path, given: Given | None = NOTHING_GIVEN, plain: Given = NOTHING_GIVEN
) -> ModelFolder:
    """Opens a model; logs each assumption once.

    With PyTorch, the representation comes from sentence-transformers' modules. Without it, the
    folder must be plain or in the form that `modules.to_files` writes.

    Args:
      name_or_folder: a folder of transformers or sentence-transformers, with one or two towers; or
        a name on the Hub. `known_models` supplies settings that the folder lacks.
      given: the user's settings, which override the folder's; None: assume and log nothing, since
        the caller knows the representation.
      plain: the settings of a folder without modules.json, if the model is unknown and they differ
        from sentence-transformers' defaults.

    Raises:
      UserError: for modules that `Representation` cannot describe, or two towers with different
        representations.
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
    """Opens the network of a cross-encoder, by folder or by name on the Hub."""
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


def _reader(folder: Path) -> Callable[[str], dict[str, Any]]:
    """Returns a cached reader of a folder's JSON objects by file name; {} for a missing file."""
    contents: dict[str, dict[str, Any]] = {}

    def read(name: str) -> dict[str, Any]:
        if name not in contents:
            contents[name] = read_object(folder / name, {})
        return contents[name]

    return read


def _places(
    folder: Path, modules: Any, read: Callable[[str], dict[str, Any]]
) -> tuple[dict[str, Network], tuple[Path, ...]]:
    """Returns a model's networks by task and the folders of its Dense layers."""
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
        said = read(join(place, module_files.TRANSFORMER)) if layers else {}
        otherwise = module_files.read_otherwise(said)
        networks[task] = Network(network, read(join(place, NETWORK)), weights, otherwise)
    return networks, tuple(folder / place for kind, place in layers if kind == "Dense")


def _towers(router: Mapping[str, Any]) -> dict[str, str]:
    """Returns the network folder of each of two towers, relative to the model's folder."""
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
    """Returns a folder's representation, and whether texts are lower-cased before tokenization."""
    if modules is None:
        return module_files.from_files(None, read), False
    require_kind(read(SETTINGS))
    if has_pytorch():
        from cocondenser_jax.model_folder import library  # slow to import

        for network in networks.values():
            library.require_loadable(network)
        published, lowers_case = library.read_modules(folder)
        return published._replace(scale=module_files.scale_of(read(SETTINGS))), lowers_case
    try:
        return module_files.from_files(modules, read), module_files.lowers_case(read)
    except ValueError as error:
        raise ValueError(
            f"{error}: without PyTorch, expected a folder that `cocondenser resolve` wrote on a"
            " machine with PyTorch"
        ) from error


def _complete(model: ModelFolder, given: Given, plain: Given) -> Representation:
    """Completes a model's published representation by known, assumed and given settings."""
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
            f"{model.path} is a cross-encoder by its config.json (it scores pairs of texts):"
            " expected a bi-encoder (--pooling and --similarity use it as one all the same)"
        )
    where = model.name if is_known else "sentence-transformers"
    log_once(
        logger,
        f"{model.path} has no {MODULES}: pooling {assumed.pooling} and similarity"
        f" {assumed.similarity} are assumed, as in {where};"
        " --pooling and --similarity override them",
    )


def _say_which_prompts(model: ModelFolder, assumed: Representation) -> None:
    """Logs the prompts taken from a known model, or the flags for those of a namesake."""
    if assumed.prompts:
        prompts = dict(assumed.prompts)
        log_once(
            logger,
            f"{model.path} names no prompts: those of {model.name} are used,"
            f" {query_prompt(prompts)!r} for queries and {passage_prompt(prompts)!r} for"
            " passages; --query_prompt and --passage_prompt override them",
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
