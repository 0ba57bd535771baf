"""What a toolkit gets from an exported folder."""

import dataclasses
import json
import re
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.bert.modeling_bert import BertLayer

from cocondenser_jax.convert import to_torch
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.resolve import resolve_model
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.representation import AS_IN_PAPERS, Dense, Representation
from tests.lines import whole
from tests.world import encode_in_flax


@pytest.fixture
def exported(research_folder, tmp_path):
    """The folder of a converted model, with the Flax side of it."""
    config, params = load_folder(str(research_folder), skip_from=1)
    config = dataclasses.replace(config, late_mlm=False)
    out = tmp_path / "exported"
    export_folder(params, config, research_folder, out, {"steps": 10})
    return out, config, params


def test_masked_lm_gets_the_tensors_that_were_read(exported, research_folder):
    out, _, _ = exported
    model, report = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    original = AutoModelForMaskedLM.from_pretrained(research_folder).state_dict()

    assert not any(report.values()), report
    assert model.dtype == torch.float32
    assert model.state_dict().keys() == original.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, original[name]), name
    assert type(model) is type(AutoModelForMaskedLM.from_pretrained(research_folder))


def test_what_is_resolved_has_the_head_and_all_files_of_the_tokenizer(exported, tmp_path):
    out, config, params = exported
    names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
    for name in names:
        if not (out / name).exists():
            (out / name).write_text("{}")
    opened = open_model(out)
    unlimited = opened._replace(representation=opened.representation._replace(max_length=None))
    resolve_model(unlimited, tmp_path / "unlimited")
    assert open_model(tmp_path / "unlimited").representation.max_length == config.max_length
    resolve_model(opened, tmp_path / "resolved")
    for name in names:
        assert (tmp_path / "resolved" / name).read_bytes() == (out / name).read_bytes()
    found, arrays = load_folder(tmp_path / "resolved")
    assert found == config
    jax.tree.map(np.testing.assert_array_equal, arrays, params)
    said = f"{out}/new lies in the folder of the model, {out}: choose another place"
    with pytest.raises(UserError, match=whole(said)):
        resolve_model(opened, out / "new")


def test_a_full_disk_ends_in_one_line(exported, tmp_path, small_disk):
    out, config, params = exported
    export_folder(params, config, out, tmp_path / "whole", {})
    small_disk((tmp_path / "whole" / "model.safetensors").stat().st_size - 1)
    with pytest.raises(UserError, match=f"cannot write {tmp_path}/full: .*File too large"):
        export_folder(params, config, out, tmp_path / "full", {})
    small_disk(resource.RLIM_INFINITY)
    assert not list(tmp_path.glob("full*"))


def test_auto_model_lacks_nothing_but_the_pooler(exported):
    _, report = AutoModel.from_pretrained(exported[0], output_loading_info=True)
    assert {name.split(".")[0] for name in report["missing_keys"]} <= {"pooler"}
    projections = {"cls", "lm_head", "head", "decoder"}
    assert {name.split(".")[0] for name in report["unexpected_keys"]} <= projections
    assert not report["mismatched_keys"]


def test_no_pooler_is_made_up(exported):
    names = [name for path in exported[0].glob("*.safetensors") for name in load_file(path)]
    assert names
    assert not [name for name in names if "pooler" in name]


def test_sentence_transformers_gives_the_vectors_of_flax(exported, texts):
    out, config, params = exported
    retriever = SentenceTransformer(str(out), device="cpu")
    assert not any("pooler" in name for name, _ in retriever.named_parameters())
    texts = [*texts, " ".join(texts)]
    theirs = retriever.encode(texts)
    batch = AutoTokenizer.from_pretrained(out)(
        texts, padding=True, truncation=True, max_length=config.max_length, return_tensors="np"
    )
    ours = encode_in_flax(config, params, batch["input_ids"], batch["attention_mask"])
    assert batch["attention_mask"].all(axis=1).any()  # truncated ones
    assert not batch["attention_mask"].all()  # and padded ones
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)
    assert retriever.similarity_fn_name == "dot"
    assert retriever.max_seq_length == config.max_length
    np.testing.assert_allclose(
        retriever.similarity(theirs, theirs), theirs @ theirs.T, rtol=1e-5, atol=1e-4
    )


def test_the_head_fits_torch_layers(research_folders, tmp_path):
    source = research_folders["bert"]
    config, params = load_folder(str(source))
    export_folder(params, config, source, tmp_path / "out", {})
    saved = load_file(tmp_path / "out" / "condenser_head.safetensors")
    state = {name: torch.from_numpy(value) for name, value in saved.items()}
    original = torch.load(source / "model.pt", weights_only=True)

    assert state.keys() == original.keys()
    assert all(torch.equal(state[name], original[name]) for name in original)
    lm = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    head = torch.nn.ModuleDict({"c_head": torch.nn.ModuleList([BertLayer(lm.config)] * 2)})
    assert not any(head.load_state_dict(state, strict=True))


def test_transformers_alone_cuts_long_texts_to_what_the_network_can_take(exported, texts):
    out, config, _ = exported
    tokenizer, long = AutoTokenizer.from_pretrained(out), " ".join(texts * 99)
    batch = tokenizer([long], truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape == (1, config.max_length)
    hidden = AutoModel.from_pretrained(out)(**batch).last_hidden_state
    assert hidden.shape == (1, config.max_length, config.hidden_size)
    assert torch.isfinite(hidden).all()


def test_what_the_folder_says_of_itself(exported):
    out, _, _ = exported
    assert json.loads((out / "condenser.json").read_text()) == {
        "n_head_layers": 2,
        "skip_from": 1,
        "late_mlm": False,
    }
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    assert (out / "condenser_head.safetensors").is_file()
    assert not (out / "model.pt").exists()


def test_the_config_names_token_types_where_the_family_has_them(exported):
    out, _, _ = exported
    families = type(AutoConfig.from_pretrained(out))().to_dict()
    config = json.loads((out / "config.json").read_text())
    assert ("type_vocab_size" in config) == ("type_vocab_size" in families)


def test_the_programs_of_the_card_run_and_agree(exported, monkeypatch):
    out, _, _ = exported
    programs = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out.parent)  # the card names the model by its folder
    first, second = ({}, {})
    for program, names in zip(programs, (first, second), strict=True):
        exec(program, names)
    np.testing.assert_allclose(first["vectors"], second["vectors"].detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(first["scores"], first["vectors"] @ first["vectors"].T, rtol=1e-5)


def test_the_card_tells_facts_but_not_where_things_lay(research_folders, flax_bert, tmp_path):
    config, params = flax_bert
    private = [
        "/home/ada/data/wiki.jsonl.xz",
        "~/data/wiki/",
        "https://ada:secret@host.org/wiki.txt?token=secret",
        "a | b\nc",
        "<img onerror=x()>&",
        Path("/home/ada/wiki.txt"),
        ["/home/ada"],
        "word\n",
    ]
    told = {"steps": 10, "rate": 1e-4, "dtype": "bfloat16", "jax": "0.10.2", "late": True}
    facts = {"data": {f"x{i}": fact for i, fact in enumerate(private)}, "config": told, "empty": ""}
    export_folder(params, config, research_folders["bert"], tmp_path / "out", facts)
    card = (tmp_path / "out" / "README.md").read_text()
    rows = card[card.index("|---|---|\n") + 10 :].split("\n\n")[0]
    shown = {"steps": "10", "rate": "0.0001", "dtype": "bfloat16", "jax": "0.10.2", "late": "True"}
    assert rows.splitlines() == [f"| config.{name} | {fact} |" for name, fact in shown.items()]
    assert str(tmp_path) not in card


HEADLESS = {"n_head_layers": 0, "skip_from": 0, "late_mlm": True}


@pytest.mark.parametrize(
    ("changes", "representation", "training", "vector", "end"),
    [
        (
            {},
            Representation(),
            "pre-trained with a Condenser head (`n_head_layers` 2, `skip_from` 1, `late_mlm` true)",
            "the last layer at [CLS]",
            "inner product.",
        ),
        (
            HEADLESS,
            Representation("mean", similarity="cosine", sizes=(24, 16, 8), include_prompt=False),
            "pre-trained",
            "the mean of the last layer over its tokens (without [CLS] and the prompt where it has"
            " one), its first 24 numbers (trained to be used shorter, too: 16, 8)",
            "cosine.",
        ),
        (
            HEADLESS,
            Representation(
                dense=(Dense(32, 16), Dense(16, 8)), normalized=True, prompts=(("query", "q: "),)
            ),
            "pre-trained",
            "the last layer at [CLS], after 2 dense layers",
            'cosine. Queries begin with `"q: "`, passages with `""`.',
        ),
    ],
)
def test_the_card_says_what_the_model_is(flax_bert, changes, representation, training, vector, end):
    config = dataclasses.replace(flax_bert[0], **changes, representation=representation)
    card = to_torch._model_card("anna's <b>\x1b[2J", config, {})
    title, said = card.partition("\n# ")[2].partition("\n\n## ")[0].split("\n\n")
    assert title == r"anna's &lt;b&gt;\x1b[2J"
    assert "prompt=" not in card  # of passages
    assert " ".join(said.split()) == (
        f"A bert encoder (2 layers, hidden size 32), {training} by cocondenser_jax. The vector of a"
        f" text is {vector}; texts are compared by {end} It is a pre-trained encoder: fine-tune it"
        " on queries and relevant passages before judging its search results."
    )


@pytest.fixture(scope="module")
def flax_bert(research_folders):
    return load_folder(str(research_folders["bert"]))


def test_a_folder_that_holds_something_is_left_alone(research_folders, flax_bert, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    config, params = flax_bert
    with pytest.raises(
        UserError, match=whole("TMP already exists: choose a new folder, or remove it first")
    ):
        export_folder(params, config, research_folders["bert"], tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_bert_with_the_unigrams_of_another_family_stays_as_published(research_folders, tmp_path):
    """As multilingual MiniLM and E5-small: spare rows, and a padding that is not the config's."""
    folder = tmp_path / "bert"
    names = ("tokenizer.json", "tokenizer_config.json")
    shutil.copytree(research_folders["bert"], folder, ignore=shutil.ignore_patterns("tokenizer*"))
    for name in names:
        shutil.copy(research_folders["xlm-roberta"] / name, folder)
    config, params = load_folder(str(folder), skip_from=1)
    export_folder(params, config, folder, tmp_path / "out", {})

    models = [AutoModelForMaskedLM.from_pretrained(path) for path in (folder, tmp_path / "out")]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (folder, tmp_path / "out")]
    for model, tokenizer in zip(models, tokenizers, strict=True):
        assert (model.config.vocab_size, model.config.pad_token_id) == (93, 0)
        assert (len(tokenizer), tokenizer.pad_token_id) == (90, 1)
    texts = ["Early layers know the words.", "Search."]
    tokens = [tokenizer(texts, padding=True, return_tensors="pt") for tokenizer in tokenizers]
    assert torch.equal(tokens[0]["input_ids"], tokens[1]["input_ids"])
    logits = [model(**tokens[0]).logits for model in models]
    assert torch.equal(*logits)
    inputs = (np.array(tokens[0][name]) for name in ("input_ids", "attention_mask"))
    ours = encode_in_flax(config, params, *inputs)
    theirs = SentenceTransformer(str(tmp_path / "out")).encode(texts)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)


def test_a_tokenizer_larger_than_the_model_is_refused(
    research_folders, flax_bert, vocabulary_of_200, tmp_path
):
    config, params = flax_bert
    with pytest.raises(
        UserError,
        match=whole(
            "the tokenizer of TMP/large has token ids up to 199, but the model has 93 "
            "word embeddings: it is another model's tokenizer"
        ),
    ):
        export_folder(params, config, vocabulary_of_200, tmp_path / "out", {})
    with pytest.raises(UserError, match=f"{tmp_path} holds no tokenizer that loads: "):
        export_folder(params, config, tmp_path, tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == [vocabulary_of_200]


@pytest.fixture
def vocabulary_of_200(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"w{i}" for i in range(195))]))
    return folder


def test_parameters_of_another_shape_are_a_programming_error(research_folders, flax_bert, tmp_path):
    config, params = flax_bert
    one_layer = {k: v for k, v in params.items() if k != "head_1"}
    with pytest.raises(ValueError, match="head_1/query/kernel"):
        export_folder(one_layer, config, research_folders["bert"], tmp_path / "out", {})
    assert not list(tmp_path.iterdir())


def test_modernbert_gets_our_dropout_and_no_special_token_of_the_published_model(
    research_folders, tmp_path
):
    config, params = load_folder(str(research_folders["modernbert"]))
    config = dataclasses.replace(
        config, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.125
    )
    export_folder(params, config, research_folders["modernbert"], tmp_path / "out", {})
    read = AutoConfig.from_pretrained(tmp_path / "out")
    assert (read.embedding_dropout, read.mlp_dropout, read.attention_dropout) == (0.25, 0.25, 0.125)
    special = [getattr(read, f"{role}_token_id") for role in ("bos", "eos", "cls", "sep", "pad")]
    assert special == [None, None, None, None, config.pad_token_id]


def test_a_head_that_no_file_describes_is_resolved_too(research_folders, tmp_path):
    """As in the published research checkpoints."""
    folder = research_folders["bert"]
    assert not (folder / "condenser.json").exists()
    resolve_model(open_model(folder, plain=AS_IN_PAPERS), tmp_path / "out")
    assert not (tmp_path / "out" / "condenser.json").exists()
    config, arrays = load_folder(tmp_path / "out", skip_from=1)
    expected, params = load_folder(folder, skip_from=1)
    assert config == expected
    jax.tree.map(np.testing.assert_array_equal, arrays, params)
