"""What a run may start from: the head that is there, or the one that the settings ask for."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from cocondenser_jax.configs import default
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import write_json
from cocondenser_jax.model.condenser import init_params
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pretrain import warm_start
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.pretrain.experiment import VectorSettings, resolve
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.warm_start import first_model, load_warm_start, planned_network
from cocondenser_jax.representation import AS_IN_PAPERS, SPELLINGS, Representation
from tests.lines import whole
from tests.world import model_of, write_retriever, write_run, write_tokenizer

pytestmark = pytest.mark.usefixtures("one_length")

TEXTS = [f"{i} early layers know the words, late layers know the text. " * 8 for i in range(2)]


@pytest.fixture
def folder(research_folders, tmp_path):
    """A BERT with a head of two layers that does not say what it reads."""
    folder = Path(shutil.copytree(research_folders["bert"], tmp_path / "bert"))
    return write_tokenizer(folder, TEXTS)


@pytest.fixture
def store(folder, tmp_path):
    """A store made with the tokenizer of the BERT."""
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    build_store(str(tmp_path / "text.txt"), str(folder), tmp_path / "store", max_length=16)
    return tmp_path / "store"


def settings(**changes):
    """What `config.model` says; the BERT has two layers, and a head of two."""
    sizes = default.get_config().model.unlock()
    sizes.update({"skip_from": 1, "late_mlm": False, "hidden_dropout_prob": 0.3, **changes})
    sizes.attention_probs_dropout_prob = 0.4
    return sizes


def opened(start):
    """Returns what `first_model` makes of the name of a start."""
    start = Path(start)
    return start if (start / "run.json").is_file() else open_model(start, plain=AS_IN_PAPERS)


@pytest.fixture(params=["folder", "run"])
def bert(request, folder, tmp_path):
    """The same model in both forms that a run may start from."""
    if request.param == "run":
        write_run(tmp_path / "run", *load_folder(str(folder)), folder)
        return tmp_path / "run"
    return folder


def test_the_head_and_the_sizes_are_the_models(bert, folder):
    config, params = load_warm_start(opened(bert), settings(), None)
    assert (config.hidden_size, config.n_head_layers, config.skip_from) == (32, 2, 1)
    assert (config.late_mlm, config.hidden_dropout_prob) == (False, 0.3)
    assert config.attention_probs_dropout_prob == 0.4
    _, expected = load_folder(str(folder))
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_head_than_the_models_is_refused(bert):
    with pytest.raises(
        UserError,
        match=whole(
            "TMP…: its Condenser head has n_head_layers 2, but config.model.n_head_layers is 3"
        ),
    ):
        load_warm_start(opened(bert), settings(n_head_layers=3), 0)


def test_a_run_says_what_its_head_reads(folder, tmp_path):
    write_run(tmp_path / "run", *load_folder(str(folder)), folder)
    with pytest.raises(
        UserError,
        match=whole("TMP/run: its Condenser head has skip_from 1, but config.model.skip_from is 2"),
    ):
        load_warm_start(opened(tmp_path / "run"), settings(skip_from=2), 0)


def test_a_new_head_is_as_the_settings_say(folder):
    (folder / "model.pt").unlink()
    head = settings(n_head_layers=1, skip_from=2)
    config, params = load_warm_start(opened(folder), head, 0)
    assert (config.n_head_layers, config.skip_from) == (1, 2)
    assert "head_0" in params
    assert "head_1" not in params
    with pytest.raises(
        UserError,
        match=whole(
            "TMP… has no Condenser head; --config.init_head=true starts with a new, random one"
        ),
    ):
        load_warm_start(opened(folder), head, None)


def test_a_head_is_left_out_or_begun_where_the_objective_says_so(bert):
    without = settings(n_head_layers=0, skip_from=0, late_mlm=True)
    config, params = load_warm_start(opened(bert), without, None)
    assert (config.n_head_layers, config.late_mlm) == (0, True)
    assert not any(name.startswith("head") for name in params)
    assert params.keys() >= {"embeddings", "layers_0", "mlm"}


def test_a_run_without_a_head_can_begin_one(bert, store, tmp_path):
    without = settings(n_head_layers=0, skip_from=0, late_mlm=True)
    config, params = load_warm_start(opened(bert), without, None)
    tokenizer_folder = open_store(store).tokenizer_folder
    write_run(tmp_path / "headless", config, params, tokenizer_folder)
    export_folder(params, config, tokenizer_folder, tmp_path / "exported", {})
    assert not (tmp_path / "exported" / "condenser.json").exists()
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "with a Condenser head" not in " ".join(card.split())
    for start in (tmp_path / "headless", tmp_path / "exported"):
        with pytest.raises(
            UserError,
            match=whole(
                "TMP… has no Condenser head; --config.init_head=true starts with a new, random one"
            ),
        ):
            load_warm_start(opened(start), settings(n_head_layers=1), None)
        config, found = load_warm_start(opened(start), settings(n_head_layers=1), 3)
        assert (config.n_head_layers, config.skip_from, config.late_mlm) == (1, 1, False)
        new = init_params(config, 3)
        for name in new:
            expected = new if name == "head_0" else params
            for a, b in zip(
                jax.tree.leaves(found[name]), jax.tree.leaves(expected[name]), strict=True
            ):
                np.testing.assert_array_equal(a, b)


def test_another_vocabulary_is_refused(bert, store, tmp_path):
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(bert)
    write_tokenizer(next(bert.glob("tokenizer"), bert), ["other words"], 40)
    with pytest.raises(UserError, match="made with another tokenizer"):
        train(config, tmp_path / "new")


@pytest.mark.parametrize("is_in_store", [False, True])
def test_a_model_may_know_more_tokens_than_the_store(bert, store, tmp_path, is_in_store):
    """The store's tokens are the model's; a token that the model adds is in none of its texts."""
    file = next(bert.rglob("tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens(["[NEW]"])
    tokenizer.save(str(file))
    if is_in_store:
        store = tmp_path / "new"
        build_store(str(tmp_path / "text.txt"), str(file.parent), store, max_length=16)
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(bert)
    opened = open_store(store)
    first_model(resolve(config, opened), opened)


@pytest.mark.parametrize(
    ("objective", "is_trained"), [("mlm", True), ("cocondenser", True), ("contrastive", False)]
)
def test_a_random_mlm_projection_is_warned_of_where_it_is_trained(
    folder, store, tmp_path, caplog, objective, is_trained
):
    start = write_tokenizer(write_retriever(folder, tmp_path / "start", "mean"), TEXTS)
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(start)
    config.train.objective, config.init_head = objective, True
    opened = open_store(store)
    first_model(resolve(config, opened), opened)
    said = f"{start} has no MLM projection: starting with a random one (seed {config.seed})"
    assert [line for line in caplog.messages if "MLM" in line] == [said] * is_trained


@pytest.mark.effect("pretrain warm_start", "pretrain init_head")
def test_an_experiment_names_what_its_run_starts_from(folder, store):
    (folder / "model.pt").unlink()

    def start(**changes):
        config = default.get_config().unlock()
        config.data.store, config.model = str(store), settings(n_head_layers=1)
        config.update(changes)
        opened = open_store(store)
        return first_model(resolve(config, opened), opened)

    def same(one, other):
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        return [np.array_equal(a, b) for a, b in pairs]

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    drawn, _ = start(model=sizes)
    assert drawn.n_head_layers == 1
    with pytest.raises(
        UserError,
        match=whole(
            "TMP… has no Condenser head; --config.init_head=true starts with a new, random one"
        ),
    ):
        start(warm_start=str(folder))
    _, params = start(warm_start=str(folder), init_head=True, seed=3)
    _, expected = load_folder(str(folder), n_head_layers=1, skip_from=1, init_head_seed=3)
    assert all(same(params, expected))
    _, other = start(warm_start=str(folder), init_head=True, seed=4)
    assert not all(same(params.pop("head_0"), other.pop("head_0")))
    assert all(same(params, other))


def test_the_vector_is_the_models_own_unless_another_is_asked_for(bert):
    config, _ = load_warm_start(opened(bert), settings(), None)
    assert config.representation == SPELLINGS["cls"]
    mean = SPELLINGS["mean-cosine"]
    other, _ = load_warm_start(opened(bert), settings(), None, VectorSettings(mean))
    assert other.representation == mean
    scaled, _ = load_warm_start(opened(bert), settings(), None, VectorSettings(mean, scale=100.0))
    assert scaled.representation == mean._replace(scale=100.0)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("representation", "mean-cosine", SPELLINGS["mean-cosine"]),
        ("scale", 5.0, SPELLINGS["cls"]._replace(scale=5.0)),
        ("sizes", (16, 8), SPELLINGS["cls"]._replace(sizes=(16, 8))),
    ],
)
def test_what_an_experiment_says_of_its_vectors_is_said_of_its_start(
    bert, store, name, value, expected
):
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(bert)
    config.model[name] = value
    tokens = open_store(store)
    started, _ = first_model(resolve(config, tokens), tokens)
    assert started.representation == expected


def test_a_model_whose_vectors_cannot_be_trained_starts_with_those_that_are_asked_for(
    folder, tmp_path
):
    start = opened(write_retriever(folder, tmp_path / "max", "max"))
    without = settings(n_head_layers=0, skip_from=0, late_mlm=True)
    config, _ = load_warm_start(start, without, 0, VectorSettings(SPELLINGS["cls"]))
    assert config.representation == SPELLINGS["cls"]
    with pytest.raises(UserError, match="pools by max; expected cls or mean"):
        load_warm_start(start, without, 0)


def test_dense_layers_and_sizes_are_the_models_own_unless_others_are_asked_for(folder, tmp_path):
    start = write_retriever(
        folder, tmp_path / "dense", "mean", [{"out_features": 24}], truncate_dim=12
    )
    tokenizer = write_tokenizer(tmp_path / "tokenizer", TEXTS)
    without = settings(n_head_layers=0, skip_from=0, late_mlm=True)
    config, params = load_warm_start(opened(start), without, 0)
    assert params["dense_0"]["kernel"].shape == (32, 24)
    assert (config.vector_size, config.representation.sizes) == (12, (12,))
    write_run(tmp_path / "run", config, params, tokenizer)
    for each in (str(start), str(tmp_path / "run")):
        sizes = VectorSettings(sizes=(24, 6))
        several, kept = load_warm_start(opened(each), without, 0, sizes)
        assert (several.vector_size, several.representation.sizes) == (24, (24, 6))
        np.testing.assert_array_equal(kept["dense_0"]["kernel"], params["dense_0"]["kernel"])
        other, left = load_warm_start(opened(each), without, 0, VectorSettings(SPELLINGS["cls"]))
        assert other.representation == SPELLINGS["cls"]
        assert "dense_0" not in left
        np.testing.assert_array_equal(
            left["layers_0"]["query"]["kernel"], params["layers_0"]["query"]["kernel"]
        )
        with pytest.raises(
            UserError,
            match=whole(
                "…the sizes of vectors are 32, 24; expected"
                " whole numbers from 1 to 24, the largest first"
            ),
        ):
            load_warm_start(opened(each), without, 0, VectorSettings(sizes=(32, 24)))


def test_the_scale_of_a_run_goes_on_unless_another_is_asked_for(folder, tmp_path):
    config, params = load_folder(str(folder))
    config = dataclasses.replace(config, representation=Representation("mean", scale=50.0))
    write_run(tmp_path / "run", config, params, folder)
    scales = []
    for scale in (0.0, 100.0):
        loaded, _ = load_warm_start(tmp_path / "run", settings(), None, VectorSettings(scale=scale))
        assert loaded.representation.pooling == "mean"
        scales.append(loaded.representation.score_scale)
    assert scales == [50.0, 100.0]


def with_rows(config, n_rows, folder):
    """Returns settings that start from a run of a model with so many word embeddings."""
    store = open_store(Path(config.data.store))
    model = dataclasses.replace(model_of(config, store), vocab_size=n_rows, pad_token_id=2)
    write_run(folder, model, init_params(model, 0), store.tokenizer_folder)
    config = config.copy_and_resolve_references().unlock()
    config.train.steps = 1
    config.warm_start = str(folder)
    return config


def test_a_model_with_fewer_rows_than_tokens_is_refused(config, tmp_path):
    settings = with_rows(config, 79, tmp_path / "smaller")
    said = "token ids up to 79, but the model has 79 word embeddings: it is another model's"
    with pytest.raises(UserError, match=said):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_with_more_rows_than_tokens_keeps_them(config, tmp_path):
    """And the id that it says is padding's, though the tokenizer, which pads, has another."""
    train(with_rows(config, 96, tmp_path / "padded"), tmp_path / "run")
    model, params, _ = load_run(tmp_path / "run")
    assert (model.vocab_size, model.pad_token_id) == (96, 2)
    assert params["embeddings"]["word"]["embedding"].shape == (96, 16)


def test_a_model_that_reads_capitals_needs_a_store_of_such_texts(folder, store, tmp_path):
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(folder)
    opened = open_store(store)
    first_model(resolve(config, opened), opened)
    path = folder / "tokenizer_config.json"
    rules = json.loads(path.read_text())
    assert rules["do_lower_case"]
    write_json(path, rules | {"do_lower_case": False})
    with pytest.raises(UserError, match="training would see other tokens than the search"):
        first_model(resolve(config, opened), opened)


def test_what_stands_before_a_text_is_read_alike_too(folder, store, monkeypatch):
    """Training reads a special token in a prompt letter by letter."""
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(folder)
    experiment, tokens = resolve(config, open_store(store)), open_store(store)
    for kind in ("query", "document"):
        prompts = ((kind, "[MASK] early "),)
        start = opened(folder)
        start = start._replace(representation=start.representation._replace(prompts=prompts))
        monkeypatch.setattr(warm_start, "open_model", lambda *_, start=start, **__: start)
        with pytest.raises(UserError, match=r"reads '\[MASK\] early A Bad Café' as"):
            first_model(experiment, tokens)


def test_the_network_of_a_plan_is_that_of_the_warm_start(bert, store, tmp_path, caplog):
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(bert)
    experiment = resolve(config, open_store(store))
    with caplog.at_level("INFO"):
        assert planned_network(experiment) == first_model(experiment, open_store(store))[0]
    assert planned_network(experiment).hidden_size == 32
    assert not caplog.text
    absent = experiment._replace(warm_start=str(tmp_path / "absent"))
    with caplog.at_level("INFO"):
        assert planned_network(absent).hidden_size == 768
    said = "is not a folder here: planned for 12 layers of 768, as config.model says"
    assert f"the warm start {tmp_path}/absent {said}" in caplog.text
    caplog.clear()
    assert planned_network(experiment._replace(warm_start="")).num_hidden_layers == 12
    assert not caplog.text


def test_the_search_lowers_texts_where_the_model_does(folder, store, monkeypatch):
    config = default.get_config().unlock()
    config.data.store, config.model, config.warm_start = str(store), settings(), str(folder)
    experiment, tokens = resolve(config, open_store(store)), open_store(store)
    model, lowers = opened(folder), []

    def search_reader(tokenizer, *, lowers_case):
        lowers.append(lowers_case)
        return read(tokenizer, lowers_case=lowers_case)

    read = warm_start.search_reader
    monkeypatch.setattr(warm_start, "search_reader", search_reader)
    for lowers_case in (False, True):
        start = model._replace(lowers_case=lowers_case)
        monkeypatch.setattr(warm_start, "open_model", lambda *_, start=start, **__: start)
        first_model(experiment, tokens)
    assert lowers == [False, True]
