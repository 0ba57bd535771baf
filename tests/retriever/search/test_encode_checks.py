"""What encoding checks before it reads or loads anything."""

import shutil
from pathlib import Path

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.workers import Engine
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.search import encode, models
from cocondenser_jax.retriever.search.encode import Encoding
from tests.lines import whole


@pytest.mark.usefixtures("unread_corpus")
@pytest.mark.parametrize("engine", [None, Engine(tasks=2)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 65}, whole("--max_length=65: expected 3 to 64 tokens for TMP")),
        ({"max_length": 2}, whole("--max_length=2: expected 3 to 64 tokens for TMP")),
    ],
)
def test_what_is_wrong_with_the_model_is_found_before_the_corpus_is_read(
    model_folder, beir, tmp_path, engine, change, message
):
    encoding = Encoding(open_model(model_folder))._replace(**change)
    with pytest.raises(UserError, match=message):
        encode.encode_corpus(encoding, beir, tmp_path / "out", engine=engine)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unread_corpus")
@pytest.mark.parametrize("engine", [None, Engine(tasks=2)])
def test_a_folder_with_something_else_is_refused_before_the_model_is_loaded(
    model_folder, beir, tmp_path, engine, monkeypatch
):
    monkeypatch.setattr(models, "load", pytest.fail)
    (tmp_path / "thesis.tex").touch()
    for place in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(
            UserError,
            match=whole(f"{place} already exists: choose a new folder, or remove it first"),
        ):
            encode.encode_corpus(Encoding(open_model(model_folder)), beir, place, engine=engine)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("in_tasks", [[], ["--tasks=2"]])
def test_a_folder_with_something_else_is_refused_before_the_model_is_opened(
    beir, tmp_path, capsys, in_tasks
):
    (tmp_path / "thesis.tex").touch()
    command = ["encode", "--model=none", f"--corpus={beir}", f"--out={tmp_path}", *in_tasks]
    assert main(command) == 2
    assert f"{tmp_path} already exists: choose a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("texts", [["abc def", "hgf"], ["abc def", "fgh", "one more"]])
@pytest.mark.parametrize("task", [(0, 1), (1, 2)])
def test_a_data_set_that_changes_after_it_was_counted_is_an_error(
    model_folder, tmp_path, monkeypatch, texts, task
):
    """One that datasets reads, which need not be files of this machine."""
    table = tmp_path / "data" / "table.csv"
    table.parent.mkdir()
    table.write_text("text\nabc def\nfgh\n")
    read_facts = encode._read_facts

    def read_and_change(*arguments, **named):
        facts = read_facts(*arguments, **named)
        table.write_text("\n".join(["text", *texts, ""]))
        return facts

    monkeypatch.setattr(encode, "_read_facts", read_and_change)
    with pytest.raises(
        UserError,
        match=whole(
            "…data has changed while it was encoded: the vectors may be of other passages;"
            " remove them, and encode again"
        ),
    ):
        encode.encode_corpus(
            Encoding(open_model(model_folder)),
            f"hf:{table.parent}",
            tmp_path / "out",
            shard_size=2,
            task=task,
        )


def test_vectors_are_not_written_into_the_folder_of_their_model(model_folder, beir, tmp_path):
    """Their manifest would count as the model's, and the search would take it for another one."""
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    (tmp_path / "link").symlink_to("model")
    for out in (model / "new" / "out", tmp_path / "link" / "out", model):
        with pytest.raises(UserError, match="lies in the folder of the model"):
            encode.encode_corpus(Encoding(open_model(model)), beir, out)
    assert not (model / "new").exists()
    encode.encode_corpus(Encoding(open_model(model)), beir, tmp_path / "model.out")
