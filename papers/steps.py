"""Steps, each of which makes a file or folder once, by commands, from the results of other steps.

A recipe is a function that returns a step. Paths and commands name two folders: $WORK, for all
results, and $DATA, for inputs that no command makes (`--workdir` and `--data`).
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from cocondenser_jax.errors import UserError
from cocondenser_jax.files.steps import make_once
from cocondenser_jax.files.whole import read_json

Command = list[str]


class Refused(UserError):
    """A command ended with status 2, after printing its own error line."""


class Best(NamedTuple):
    """The value of a setting with the best `metric`, and the steps that measure each value."""

    tried: Mapping[int | float, "Step"]
    metric: str
    word: str  # stands for the value in a command, until these steps have run

    def __str__(self) -> str:
        """Returns the word."""
        return self.word


Epochs = int | Best
EPOCHS = "$EPOCHS"


class Step(NamedTuple):
    """Commands that make the file or folder `out`, or instructions to `get` it.

    A step with neither stands for a part of another step's result.
    """

    out: str
    commands: Sequence[Command] = ()
    needs: "Sequence[Step]" = ()
    done: str = ""  # what `out`, a folder that grows, contains once it is finished
    flop: float = 0.0  # of a TPU or a GPU
    core_seconds: float = 0.0  # of the CPU, see costs.py
    bytes: float = 0.0  # on disk
    scratch: float = 0.0  # bytes on disk, too, until it is finished
    is_temporary: bool = False  # whether it may go once what needs it is finished
    get: str = ""
    choices: Sequence[Best] = ()  # whose words the commands have

    @property
    def result(self) -> str:
        """The file or folder that exists once the step is finished."""
        return f"{self.out}/{self.done}" if self.done else self.out


class Folders(NamedTuple):
    """The folders $WORK and $DATA."""

    work: Path
    data: Path

    def fill(self, text: str) -> str:
        """Returns a path or a word of a command with both folders in it."""
        return Template(text).safe_substitute(WORK=self.work, DATA=self.data)

    def result(self, step: Step) -> Path:
        """Returns the file or folder that exists once a step is finished."""
        return Path(self.fill(step.result))


def best(measure: Callable[[int], Step], of: Iterable[int], metric: str) -> Best:
    """Returns the choice of the number of epochs in `of` with the best result of `measure`."""
    return Best({number: measure(number) for number in of}, metric, EPOCHS)


def choices(*settings: object) -> list[Best]:
    """Returns the settings that are chosen when a step runs."""
    return [setting for setting in settings if isinstance(setting, Best)]


def most(epochs: Epochs) -> int:
    """Returns the largest number of epochs that may be chosen."""
    return epochs if isinstance(epochs, int) else max(map(int, epochs.tried))


def label(epochs: Epochs) -> str:
    """Returns the number of epochs, or "best", for the name of a folder."""
    return f"{epochs}" if isinstance(epochs, int) else "best"


def within(step: Step, name: str) -> Step:
    """Returns a file or folder inside a step's result."""
    return Step(f"{step.out}/{name}", needs=[step])


def unfinished(wanted: Iterable[Step], folders: Folders) -> dict[Path, Step]:
    """Returns the steps to run for the wanted ones, in order, by their results.

    Steps needed only by finished ones are left out. Paths and commands are filled in.
    """
    steps: dict[Path, Step] = {}

    def visit(step: Step) -> None:
        path = folders.result(step)
        if path in steps or path.exists():
            return
        for need in _before(step):
            visit(need)
        if step.commands or step.get:
            commands = [[folders.fill(word) for word in words] for words in step.commands]
            steps[path] = step._replace(out=folders.fill(step.out), commands=commands)

    for step in wanted:
        visit(step)
    return steps


def finished(wanted: Iterable[Step], folders: Folders) -> dict[Path, Step]:
    """Returns the finished steps that are wanted or that others still need, by their results."""
    kept: dict[Path, Step] = {}

    def visit(step: Step) -> None:
        path = folders.result(step)
        if path.exists():
            kept[path] = step
            return
        for need in _before(step):
            visit(need)

    for step in wanted:
        visit(step)
    return kept


def removable(wanted: Iterable[Step], folders: Folders) -> list[Path]:
    """Returns the temporary folders that no unfinished step needs any more."""
    wanted = [*wanted]
    needed = {
        folders.result(need)
        for step in unfinished(wanted, folders).values()
        for need in (step, *step.needs)
    }
    temporary = {
        folders.result(step): Path(folders.fill(step.out))
        for step in _all_steps(wanted)
        if step.is_temporary
    }
    return [
        folder for result, folder in temporary.items() if folder.exists() and result not in needed
    ]


def _all_steps(wanted: Iterable[Step]) -> list[Step]:
    """Lists the steps that lead to those wanted, finished or not."""
    found: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.result in found:
            return
        found[step.result] = step
        for need in _before(step):
            visit(need)

    for step in wanted:
        visit(step)
    return [*found.values()]


def _before(step: Step) -> Sequence[Step]:
    return [*step.needs, *(one for choice in step.choices for one in choice.tried.values())]


def require_data(steps: Mapping[Path, Step]) -> None:
    """Raises a UserError for the first of the steps' data that is missing."""
    for path, step in steps.items():
        if step.get:
            raise UserError(f"{path} is missing: {step.get}")


def run_steps(
    steps: Mapping[Path, Step],
    folders: Folders,
    execute: Callable[[Command], int],
    after_each: Callable[[], None] = lambda: None,
) -> None:
    """Runs steps by `execute`, which returns the exit status; a UserError if that is not 0.

    It is `Refused` if the status is 2.

    `seconds.json` in the working folder gets how long each took. `after_each` is called after every
    step.
    """
    require_data(steps)

    def run(step: Step, _: Path) -> None:
        chosen = {choice.word: _best_value(choice, folders) for choice in step.choices}
        for words in step.commands:
            command = [_with_values(word, chosen) for word in words]
            if status := execute(command):
                kind = Refused if status == 2 else UserError
                raise kind(f"exit status {status}: {shlex.join(command)}")

    for path, step in steps.items():
        make_once(folders.work, path, partial(run, step))
        after_each()


def _best_value(choice: Best, folders: Folders) -> str:
    results = {value: read_json(folders.result(step)) for value, step in choice.tried.items()}
    return str(max(results, key=lambda value: means(results[value])[choice.metric]))


def _with_values(word: str, chosen: Mapping[str, str]) -> str:
    for name, value in chosen.items():
        word = word.replace(name, value)
    return word


def means(result: Mapping[str, Any]) -> Mapping[str, float]:
    """Returns the metrics in a result of `evaluate`, or of a script that writes nothing else."""
    return result.get("mean", result)
