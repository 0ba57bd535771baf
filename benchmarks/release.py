r"""Compares our training step with that of the authors' release, on the same weights and batch.

  git clone https://github.com/luyug/Condenser && git clone https://github.com/luyug/GradCache
  python -m benchmarks.release --condenser=Condenser --gradcache=GradCache \
    --json_out=benchmarks/results/release.json

The other side is the release's model and its `CoCondenserPretrainer.training_step`, in float32,
with its Trainer's AdamW. Three things are adapted. Since 2021, transformers' layers no longer
return tuples, and the attention mask is made here. The release divides the MLM loss by the number
of documents although a batch has two spans of each, so that it counts twice; here it is given twice
the number, so that both sides report the same loss.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.results import report
from benchmarks.step import (
    LOSS_TOLERANCE,
    SIZES,
    Measured,
    Size,
    adamw,
    alone,
    device_name,
    flax_side,
    model_config,
    resident_bytes,
    time_steps,
    write_model,
)


def main() -> None:
    """Measures all sizes and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--condenser", type=Path, required=True, help="the clone of the release")
    parser.add_argument("--gradcache", type=Path, required=True, help="the clone of its library")
    parser.add_argument("--sizes", default=",".join(SIZES), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="timed on each side")
    parser.add_argument("--json_out", type=Path)
    arguments = parser.parse_args()
    code = [str(arguments.condenser), str(arguments.gradcache / "src")]
    rows = (
        compare(name, SIZES[name], code, arguments.steps) for name in arguments.sizes.split(",")
    )
    report(rows, arguments.json_out)


def compare(name: str, size: Size, code: list[str], n_steps: int) -> dict[str, Any]:
    """Times both sides; raises if their losses differ."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), size)
        ours = alone(flax_side, Path(folder), size, "float32", n_steps)
        theirs = alone(release_side, Path(folder), size, code, n_steps)
    if abs(ours.loss - theirs.loss) > LOSS_TOLERANCE["float32"] * abs(theirs.loss):
        raise SystemExit(f"{name}: the losses differ: {ours.loss} and {theirs.loss}")
    return {
        "size": name,
        "documents": size.documents,
        "chunk size": size.chunk_size,
        "device": ours.device,
        "loss": ours.loss,
        "seconds a step": ours.seconds,
        "seconds a step, the release": theirs.seconds,
        "times the release": round(theirs.seconds / ours.seconds, 2),
        "peak MiB": round(ours.peak_bytes / 2**20),
        "peak MiB, the release": round(theirs.peak_bytes / 2**20),
    }


def release_side(folder: Path, size: Size, code: list[str], n_steps: int) -> Measured:
    """Times the training step of the release; `code` are the folders of its code."""
    import torch

    from checks.reference import full_labels
    from cocondenser_jax.corpus.batches import Batch

    before = resident_bytes()
    batch = Batch(**np.load(folder / "batch.npz"))
    inputs = {
        "input_ids": torch.from_numpy(batch.input_ids_SxL).long(),
        "attention_mask": torch.from_numpy(batch.attention_mask_SxL).long(),
        "labels": full_labels(batch),
    }
    trainer = open_release(folder, size, code)
    optimizer = adamw(trainer.model)

    def train_step() -> float:
        loss = trainer.training_step(trainer.model, dict(inputs))
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    loss, seconds = time_steps(train_step, n_steps)
    return Measured(loss, seconds, resident_bytes() - before, device_name(), 0.0)


def open_release(folder: Path, size: Size, code: list[str]) -> Any:
    """Returns the release's trainer, with the number of spans as that of documents."""
    config = model_config(size)
    head = SimpleNamespace(
        n_head_layers=config.n_head_layers, skip_from=config.skip_from, late_mlm=True
    )
    settings = cache_settings(size.documents, size.chunk_size)
    modeling, release = import_release(code)
    model = open_model(modeling.CoCondenserForPretraining, folder, head, settings)
    settings.per_device_train_batch_size = 2 * size.documents
    return cached_trainer(release, model, settings)


def import_release(code: list[str]) -> tuple[Any, Any]:
    """Returns the release's `modeling` and `trainer`, adapted to today's transformers."""
    sys.path[:0] = code
    import modeling  # type: ignore[import-not-found]
    import trainer as release  # type: ignore[import-not-found]

    class Layer(modeling.BertLayer):
        def forward(self, *arguments: Any) -> tuple[Any]:
            return (super().forward(*arguments),)

    modeling.BertLayer = Layer
    return modeling, release


def cache_settings(n_documents: int, chunk_size: int) -> SimpleNamespace:
    """Returns the release's settings for one process with its gradient cache."""
    return SimpleNamespace(
        per_device_train_batch_size=n_documents,
        local_rank=-1,
        cache_chunk_size=chunk_size,
        gradient_accumulation_steps=1,
        fp16=False,
    )


def open_model(kind: Any, folder: Path, head: SimpleNamespace, settings: SimpleNamespace) -> Any:
    """Returns a model of one of the release's classes, with the weights of a folder."""
    model = kind.from_pretrained(head, None, settings, str(folder))
    model.lm.get_extended_attention_mask = _attention_mask
    return model


def cached_trainer(release: Any, model: Any, settings: SimpleNamespace) -> Any:
    """Returns the release's trainer of coCondenser, without the rest of transformers' Trainer."""
    from grad_cache import GradCache  # type: ignore[import-not-found]

    made = release.CoCondenserPretrainer.__new__(release.CoCondenserPretrainer)
    made.__dict__.update(args=settings, model=model, use_amp=False, use_apex=False, deepspeed=None)
    made.gc = GradCache(
        models=[model.lm],
        chunk_sizes=settings.cache_chunk_size,
        loss_fn=model.compute_contrastive_loss,
        get_rep_fn=lambda out: out.hidden_states[-1][:, 0],
    )
    made._prepare_inputs = dict
    return made


def _attention_mask(mask_BxL: Any, *_: Any) -> Any:
    """Returns the mask that is added to scores, B x 1 x 1 x L."""
    return (1.0 - mask_BxL[:, None, None, :].float()) * -1e9


if __name__ == "__main__":
    main()
