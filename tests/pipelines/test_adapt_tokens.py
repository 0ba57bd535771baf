"""`adapt` trains with the tokens that the search will read."""

import json
import os
import shutil
from pathlib import Path

import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.pipelines import adapt as adapting
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import write_records


def stop(*_):
    """Ends what the test has seen enough of."""
    raise KeyError("tokens agree")


def replace_in(path, old, new):
    """Replaces a text that a file must have."""
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


def test_a_model_whose_texts_begin_with_another_token_is_refused(
    model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    load_retriever(model_folder).save_pretrained("model", create_model_card=False)
    config = Path("model/tokenizer_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"cls_token": "[MASK]"}))
    write_records(Path("texts.jsonl"), [{"text": "abc def"}])
    words = ["adapt", "--corpus=texts.jsonl", "--workdir=new", "--model=model"]
    assert main([*words, "--config.data.length=64"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("cocondenser: model reads 'A Bad Café' as ['[MASK]', ")
    assert "as ['[CLS]', " in error
    assert sorted(os.listdir()) == ["model", "texts.jsonl"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer_args": {"padding_side": "left"}}, "makes other vectors in JAX"),
        ({"tokenizer_args": {"model_max_length": 20}}, "reads 20 tokens of a text, but"),
        (
            {"config_args": {"layer_norm_eps": 0.01}},
            "makes other vectors in JAX (expected --backend=torch)",
        ),
        ({"processing_kwargs": {"text": {"add_special_tokens": False}}}, "reads 'A Bad Café'"),
    ],
    ids=str,
)
def test_a_model_that_a_second_file_changes_is_refused(
    changes, said, model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    load_retriever(model_folder).save_pretrained("model", create_model_card=False)
    settings = Path("model/sentence_bert_config.json")
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes))
    write_records(Path("texts.jsonl"), [{"text": "abc def"}])
    words = ["adapt", "--corpus=texts.jsonl", "--workdir=new", "--model=model"]
    assert main([*words, "--config.data.length=24"]) == 2
    assert f"cocondenser: model {said}" in capsys.readouterr().err.splitlines()[-1]
    assert sorted(os.listdir()) == ["model", "texts.jsonl"]


def test_padding_before_texts_that_moves_positions_is_refused_in_pytorch_too(
    model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    load_retriever(model_folder, given=Given("mean", "cosine")).save_pretrained(
        "model", create_model_card=False
    )
    config = Path("model/tokenizer_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"padding_side": "left"}))
    write_records(Path("texts.jsonl"), [{"text": "abc def"}])
    words = ["adapt", "--corpus=texts.jsonl", "--workdir=new", "--model=model", "--backend=torch"]
    assert main([*words, "--config.data.length=24"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "model makes other vectors in training than it is searched with" in error


def test_a_model_that_reads_other_tokens_than_its_file_says_is_refused(
    model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    loaded = load_retriever(model_folder, given=Given("mean", "dot"))
    loaded.save_pretrained("model", create_model_card=False)
    replace_in(Path("model/tokenizer.json"), '"lowercase": true', '"lowercase": false')
    replace_in(
        Path("model/tokenizer_config.json"), '"do_lower_case": true', '"do_lower_case": false'
    )
    write_records(Path("texts.jsonl"), [{"text": "abc def"}])
    words = ["adapt", "--corpus=texts.jsonl", "--workdir=new", "--model=model"]
    words += ["--config.data.length=64"]
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "write_store", stop)
        with pytest.raises(KeyError, match="tokens agree"):
            main(words)
    settings = Path("model/sentence_bert_config.json")
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": True}))
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("cocondenser: model reads 'A Bad Café' as [")
    assert "training would see other tokens than the search" in error
    shutil.rmtree("model")
    assert os.listdir() == ["texts.jsonl"]
