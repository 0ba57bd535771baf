"""Flags that do not fit each other are refused, not ignored."""

import pytest

from cocondenser_jax.cli import main


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--checkpoint=run", "--init_head"], "--init_head goes with --pytorch_folder"),
        (["--pytorch_folder=x", "--step=3"], "--step goes with --checkpoint"),
        (["--pytorch_folder=x", "--max_seq_length=0"], "--max_seq_length goes with --checkpoint"),
        (["--pytorch_folder=x", "--research_layout"], "--research_layout goes with --checkpoint"),
    ],
)
def test_flags_of_the_other_direction_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--out=out", *flags]) == 2
    assert message in capsys.readouterr().err
