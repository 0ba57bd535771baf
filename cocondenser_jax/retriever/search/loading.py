"""What stands between a model folder and the libraries that load it."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cocondenser_jax.backbones import MAX_LAYERS, find_backbone
from cocondenser_jax.errors import UserError, first_three, whole_message
from cocondenser_jax.files.whole import read_object
from cocondenser_jax.model_folder.folder import TOKENIZERS

_LAYERS = "num_hidden_layers"  # transformers' name for all families, beside a family's own
# Without it, the libraries would ask on the terminal whether to run the code of a folder.
NO_CODE = {"trust_remote_code": False}
NO_OTHER_CODE: dict[str, Any] = {"config_kwargs": NO_CODE, "processor_kwargs": NO_CODE}


def require_loadable(folder: Path) -> None:
    """Raises a UserError for a network that the libraries would refuse, or load as another.

    Args:
      folder: of the network and its tokenizer.
    """
    config = read_object(folder / "config.json", {})
    model_type = config.get("model_type")
    if config.get("auto_map") and model_type not in CONFIG_MAPPING:
        raise UserError(
            f"{folder} needs code of its own (auto_map in its config.json), which is never run"
        )
    if not config:
        is_adapter = (folder / "adapter_config.json").is_file()
        raise UserError(
            f"{folder} holds an adapter alone: merge it with its model (PEFT's merge_and_unload)"
            if is_adapter
            else f"{folder} has no config.json: expected the folder of a model"
        )
    _require_layers(folder, config)
    # transformers (5.23) computes absolute ones whatever is said.
    positions = config.get("position_embedding_type") or "absolute"
    if find_backbone(model_type) and positions != "absolute":
        raise UserError(
            f"{folder}/config.json: position_embedding_type is {positions!r}; only 'absolute' is"
            " supported"
        )
    # transformers (5.23) makes one of special tokens alone.
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZERS):
        raise UserError(
            f"{folder} has no tokenizer: expected tokenizer.json, vocab.txt or the like"
        )


def _require_layers(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises a UserError for more layers than any network has: transformers makes them first."""
    family = config.get("model_type")
    is_known = isinstance(family, str) and family in CONFIG_MAPPING
    synonyms = CONFIG_MAPPING[str(family)].attribute_map if is_known else {}
    for name in (_LAYERS, synonyms.get(_LAYERS, _LAYERS)):
        n_layers = config.get(name)
        if isinstance(n_layers, int) and n_layers > MAX_LAYERS:
            raise UserError(
                f"{folder}/config.json: {name} is {n_layers:,}; expected at most {MAX_LAYERS:,}"
            )


@contextlib.contextmanager
def loading(folder: Path, kind: str, drawn: Collection[str] = ()) -> Iterator[None]:
    """Silences the libraries, and turns what they raise into one line.

    Parameters left at random are an error too, unless their names hold one of the texts in `drawn`,
    and so are those of another shape than config.json's.
    """
    missing: list[str] = []
    misshapen: list[str] = []
    models: Any = transformers.PreTrainedModel
    load = models.__dict__["from_pretrained"]

    def load_and_note(cls: Any, *args: Any, **kwargs: Any) -> Any:
        # What it raises otherwise refers to a report.
        told = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = load.__func__(cls, *args, **{**kwargs, **told})
        for name, found, expected in info["mismatched_keys"]:
            misshapen.append(f"{name} is {tuple(found)}, expected {tuple(expected)}")
        missing.extend(
            name for name in info["missing_keys"] if not any(text in name for text in drawn)
        )
        return model

    # Progress bars for an instant's work, and a report of unused heads, would hide what matters.
    transformers.utils.logging.disable_progress_bar()
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    # sentence-transformers (6.2.0) does not pass on what transformers reports about loading.
    models.from_pretrained = classmethod(load_and_note)
    try:
        yield
    except Exception as error:  # the libraries raise anything for a broken folder
        raise UserError(f"{folder} cannot be loaded as a {kind}: {whole_message(error)}") from error
    finally:
        models.from_pretrained = load
        transformers.utils.logging.set_verbosity(verbosity)
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


def model_kwargs(folder: Path) -> dict[str, Any]:
    """Returns what transformers is told of a network that is loaded for its vectors."""
    backbone = find_backbone(read_object(folder / "config.json", {}).get("model_type"))
    return {"add_pooling_layer": False} if backbone and backbone.pooler else {}


def require_rows(tower: Transformer, folder: Path) -> None:
    """Raises a UserError where a token of the tokenizer has no row in the table of words."""
    network: Any = tower.auto_model
    tokenizer: Any = tower.tokenizer
    n_rows = network.get_input_embeddings().num_embeddings
    last = max(tokenizer.get_vocab().values())
    if last >= n_rows:
        raise UserError(
            f"{folder} has a tokenizer with token ids up to {last}, but {n_rows} word embeddings:"
            " its tokenizer is another model's"
        )
