"""`--help`: the commands in the order of the pipeline, each with an example that parses."""

import re
import shlex

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.cli.flags import PROGRAM

PRETRAINING = ["vocabulary", "corpus", "pretrain", "plan", "convert"]
PIPELINE = [*PRETRAINING, "finetune", "encode", "search", "evaluate"]


@pytest.fixture
def help_of(capsys):
    def read(words):
        assert main([*words.split(), "--help"]) == 0
        return capsys.readouterr().out

    return read


def listed(text):
    return re.findall(r"^  (\w+)  ", text.split("Commands:\n")[1], re.MULTILINE)


def test_commands_are_listed_in_the_order_of_the_pipeline(help_of):
    names = listed(help_of(""))
    assert names[: len(PRETRAINING)] == PRETRAINING
    assert [name for name in names if name in PIPELINE] == PIPELINE


def test_without_a_command_help_is_printed_and_the_status_is_2(help_of, capsys):
    expected = help_of("")
    assert main([]) == 2
    assert capsys.readouterr().err == expected


def test_a_list_of_commands_says_all_that_each_does(help_of):
    assert "Pre-train a Condenser or coCondenser; run it again to resume." in help_of("")
    assert "..." not in help_of("").split("Commands:")[1]


@pytest.mark.parametrize("name", PROGRAM.commands)
def test_no_line_is_wider_than_80_columns(name, help_of):
    assert max(map(len, help_of(name).splitlines())) <= 80


@pytest.mark.parametrize("name", PROGRAM.commands)
def test_the_example_of_a_command_can_be_typed(name, help_of):
    example = help_of(name).split("example:\n    cocondenser ")[1].replace("\\\n", " ")
    assert example.startswith(f"{name} --")
    with PROGRAM.commands[name].make_context(name, shlex.split(example)[1:]) as context:
        for word in context.params.get("overrides", ()):
            assert word.startswith("--config.")


def test_a_flag_says_its_default_its_choices_and_what_it_goes_with(help_of):
    text = " ".join(help_of("mine").split())
    assert "--depth N rank, in each run, of the last passage taken" in text
    assert "[default: 200; x>=1]" in text
    assert "--data DATA the folder of queries and qrels [required]" in text
    assert "--denoise_below FLOAT with --denoise_run: keep passages" in text
    assert "--dtype [float32|float16|int8|binary]" in help_of("encode")
    precision = "bfloat16 if the GPU or CPU (with jax: the TPU or GPU) supports it"
    assert precision in " ".join(help_of("encode").split())
    assert "bfloat16 if the GPU supports it" in " ".join(help_of("rerank").split())
    assert "may be repeated [required]" in " ".join(help_of("compare").split())


@pytest.mark.parametrize("name", PROGRAM.commands)
def test_a_command_with_settings_says_where_they_are(name, help_of):
    text = help_of(name)
    assert ("docs/settings.md has every KEY." in text) == ("--config.KEY=VALUE" in text)
