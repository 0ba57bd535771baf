"""Pre-train dense retrievers on your own text in JAX (TPU, GPU, CPU): Condenser and coCondenser.

The names in `__all__` are the public Python interface; docs/python.md has an example of each. A
name is imported when it is first used: importing the package loads neither JAX nor PyTorch.

Where a function takes a `Path`, its public name also takes text; where it takes a `ModelFolder`, it
also takes the folder of a model, or its name on the hub.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "corpus.build": ("build_store",),
    "corpus.store": ("TokenStore", "open_store"),
    "corpus.batches": ("Batch", "BatchSpec", "make_batch"),
    "model.config": ("ModelConfig",),
    "model.condenser": ("Condenser", "init_params"),
    "representation": ("Given", "Representation"),
    "pretrain.step": ("LossSettings",),
    "pretrain.devices": ("batch_gradient",),
    "pretrain.grad_cache": ("loss_gradient",),
    "pretrain.checkpoint": ("load_run",),
    "pretrain.export": ("export_run",),
    "convert.to_torch": ("export_folder",),
    "convert.from_torch": ("load_folder",),
    "retriever.search.models": ("load_retriever",),
    "retriever.search.fuse": ("fuse_runs",),
    "retriever.search.opening": ("Bits", "Exact", "Faiss", "open_index"),
    "retriever.search.search": ("search_run", "search_text"),
    "retriever.data.trec": ("read_qrels", "read_run", "write_run"),
    "retriever.data.ranking": ("evaluate_run",),
    "errors": ("UserError",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    if inspect.isfunction(value):
        value = _accepting_text(value)
    globals()[name] = value
    return value


def _accepting_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that also takes text where another takes a `Path` or a `ModelFolder`."""
    signature = inspect.signature(function)
    annotations = {name: each.annotation for name, each in signature.parameters.items()}
    paths = {name for name, each in annotations.items() if each is Path}
    models = {
        name
        for name, each in annotations.items()
        if isinstance(each, type) and each.__name__ == "ModelFolder"
    }
    parameters = [
        each.replace(annotation=each.annotation | Path | str) if name in paths | models else each
        for name, each in signature.parameters.items()
    ]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in paths and isinstance(value, str):
                given.arguments[name] = Path(value)
            if name in models and isinstance(value, str | Path):
                model = importlib.import_module(f"{__name__}.model_folder.model")
                given.arguments[name] = model.open_model(value, None)
        return function(*given.args, **given.kwargs)

    call.__dict__["__signature__"] = signature.replace(parameters=parameters)
    call.__module__ = __name__  # where pickle looks for it
    return call


def __dir__() -> list[str]:
    return [*globals(), *__all__]
