"""A checkpoint of a run → a Hugging Face folder."""

from pathlib import Path

from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.pretrain.checkpoint import load_run


def export_run(run: Path, out: Path, *, step: int | str | None = None) -> None:
    """Writes a run's latest checkpoint, or that of a step, as a Hugging Face folder.

    Args and errors are those of `load_run` and `export_folder`.
    """
    model_config, params, facts = load_run(run, step)
    export_folder(params, model_config, run / "tokenizer", out, facts)
