"""What all fine-tuning shares: training arguments, resuming, metrics, a result whole or absent.

The loop itself is transformers' Trainer, as sentence-transformers extends it.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.cross_encoder import CrossEncoderTrainer
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.retrieval.models import model_sha256, uses_bfloat16
from cocondenser_jax.storage.files import file_sha256, new_folder, read_object
from cocondenser_jax.storage.metrics import Log, metrics_log
from cocondenser_jax.storage.paths import plain_path
from cocondenser_jax.storage.runs import (
    CHECKSUMS,
    damaged_file,
    start_or_compare,
    write_checksums,
)

logger = logging.getLogger(__name__)

# Settings that may differ when a run resumes: the checksums of what was read there are compared.
_FREE = ("model", "data", "negatives_run", "teacher_run", "loggers")
# Parameters of the loss itself, in a checkpoint: sentence-transformers (6.2.0) does not save them.
_LOSS = "loss.safetensors"


class TrainerSettings(NamedTuple):
    """How to train, whatever is trained; see `TRAINING` of configs/finetune.py."""

    batch_size: int
    epochs: int
    max_steps: int
    learning_rate: float
    warmup_ratio: float
    weight_decay: float
    precision: str
    seed: int
    log_every: int
    loggers: str
    checkpoint_every: int
    loader_workers: int
    workdir: Path
    record: dict[str, Any]  # every setting of the run, as finetune.json keeps them


def start_or_resume(settings: TrainerSettings, n_rows: int, files: Mapping[str, Path]) -> None:
    """Prepares the workdir, or makes sure that the run started there has these settings and data.

    What the paths lead to may have moved since then. `files` is what the run reads beside the
    model, by what it is.

    Raises:
      UserError: for fewer rows to train on than a batch has, a folder that holds something else, or
        a run with other settings, data or model.
    """
    record = settings.record
    if n_rows < settings.batch_size:
        raise UserError(
            f"{record['data']} has {n_rows} rows to train on: too few for one step of "
            f"batch_size={settings.batch_size}"
        )
    if not is_main_process():
        return
    checksums = {name: file_sha256(file) for name, file in files.items()}
    checksums["model"] = model_sha256(Path(record["model"]))
    start_or_compare(settings.workdir / "finetune.json", record | {"sha256": checksums}, _FREE)


def arguments(settings: TrainerSettings) -> dict[str, Any]:
    """Makes the training arguments that all tasks share.

    A step is `batch_size` rows however many processes share it: each takes its slice of them.
    """
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(settings.workdir / "checkpoints"),
        "num_train_epochs": settings.epochs,
        "max_steps": settings.max_steps or -1,
        "per_device_train_batch_size": settings.batch_size,
        "accelerator_config": {"split_batches": True},
        # Without this, processes without a GPU would each train alone, and in float32 (seen with
        # transformers 5.23; https://github.com/huggingface/transformers/issues/17581).
        "use_cpu": not (on_gpu or torch.backends.mps.is_available()),
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_ratio,  # below 1, it is a share of all steps
        "weight_decay": settings.weight_decay,
        "seed": settings.seed,
        "bf16": uses_bfloat16(settings.precision),
        "dataloader_drop_last": True,
        "dataloader_num_workers": settings.loader_workers,
        "dataloader_pin_memory": on_gpu,
        "logging_steps": settings.log_every,
        "save_strategy": "steps" if settings.checkpoint_every else "no",
        "save_steps": settings.checkpoint_every or 10**9,
        "save_total_limit": 2,  # the newest, and the best or the one before
        "report_to": "none",  # `_Metrics` writes TensorBoard events
        "disable_tqdm": True,  # `_Metrics` has a progress bar
    }


def is_main_process() -> bool:
    """Returns whether this process is the one that writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def run(
    trainer: SentenceTransformerTrainer | CrossEncoderTrainer,
    settings: TrainerSettings,
    result: str,
    loggers: Sequence[Log] = (),
) -> dict[str, Any]:
    """Trains to the end, from the newest intact checkpoint if there is one, and saves the model.

    With an evaluator, that is the model of the best evaluation. `result` is the model's folder in
    the workdir. `loggers` get what is logged, see `metrics_log`. Returns what `tasks.finetune`
    does, without the number of rows.
    """
    start = time.perf_counter()
    workdir = settings.workdir
    checkpoints = workdir / "checkpoints"
    # The others then find no damaged one.
    with trainer.accelerator.main_process_first(), _one_line_errors(checkpoints):
        step = _newest_intact(checkpoints)
    loss: Any = trainer.loss
    if (parameters := checkpoints / f"checkpoint-{step}" / _LOSS).exists():
        loss.load_state_dict(load_file(parameters), strict=False)
    save = trainer._save_checkpoint

    def save_all(*arguments: Any) -> None:
        with _one_line_errors(checkpoints):
            save(*arguments)
            PartialState().wait_for_everyone()  # each writes a part of it
            if is_main_process():
                step = trainer.state.global_step
                folder = Path(str(trainer.args.output_dir), f"checkpoint-{step}")
                if own := _own_parameters(loss.state_dict()):
                    save_file(own, folder / _LOSS)
                write_checksums(folder)

    trainer._save_checkpoint = save_all  # type: ignore[assignment,method-assign]
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Control(loss))
    with contextlib.ExitStack() as stack:
        if is_main_process():
            log = metrics_log(workdir, step, loggers)
            trainer.add_callback(_Metrics(stack.enter_context(log)))
        plain = stack.enter_context(plain_path(checkpoints))
        trainer.args.output_dir = str(plain)
        trainer.train(resume_from_checkpoint=f"{plain}/checkpoint-{step}" if step else None)
    trainer.accelerator.wait_for_everyone()
    best_step, value = trainer.state.best_global_step, trainer.state.best_metric
    measure = str(trainer.args.metric_for_best_model)
    if is_main_process():
        if best_step:
            logger.info("saving the best model: step %d, %s %.4f", best_step, measure, value)
            if name := _damage(folder := checkpoints / f"checkpoint-{best_step}"):
                raise UserError(f"{folder}, the best, is damaged: {name} is not what was saved")
            with plain_path(folder) as plain:
                trainer._load_from_checkpoint(str(plain))
        with _one_line_errors(workdir / result), new_folder(workdir / result) as folder:
            # The library's model card would quote texts of the training set.
            trainer.model.save_pretrained(str(folder), create_model_card=False)
        shutil.rmtree(checkpoints, ignore_errors=True)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        result: str(workdir / result),
        "steps": trainer.state.global_step,
        "loss": losses[-1],
        "seconds": time.perf_counter() - start,
        **({"best_step": best_step, measure: value} if best_step else {}),
    }


class _Metrics(ProgressCallback):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._since = (state.global_step, time.perf_counter())

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "eval_loss" in logs:
            names = ("eval_loss", args.metric_for_best_model)
            self._log(state.global_step, {name: logs[name] for name in names})
        if "loss" not in logs:
            return
        step, now = state.global_step, time.perf_counter()
        steps, seconds = step - self._since[0], now - self._since[1]
        self._since = (step, now)
        values = {name: logs[name] for name in ("loss", "learning_rate", "grad_norm")}
        rate = {"pairs_per_second": steps * args.per_device_train_batch_size / seconds}
        self._log(step, {"epoch": state.epoch or 0.0} | values | rate)
        bar: Any = self.training_bar
        bar.set_postfix(loss=f"{logs['loss']:.4f}", refresh=False)


class _Control(TrainerCallback):
    """Averages the gradients of the loss's own parameters; says when to log."""

    def __init__(self, loss: torch.nn.Module) -> None:
        self._loss = loss

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # They are not part of the model, so DistributedDataParallel does not average them.
        for parameter in _own_parameters(dict(self._loss.named_parameters())).values():
            parameter.grad = reduce(parameter.grad, "mean")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A resumed run restarts the running mean of the loss, so restart it wherever one may
        # resume; and log at the end, so that every run has a last loss.
        is_last = state.global_step >= state.max_steps
        if control.should_save or control.should_evaluate or is_last:
            control.should_log = True


def _own_parameters(of_loss: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns those of the loss itself, without the model's."""
    return {name: value for name, value in of_loss.items() if not name.startswith("model.")}


@contextlib.contextmanager
def _one_line_errors(target: Path) -> Iterator[None]:
    """Turns what the libraries raise when they cannot write into a UserError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # torch's is a RuntimeError
        raise UserError(f"cannot write {target}: {first_line(error)}") from error


def _newest_intact(folder: Path) -> int:
    """Returns the step of the newest checkpoint that is intact, and deletes later ones.

    It is 0 if no checkpoint was completed. If some were, but all are damaged, they stay as they
    are, and this raises a UserError.
    """
    # transformers (5.23) would take the newest, also one that a kill cut short:
    # https://github.com/huggingface/transformers/issues/35782. Our checksums are written last.
    found = {int(path.name.split("-")[1]): path for path in folder.glob("checkpoint-*")}
    complete = [step for step in sorted(found) if (found[step] / CHECKSUMS).exists()]
    for step in reversed(complete):
        if (name := _damage(found[step])) is None:
            logger.info("resuming from step %d", step)
            break
        logger.warning(
            "%s is damaged (%s is not what was saved); trying an earlier one", found[step], name
        )
    else:
        step = 0
        if complete:
            raise UserError(
                f"{folder.parent}: none of its checkpoints ({', '.join(map(str, complete))}) is "
                "intact; to start again, choose a new folder"
            )
    for later in (path for number, path in found.items() if number > step):
        shutil.rmtree(later)
    return step


def _damage(checkpoint: Path) -> str | None:
    """Returns a file that is not what was saved, of a checkpoint or of the best until then."""
    if name := damaged_file(checkpoint):
        return name
    step = read_object(checkpoint / "trainer_state.json").get("best_global_step")
    best = checkpoint.with_name(f"checkpoint-{step}")
    if step and best != checkpoint and (name := _damage(best)):
        return f"{best.name}/{name}"
    return None
