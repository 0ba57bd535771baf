"""A run's figures: one JSON line a logged step, and the same in TensorBoard."""

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from tensorboardX import SummaryWriter

from cocondenser_jax.files import forget_steps_after


class MetricsLog:
    """Appends to `metrics.jsonl` and `tensorboard/` in a run folder.

    A run that resumes at a step first forgets what was logged after it, so the files read as if the
    run had never stopped.
    """

    def __init__(self, workdir: Path, first_step: int) -> None:
        """Opens the log of a run that goes on after `first_step` steps."""
        path = workdir / "metrics.jsonl"
        forget_steps_after(path, first_step)
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(workdir / "tensorboard"), purge_step=first_step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Logs the figures of one step; steps count from 1."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes both files."""
        self._file.close()
        self._board.close()
