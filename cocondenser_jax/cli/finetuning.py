"""The command that fine-tunes."""

from cocondenser_jax.cli.flags import (
    Arguments,
    Commands,
    add_command,
    add_config,
    add_json_out,
    add_workdir,
    print_metrics,
)


def add_commands(commands: Commands) -> None:
    """Adds it to the command line."""
    command = add_command(
        commands,
        _finetune,
        "--config=configs/finetune.py --workdir=runs/finetune --config.model=runs/model"
        " --config.data=data/msmarco",
    )
    add_config(command)
    result = "retriever/, cross_encoder/ or encoder/"
    add_workdir(command, f"gets {result}, metrics and, while running, checkpoints")
    add_json_out(command)


def _finetune(arguments: Arguments) -> None:
    """Fine-tune a retriever, a cross-encoder or a sentence encoder."""
    from cocondenser_jax.finetune.tasks import finetune
    from cocondenser_jax.finetune.trainer import is_main_process
    from cocondenser_jax.settings import FINE_TUNING, load_config

    config = load_config(arguments.config, arguments.overrides, tasks=FINE_TUNING)
    result = finetune(config, arguments.workdir)
    if is_main_process():
        print_metrics(result, arguments.json_out)
