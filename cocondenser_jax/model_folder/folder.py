"""The files of a model folder, as Hugging Face and sentence-transformers lay them out."""

import contextlib
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cocondenser_jax.errors import UserError, log_once
from cocondenser_jax.files.whole import new_folder, read_json, read_object, write_json
from cocondenser_jax.model_folder import modules as module_files
from cocondenser_jax.model_folder.known_models import KnownModel, find_known_model
from cocondenser_jax.model_folder.modules import (
    MODULES,
    SETTINGS,
    TRANSFORMERS,
    dense_paths,
    from_files,
    json_files,
    network_path,
    resolved_files,
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

ROUTER = "router_config.json"  # of two towers
# The weights by format, in one file or in shards; transformers prefers the first.
WEIGHTS = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
)
# The Condenser head: as we write it, or as the published research checkpoints have it.
OWN_HEAD = "condenser_head.safetensors"
HEADS = (OWN_HEAD, "model.pt")
# Of which a tokenizer is made; the merges of a BPE are beside its vocab.json.
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")
# What vectors depend on: weights, those of adapters too, settings and tokenizers.
_OF_VECTORS = ("*.safetensors", "pytorch_model*.bin", "*.json", "merges.txt", *TOKENIZERS)


def find_weights(folder: Path) -> list[Path]:
    """Returns the files of a folder's weights, in one format; none where it has no weights."""
    for pattern in itertools.chain.from_iterable(WEIGHTS):
        if paths := sorted(folder.glob(pattern)):
            return paths
    return []


def find_dense(folder: Path) -> list[Path]:
    """Returns the folders of the dense layers after the pooling, in their order."""
    return [folder / path for path in dense_paths(read_json(folder / MODULES))]


def is_cross_encoder(folder: Path) -> bool:
    """Whether the network of a folder has a head that scores or classifies texts."""
    architectures = read_object(folder / "config.json", {}).get("architectures")
    return "ForSequenceClassification" in str(architectures)


def network_folder(folder: Path) -> Path:
    """Returns the folder of a model's network and tokenizer: releases before 2.0 had its own."""
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else None
    return folder / network_path(modules)


def tower_folder(folder: Path, name: str) -> Path:
    """Returns the folder of the weights of a tower: "query", "document", or "" for the only one."""
    return folder / f"{name}_0_Transformer" if name else network_folder(folder)


def network_folders(folder: Path) -> list[Path]:
    """Returns the folder of each tower's weights: that of queries first, where there are two."""
    names = ("query", "document") if (folder / ROUTER).is_file() else ("",)
    return [tower_folder(folder, name) for name in names]


def lowers_case(folder: Path) -> bool:
    """Returns whether sentence-transformers lowers the case of a text before the tokenizer does."""
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else None
    return module_files.lowers_case(modules, _read_files(folder, modules))


def read_pair_settings(folder: Path) -> tuple[int | None, bool]:
    """Returns what a cross-encoder's folder says of its inputs, in sentence-transformers' files.

    Returns:
      The tokens that are kept of a pair, None where nothing is said; and whether texts are lowered.

    Raises:
      UserError: for a prompt that is put before every pair, which is not supported.
    """
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else None
    try:
        files = _read_files(folder, modules)
        if prompt := module_files.default_prompt(modules, files):
            raise ValueError(f"puts {prompt!r} before every pair, which is not supported")
        longest = module_files.longest_input(modules, files)
        return longest, module_files.lowers_case(modules, files)
    except ValueError as error:
        raise UserError(f"{folder} {error}") from error


def files_of_vectors(folder: Path) -> list[Path]:
    """Returns all files that a folder's vectors depend on, those of its modules too."""
    return sorted({path for pattern in _OF_VECTORS for path in folder.rglob(pattern)})


def require_outside(folder: Path, out: Path) -> None:
    """Raises a UserError for an output within a model's folder, where it would count as its files.

    Args:
      folder: of the model; the name of one on the hub has none.
      out: the folder to write.
    """
    if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{out} lies in the folder of the model, {folder}: choose another place")


def read_representation(
    folder: Path, given: Given = NOTHING_GIVEN, plain: Given = NOTHING_GIVEN
) -> Representation:
    """Returns what the vectors of a model folder are; logs, once, what is assumed.

    Where the folder names no prompts, they are those of `known_models`, if the model is known.

    Args:
      folder: of transformers or of sentence-transformers, with one tower or two.
      given: what a user says in place of what the folder says.
      plain: what a folder without modules.json means, where that is not what it means to
        sentence-transformers (see `module_files.from_files`) and the model is not known.

    Raises:
      UserError: see `module_files.from_files`; or for two towers that make different vectors.
    """
    published = _read_published(folder)
    name, known = find_known_model(_names(folder, published)) or ("", KnownModel(""))
    assumed = published._replace(scale=known.scale)
    if not (folder / MODULES).is_file():
        assumed = with_given(with_given(assumed, plain), known.plain)
        if plain == NOTHING_GIVEN and not (given.pooling and given.similarity):
            if is_cross_encoder(folder):
                raise UserError(
                    f"{folder} scores pairs of texts, by its config.json, and makes no vectors of"
                    " them: expected a bi-encoder (--pooling and --similarity make one of it all"
                    " the same)"
                )
            log_once(
                logger,
                f"{folder} has no {MODULES}: pooling {assumed.pooling} and similarity"
                f" {assumed.similarity} are assumed, as in {name or 'sentence-transformers'};"
                " --pooling and --similarity say otherwise",
            )
    if known.prompts != NOTHING_GIVEN and not published.prompts:
        assumed = with_given(assumed, known.prompts)
        if given.query_prompt is None or given.passage_prompt is None:
            prompts = dict(assumed.prompts)
            log_once(
                logger,
                f"{folder} names no prompts: those of {name} are used,"
                f" {query_prompt(prompts)!r} for queries and {passage_prompt(prompts)!r} for"
                " passages; --query_prompt and --passage_prompt say otherwise",
            )
    return with_given(assumed, given)


def write_resolved(
    start: Path, representation: Representation, hidden_size: int, out: Path
) -> None:
    """Copies what a folder's vectors and a training depend on, and writes down what these are.

    So nothing is left to what is known or was given: `read_representation` finds it in the copy.
    A copy, for sentence-transformers (6.2.0) saves a model without what its folder says of capitals
    and of a prompt named "passage".

    Args:
      start: the folder, of one tower.
      representation: of `read_representation`.
      hidden_size: of the network.
      out: the folder to make.
    """
    with new_folder(out) as folder:
        _fill(start, representation, hidden_size, folder, shutil.copyfile)


@contextlib.contextmanager
def linked_folder(start: Path, representation: Representation) -> Iterator[Path]:
    """Yields what `write_resolved` would write, with links in place of copies, for a while.

    It is for what reads no hidden size. A UserError that names it names `start` instead.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        folder.mkdir()
        try:
            _fill(start.resolve(), representation, 0, folder, os.symlink)
            yield folder
        except UserError as error:
            raise UserError(str(error).replace(str(folder), str(start))) from error


def _fill(
    start: Path,
    representation: Representation,
    hidden_size: int,
    folder: Path,
    put: Callable[[Path, Path], object],
) -> None:
    routes = _routes(start)
    if len(routes) > 1:
        raise UserError(f"{start} has two towers (a Router): expected one")
    files = _read_files(start, routes[0])
    resolved = resolved_files(routes[0], files, representation, hidden_size)
    heads = [start / name for name in HEADS if (start / name).is_file()]
    network = network_folder(start)
    for path in {*files_of_vectors(start), *heads}:
        of_network = path.is_relative_to(network)
        if not of_network and (network / path.relative_to(start)).exists():
            continue  # such as the config.json of a release before 2, which holds its version alone
        if routes[0] is None and path.name in TRANSFORMERS:
            continue  # which would be read in the copy, for that has a modules.json
        copy = folder / path.relative_to(network if of_network else start)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.relative_to(start).as_posix() not in resolved:
            put(path, copy)
    for name, content in resolved.items():
        write_json(folder / name, content)


def _read_published(folder: Path) -> Representation:
    """Returns what a folder says of its vectors."""
    try:
        passages, *others = [_read_modules(folder, modules) for modules in _routes(folder)]
        if any(each._replace(max_length=passages.max_length) != passages for each in others):
            raise ValueError("makes the vectors of queries otherwise than those of passages")
    except ValueError as error:
        raise UserError(f"{folder} {error}") from error
    return passages


def _names(folder: Path, published: Representation) -> list[str]:
    """Returns the names that the model in a folder may have.

    What it was trained from is its name where its settings do not name prompts at all, be it none.
    """
    of_hub = [part for part in folder.resolve().parts if part.startswith("models--")]
    names = [folder.resolve().name, *(part.rpartition("--")[2] for part in of_hub)]
    settings = read_object(folder / SETTINGS, {})
    if published.prompts or "prompts" in settings:
        return names
    origin = read_object(folder / "config.json", {}).get("_name_or_path")
    return [*names, str(origin).rstrip("/").rpartition("/")[2]]


def _routes(folder: Path) -> list[Any]:
    """Returns the modules of passages, and those of queries too where there are two towers."""
    if not (folder / MODULES).is_file():
        return [None]
    modules = read_json(folder / MODULES)
    if not (folder / ROUTER).is_file():
        return [modules]
    router = read_json(folder / ROUTER)
    return [_unrouted(modules, router, route) for route in ("document", "query")]


def _unrouted(modules: Any, router: Any, route: str) -> list[dict[str, str]]:
    """Returns the modules of a route, and those that follow the Router."""
    try:
        names = router["structure"][route]
        return [*({"path": name, "type": router["types"][name]} for name in names), *modules[1:]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"has a {ROUTER} without a route named {route}") from error


def _read_modules(folder: Path, modules: Any) -> Representation:
    return from_files(modules, _read_files(folder, modules))


def _read_files(folder: Path, modules: Any) -> dict[str, Any]:
    names = [name for name in json_files(modules) if (folder / name).is_file()]
    return {name: read_json(folder / name) for name in names}
