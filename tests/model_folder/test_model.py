"""A model that is opened: its files, each read once, and what other programs read of them."""

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from cocondenser_jax.cli import main
from cocondenser_jax.configs import default
from cocondenser_jax.convert.from_torch import load_folder, load_vectors
from cocondenser_jax.convert.resolve import resolve_model
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import whole
from cocondenser_jax.model_folder import model as model_module
from cocondenser_jax.model_folder.folder import is_cross_encoder
from cocondenser_jax.model_folder.model import open_model, open_network
from cocondenser_jax.pretrain.experiment import resolve
from cocondenser_jax.pretrain.warm_start import first_model
from cocondenser_jax.representation import (
    AS_IN_PAPERS,
    Given,
    Representation,
    passage_prompt,
    query_prompt,
)
from cocondenser_jax.retriever.search.models import load, load_retriever
from tests.published import MEAN, MINILM, UNIT, pooling
from tests.published_folders import IDENTITY, TANH, dense, write_folder
from tests.published_tokenizers import PASSAGES, QUERIES
from tests.world import write_beir, write_records

LABSE = MINILM._replace(modules=(MEAN, dense(16, TANH), UNIT))


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def lines(caplog):
    name = "cocondenser_jax.model_folder.model"
    return [record.getMessage() for record in caplog.records if record.name == name]


@pytest.fixture
def labse(tmp_path):
    return write_folder(LABSE, tmp_path / "labse")


@pytest.fixture
def texts(tmp_path):
    write_beir(tmp_path / "data", PASSAGES, QUERIES, {"test": range(len(QUERIES))})
    return tmp_path / "data"


@pytest.fixture
def reads(monkeypatch):
    """Counts how often our own code reads each file of JSON."""
    counts = Counter()
    read = whole.read_json

    def count(path):
        counts[Path(path)] += 1
        return read(path)

    monkeypatch.setattr(whole, "read_json", count)
    monkeypatch.setattr(model_module, "read_json", count)
    return counts


def assert_each_read_once(counts, folder):
    files = {path for path in counts if path.is_relative_to(folder)}
    assert {path.name for path in files} >= {"modules.json", "config.json"}
    assert {counts[path] for path in files} == {1}, counts


def test_encode_and_compare_read_each_file_of_a_model_once(labse, texts, reads, tmp_path):
    assert main(["encode", f"--model={labse}", f"--corpus={texts}", f"--out={tmp_path}/e"]) == 0
    assert_each_read_once(reads, labse)
    reads.clear()
    words = [f"--data={texts}", f"--model={labse}", f"--workdir={tmp_path}/compared"]
    assert main(["compare", *words]) == 0
    assert_each_read_once(reads, labse)


def test_a_run_reads_each_file_of_its_start_once(labse, reads, tmp_path):
    write_records(tmp_path / "text.jsonl", ({"text": text * 4} for text in PASSAGES))
    build_store(str(tmp_path / "text.jsonl"), str(labse), tmp_path / "store", max_length=16)
    reads.clear()  # that was another command
    config = default.get_config().unlock()
    config.data.store, config.warm_start = str(tmp_path / "store"), str(labse)
    config.model.skip_from, config.init_head = 1, True
    store = open_store(tmp_path / "store")
    first_model(resolve(config, store), store)
    assert_each_read_once(reads, labse)


def test_training_starts_from_the_shards_that_transformers_reads(tmp_path):
    """Beside them lie those of an earlier save, of which there were more."""
    folder = write_folder(MINILM._replace(weights="shards"), tmp_path / "model")
    expected = SentenceTransformer(str(folder))[0].auto_model.state_dict()
    stale = {name: value + 1 for name, value in expected.items()}
    for number in (1, 99):
        save_file(stale, folder / f"model-{number:05d}-of-00099.safetensors", {"format": "pt"})
    _, params = load_vectors(open_model(folder))
    words_VxH = params["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(words_VxH, expected["embeddings.word_embeddings.weight"])


def test_codes_in_the_place_of_weights_are_not_trained(labse, texts, tmp_path, capsys):
    change(labse / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    said = r"the weights are quantized \(bitsandbytes\), which cannot be trained: expected the un"
    with pytest.raises(UserError, match=said):
        load_folder(labse, n_head_layers=0, init_head_seed=0)
    words = [f"--workdir={tmp_path}/run", f"--config.data.folder={texts}"]
    words += ["--config.data.split=test"]
    one = write_folder(MINILM, tmp_path / "one")
    towers = [[*SentenceTransformer(str(one))] for _ in range(2)]
    router = Router.for_query_document(*towers)
    SentenceTransformer(modules=[router]).save_pretrained(str(tmp_path / "two"))
    second = tmp_path / "two" / "query_0_Transformer"
    change(second / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    for model, network, config, more in (
        (labse, labse, "finetune", ["--config.data.negatives_per_query=0"]),
        (tmp_path / "two", second, "finetune", ["--config.data.negatives_per_query=0"]),
        (labse, labse, "cross_encoder", [f"--config.data.negatives_run={texts}/qrels/test.tsv"]),
    ):
        command = ["finetune", f"--config=configs/{config}.py", f"--config.model.folder={model}"]
        assert main([*command, *words, *more]) == 2
        said = f"{network}/config.json: quantization_config says that the weights are quantized"
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("origin", [None, "intfloat/e5-small-v2"])
def test_the_name_of_a_folder_says_nothing_of_its_model(tmp_path, caplog, origin):
    """It may be trained further, without prompts: what is known is offered in one line."""
    folder = write_folder(MINILM, tmp_path / ("mine" if origin else "e5-small-v2"))
    if origin:  # as older releases of transformers wrote it
        change(folder / "config.json", _name_or_path=origin)
    for _ in range(2):
        model = load_retriever(folder)
    library = SentenceTransformer(str(folder))
    for ours, theirs in (
        (model.encode_query, library.encode_query),
        (model.encode_document, library.encode_document),
    ):
        np.testing.assert_allclose(ours(PASSAGES), theirs(PASSAGES), atol=1e-6)
    assert open_model(folder).representation.score_scale == 20
    (line,) = lines(caplog)  # said once
    assert line == (
        f"{folder} names no prompts, and none are used; e5-small-v2 is published with"
        " --query_prompt='query: ' --passage_prompt='passage: ': give them if this model was"
        " trained with them"
    )


@pytest.mark.parametrize(
    ("given", "n_lines"),
    [
        (Given(query_prompt=""), 1),
        (Given(passage_prompt=""), 1),
        (Given(query_prompt="", passage_prompt=""), 0),
    ],
)
def test_prompts_are_offered_until_both_are_given(tmp_path, caplog, given, n_lines):
    open_model(write_folder(MINILM, tmp_path / "e5-small-v2"), given)
    assert len(lines(caplog)) == n_lines


def test_a_folder_here_is_not_the_model_of_its_name_on_the_hub(tmp_path, monkeypatch):
    folder = write_folder(MINILM, tmp_path / "intfloat" / "e5-small-v2")
    monkeypatch.chdir(tmp_path)
    opened = open_model("intfloat/e5-small-v2")
    assert opened.representation == open_model(folder).representation
    assert not opened.representation.prompts


def test_a_name_on_the_hub_says_what_its_folder_does_not(tmp_path, caplog, monkeypatch):
    folder = write_folder(MINILM, tmp_path / "0123abc")
    monkeypatch.setattr(model_module, "find_folder", lambda name: folder)
    known = open_model("intfloat/e5-small-v2")
    prompts = dict(known.representation.prompts)
    assert (query_prompt(prompts), passage_prompt(prompts)) == ("query: ", "passage: ")
    assert known.representation.score_scale == 100
    (line,) = lines(caplog)
    assert line == (
        f"{folder} names no prompts: those of intfloat/e5-small-v2 are used, 'query: ' for queries"
        " and 'passage: ' for passages; --query_prompt and --passage_prompt override them"
    )
    assert open_model("someone/e5-small-v2").representation.prompts == ()
    given = open_model("intfloat/e5-small-v2", Given(query_prompt="", passage_prompt="p: "))
    assert dict(given.representation.prompts) == {"document": "p: "}
    change(folder / "config_sentence_transformers.json", prompts={"query": "q: "})
    caplog.clear()
    own = open_model("intfloat/e5-small-v2")
    assert not lines(caplog)
    assert dict(own.representation.prompts) == {"query": "q: "}


def test_a_plain_folder_is_pooled_as_its_name_on_the_hub_says(model_folder, caplog, monkeypatch):
    monkeypatch.setattr(model_module, "find_folder", lambda name: model_folder)
    expected = {"facebook/contriever": ("mean", "dot"), "Luyu/co-condenser-marco": ("cls", "dot")}
    for name, vectors in expected.items():
        for plain in (Given(), AS_IN_PAPERS):
            found = open_model(name, plain=plain).representation
            assert (found.pooling, found.similarity) == vectors
        (line,) = lines(caplog)
        pooling, similarity = vectors
        assert line == (
            f"{model_folder} has no modules.json: pooling {pooling} and similarity {similarity} are"
            f" assumed, as in {name}; --pooling and --similarity override them"
        )
        caplog.clear()
        cosine = open_model(name, Given(similarity="cosine")).representation
        assert (cosine.pooling, cosine.similarity) == (vectors[0], "cosine")
        caplog.clear()


def test_a_name_that_is_known_for_its_prompts_says_nothing_of_pooling(
    model_folder, tmp_path, caplog, monkeypatch
):
    folder = shutil.copytree(model_folder, tmp_path / "0123abc")
    monkeypatch.setattr(model_module, "find_folder", lambda name: folder)
    open_model("intfloat/e5-small-v2", Given(query_prompt="", passage_prompt=""))
    (line,) = lines(caplog)
    assert "similarity cosine are assumed, as in sentence-transformers; --pooling" in line


def test_a_cross_encoder_is_no_bi_encoder_unless_that_is_said(cross_encoder_folder):
    for given in (Given(), Given(pooling="cls"), Given(similarity="dot")):
        with pytest.raises(UserError) as refused:
            open_model(cross_encoder_folder, given)
        assert str(refused.value) == (
            f"{cross_encoder_folder} is a cross-encoder by its config.json (it scores pairs of"
            " texts): expected a bi-encoder (--pooling and --similarity use it as one all the same)"
        )
    given = Given(pooling="cls", similarity="dot")
    assert open_model(cross_encoder_folder, given).representation.pooling == "cls"
    opened = open_model(cross_encoder_folder, plain=AS_IN_PAPERS)
    assert opened.representation.similarity == "dot"
    assert is_cross_encoder(open_network(cross_encoder_folder).config)


VARIATIONS = {
    "in a subfolder": MINILM._replace(in_subfolder=True),
    "of older files": MINILM._replace(
        modules=(MEAN, dense(48, TANH), dense(16, IDENTITY, 48, bias=False)), weights="bin"
    ),
    "by flags": MINILM._replace(modules=(pooling("other"),)),
    "in bfloat16": MINILM._replace(weights="bfloat16"),
    "vocab.txt alone": MINILM._replace(lacks=("tokenizer.json",)),
    "lowered": MINILM._replace(changes={"sentence_bert_config.json": {"do_lower_case": True}}),
    "its passages' prompt": MINILM._replace(  # under a name that the library overlooks
        changes={"config_sentence_transformers.json": {"prompts": {"passage": "passage: "}}}
    ),
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_what_is_resolved_is_read_alike_with_pytorch_and_without(name, tmp_path, monkeypatch):
    folder = write_folder(VARIATIONS[name], tmp_path / "model")
    expected = open_model(folder, Given(query_prompt="query: "))
    out = tmp_path / "out"
    words = ["resolve", f"--model={folder}", f"--out={out}", "--query_prompt=query: "]
    assert main(words) == 0
    vectors = load(expected).encode_query(list(QUERIES))
    of_passages = load(expected).encode_document(list(PASSAGES))
    library = SentenceTransformer(str(out), model_kwargs={"dtype": "float32"})
    for model in (load(open_model(out)), library):  # the library's have length 1 where published
        found = model.encode_query(list(QUERIES), normalize_embeddings=True)
        np.testing.assert_allclose(found, vectors, atol=1e-6)
        found = model.encode_document(list(PASSAGES), normalize_embeddings=True)
        np.testing.assert_allclose(found, of_passages, atol=1e-6)
    _, params = load_vectors(expected)
    monkeypatch.setattr(model_module, "has_pytorch", lambda: False)
    again = open_model(out)
    assert again.representation.is_cosine
    assert again.representation.reading_as(expected.representation) == expected.representation
    prompts, given = (dict(model.representation.prompts) for model in (again, expected))
    assert query_prompt(prompts) == query_prompt(given)
    assert passage_prompt(prompts) == passage_prompt(given)
    assert again.lowers_case == expected.lowers_case
    _, found = load_vectors(again)
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (params, found)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_needs_to_be_resolved_is_one_line(tmp_path, monkeypatch, capsys):
    folder = write_folder(MINILM._replace(in_subfolder=True), tmp_path / "model")
    monkeypatch.setattr(model_module, "has_pytorch", lambda: False)
    said = "is written in another form than sentence_bert_config.json in the folder itself: without"
    said += " PyTorch, expected a folder that `cocondenser resolve` wrote on a machine with PyTorch"
    with pytest.raises(UserError, match=f"^{folder} {said}$"):
        load_folder(folder)
    largest = write_folder(MINILM._replace(modules=(pooling("max"), UNIT)), tmp_path / "largest")
    monkeypatch.undo()
    assert main(["resolve", f"--model={largest}", f"--out={tmp_path}/out"]) == 2
    assert "pools by max; expected cls or mean" in capsys.readouterr().err
    with pytest.raises(UserError, match="already exists"):
        resolve_model(open_model(folder), largest)
    assert not (tmp_path / "out").exists()


def test_what_only_pytorch_reads_is_encoded_and_not_resolved(tmp_path, texts, capsys):
    changes = {"sentence_bert_config.json": {"config_args": {"hidden_act": "relu"}}}
    folder = write_folder(MINILM._replace(changes=changes), tmp_path / "model")
    assert main(["resolve", f"--model={folder}", f"--out={tmp_path}/out"]) == 2
    said = f"cocondenser: {folder}: has settings in sentence_bert_config.json that only PyTorch"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    with pytest.raises(UserError, match="that only PyTorch reads"):
        load_folder(folder, representation=Representation("cls"), init_head_seed=0)
    vectors = load(open_model(folder)).encode_document(list(PASSAGES))
    library = SentenceTransformer(str(folder), model_kwargs={"dtype": "float32"})
    np.testing.assert_allclose(vectors, library.encode_document(list(PASSAGES)), atol=1e-6)


@pytest.mark.parametrize("in_subfolder", [False, True])
def test_settings_are_those_beside_the_network(tmp_path, in_subfolder):
    folder = write_folder(MINILM._replace(in_subfolder=in_subfolder), tmp_path / "model")
    assert open_model(folder).network.read_otherwise == ()
    network = open_model(folder).network.path
    change(network / "sentence_bert_config.json", model_args={"variant": "fp16"})
    assert open_model(folder).network.read_otherwise == ("model_args: variant",)


def test_a_broken_model_is_not_resolved(tmp_path, capsys):
    folder = write_folder(MINILM, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    foreign = {f"model.{key}": value for key, value in weights.items()}
    save_file(foreign, folder / "model.safetensors")
    assert main(["resolve", f"--model={folder}", f"--out={tmp_path}/out"]) == 2
    assert "tensors are missing" in capsys.readouterr().err
    save_file({**weights, name: weights[name] * math.nan}, folder / "model.safetensors")
    assert main(["resolve", f"--model={folder}", f"--out={tmp_path}/out"]) == 2
    assert "1 tensors are not finite" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.effect("resolve --model", "resolve --out", "resolve --pooling", "resolve --similarity")
@pytest.mark.effect("resolve --query_prompt", "resolve --passage_prompt")
@pytest.mark.effect("resolve --title_separator", "resolve --dimensions")
def test_what_is_given_to_resolve_is_what_the_folder_says(model_folder, tmp_path):
    given = ["--pooling=cls", "--similarity=dot", "--query_prompt=a ", "--passage_prompt=b "]
    given += ["--title_separator=|", "--dimensions=8"]
    out = tmp_path / "resolved"
    assert main(["resolve", f"--model={model_folder}", f"--out={out}", *given]) == 0
    found = open_model(out).representation
    assert (found.pooling, found.similarity) == ("cls", "dot")
    prompts = dict(found.prompts)
    assert (prompts["query"], prompts["document"], prompts["title_separator"]) == ("a ", "b ", "|")
    assert found.sizes == (8,)
