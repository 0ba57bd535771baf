"""Settings that several tasks share: whatever is trained, each of them has its effect."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cocondenser_jax.configs import cross_encoder
from cocondenser_jax.configs import finetune as retriever
from cocondenser_jax.files.runs import flatten
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_queries
from cocondenser_jax.retriever.data.trec import write_run
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.models import load_retriever
from cocondenser_jax.retriever.search.opening import open_index
from cocondenser_jax.retriever.search.search import search_run
from cocondenser_jax.retriever.train import trainer
from cocondenser_jax.retriever.train.tasks import finetune
from cocondenser_jax.retriever.train.training_data import sample
from tests.retrieval_data import read_vectors
from tests.world import change_settings, read_metrics, write_qrels

CONFIGS = {"retriever": retriever, "cross_encoder": cross_encoder}
UNUSUAL = {
    "data.batch_size": 6,
    "train.epochs": 2,
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_ratio": 0.25,
    "optimizer.weight_decay": 0.3,
    "train.precision": "bfloat16",
    "seed": 7,
    "log_every": 3,
    "tracker": "tensorboard",
    "checkpoint.every": 5,
    "data.loader_workers": 1,
}
# Of one task alone; 12 tokens are fewer than most texts have.
OWN = {
    "retriever": {
        "model.query_length": 8,
        "model.passage_length": 12,
        "model.pooling": "mean",
        "model.similarity": "cosine",
        "loss.chunk_size": 4,
    },
    "cross_encoder": {"model.max_length": 12},
}


@pytest.fixture(scope="module")
def data(beir, tmp_path_factory):
    """A folder with a split of its own, whose last query has no positive, and a run."""
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(beir, folder / "data")
    judgments = {f"q{i}": {f"d{i}": int(i < 10)} for i in range(11)}
    write_qrels(folder / "data" / "qrels" / "other.tsv", judgments)
    run = {f"q{i}": {f"d{(i + j) % 60}": 10.0 - j for j in range(10)} for i in range(24)}
    write_run(folder / "run.trec", run)
    return folder


@pytest.fixture
def config(request, model_folder, data):
    task = request.node.callspec.params["task"]
    config = CONFIGS[task].get_config()
    defaults = flatten(config.to_dict())
    change_settings(config, UNUSUAL | OWN[task])
    assert all(value != defaults[name] for name, value in (UNUSUAL | OWN[task]).items())
    change_settings(config, {"model.folder": str(model_folder), "data.folder": str(data / "data")})
    change_settings(
        config, {"data.negatives_run": str(data / "run.trec"), "data.negatives_per_query": 2}
    )
    return config


class Stopped(BaseException):
    """Stands for the end of the process."""


def made_trainer(monkeypatch, config, workdir):
    """Returns the trainer that a run would train with."""
    made = []

    def stop(hf_trainer, *arguments):
        made.append(hf_trainer)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run", stop)
        with pytest.raises(Stopped):
            finetune(config, workdir)
    return made[0]


def negatives(row):
    """Returns the texts of the negatives, in the row of a retriever or of a cross-encoder."""
    found = [text for name, text in row.items() if name.startswith("negative_")]
    return found or row["passages"][1:]


def first_texts(hf_trainer):
    """Returns the numbers of the first batch's rows, in the order of training."""
    sampler = hf_trainer.get_train_dataloader().batch_sampler
    return next(iter(sampler))


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            "retriever",
            marks=[
                pytest.mark.effect(
                    "retriever task", "retriever data.batch_size", "retriever train.epochs"
                ),
                pytest.mark.effect(
                    "retriever optimizer.learning_rate", "retriever optimizer.warmup_ratio"
                ),
                pytest.mark.effect("retriever optimizer.weight_decay", "retriever train.precision"),
                pytest.mark.effect("retriever seed", "retriever log_every"),
                pytest.mark.effect("retriever checkpoint.every", "retriever data.loader_workers"),
                pytest.mark.effect("retriever model.pooling", "retriever model.similarity"),
                pytest.mark.effect("retriever loss.chunk_size", "retriever tracker"),
            ],
        ),
        pytest.param(
            "cross_encoder",
            marks=[
                pytest.mark.effect("cross_encoder task", "cross_encoder data.batch_size"),
                pytest.mark.effect(
                    "cross_encoder train.epochs", "cross_encoder optimizer.learning_rate"
                ),
                pytest.mark.effect(
                    "cross_encoder optimizer.warmup_ratio", "cross_encoder optimizer.weight_decay"
                ),
                pytest.mark.effect("cross_encoder train.precision", "cross_encoder seed"),
                pytest.mark.effect("cross_encoder log_every", "cross_encoder checkpoint.every"),
                pytest.mark.effect("cross_encoder data.loader_workers", "cross_encoder tracker"),
            ],
        ),
    ],
)
def test_the_settings_of_training(config, task, monkeypatch, tmp_path):
    made = made_trainer(monkeypatch, config, tmp_path / "seven")
    assert torch.initial_seed() == 7  # of dropout
    assert made.get_train_dataloader().num_workers == 1
    order = first_texts(made)
    config.seed = 8
    other = first_texts(made_trainer(monkeypatch, config, tmp_path / "eight"))
    assert len(order) == len(other) == 6
    assert order != other

    change_settings(config, {"seed": 7, "data.loader_workers": 0})
    dtypes, n_texts, saved = set(), set(), {}
    write_checksums = trainer.write_checksums

    def watch(module, arguments, output):
        if module.training and isinstance(module, torch.nn.Linear):
            dtypes.add(output.dtype)
        if module.training and isinstance(module, torch.nn.Embedding):
            n_texts.add(len(arguments[0]))

    def read(folder):
        write_checksums(folder)
        groups = torch.load(folder / "optimizer.pt")["param_groups"]
        step = int(folder.name.removeprefix("checkpoint-"))
        saved[step] = {group["weight_decay"] for group in groups}

    monkeypatch.setattr(trainer, "write_checksums", read)
    handle = torch.nn.modules.module.register_module_forward_hook(watch)
    try:
        result = finetune(config, tmp_path / "run")
    finally:
        handle.remove()

    lines = read_metrics(tmp_path / "run")
    # Two epochs of 24 rows; logged where it is saved, too. The first two steps warm up.
    assert [line["step"] for line in lines] == [3, 5, 6, 8]
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([1e-3 * left / 6 for left in (6, 4, 3, 1)])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert shown == [(line["step"], pytest.approx(line["loss"])) for line in lines]
    assert saved == {5: {0.3, 0.0}, 8: {0.3, 0.0}}
    assert torch.bfloat16 in dtypes
    assert set(result) & set(CONFIGS) == {task}
    assert result["pairs"] == 24
    if task == "retriever":  # six queries, six of each passage's column, in chunks of four
        assert {4, 2} <= n_texts <= {4, 2, 1}
        saved = SentenceTransformer(result[task])
        assert (saved[1].pooling_mode, saved.similarity_fn_name) == ("mean", "cosine")


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            "retriever",
            marks=[
                pytest.mark.effect("retriever data.split", "retriever data.train_queries"),
                pytest.mark.effect("retriever data.negatives_run"),
                pytest.mark.effect(
                    "retriever data.negatives_per_query", "retriever data.negatives_depth"
                ),
            ],
        ),
        pytest.param(
            "cross_encoder",
            marks=[
                pytest.mark.effect("cross_encoder data.split", "cross_encoder data.train_queries"),
                pytest.mark.effect("cross_encoder data.negatives_run"),
                pytest.mark.effect("cross_encoder data.negatives_per_query"),
                pytest.mark.effect("cross_encoder data.negatives_depth"),
            ],
        ),
    ],
)
def test_the_settings_of_queries_and_negatives(config, task, data, monkeypatch, tmp_path):
    change_settings(
        config, {"data.split": "other", "data.train_queries": 7, "data.negatives_depth": 4}
    )
    made = made_trainer(monkeypatch, config, tmp_path / "run")
    passages = {passage_text(p): p.id for p in read_corpus(data / "data")}
    queries = {text: name for name, text in read_queries(data / "data").items()}
    rows = made.data_collator.fill(made.train_dataset)
    drawn = [f"q{i}" for i in sample(7, 10, 7, "", "")]
    assert [queries[row["query"]] for row in rows] == drawn
    drawn = []
    for row in rows:
        number = int(queries[row["query"]][1:])
        drawn.append([int(passages[text][1:]) - number for text in negatives(row)])
        assert len(drawn[-1]) == 2
    # The first four of the run, but for the positive.
    assert {place for places in drawn for place in places} == {1, 2, 3}
    seeds = []
    for seed in (7, 8):
        change_settings(config, {"seed": seed, "data.train_queries": 0})
        made = made_trainer(monkeypatch, config, tmp_path / f"seed {seed}")
        assert len(made.train_dataset) == 10
        seeds.append([negatives(row) for row in made.data_collator.fill(made.train_dataset)])
    assert seeds[0] != seeds[1]


PROMPTS = {"query": "abc abc ", "document": "hhh "}
PROMPT_SETTINGS = {
    "model.query_prompt": PROMPTS["query"],
    "model.passage_prompt": PROMPTS["document"],
}


@pytest.mark.effect("retriever model.query_prompt", "retriever model.passage_prompt")
@pytest.mark.parametrize("task", ["retriever"])
@pytest.mark.parametrize(
    ("of_folder", "settings"), [(PROMPTS, {}), (PROMPTS | {"query": "cccc "}, PROMPT_SETTINGS)]
)
def test_prompts_stand_before_the_texts(
    config, task, model_folder, of_folder, settings, monkeypatch, tmp_path
):
    model, prompts = load_retriever(model_folder), PROMPTS
    model.prompts.update(of_folder)
    model.save_pretrained(str(tmp_path / "model"))
    change_settings(
        config,
        {
            "model.folder": str(tmp_path / "model"),
            "data.loader_workers": 0,
            "model.passage_length": 30,
            **settings,
        },
    )
    config.model.pooling = ""  # the folder's own modules
    batch = next(iter(made_trainer(monkeypatch, config, tmp_path / "run").get_train_dataloader()))
    passages = dict.fromkeys(("positive", "negative_1", "negative_2"), "document")
    for column, task_name in {"query": "query", **passages}.items():
        prompt = model.tokenizer(prompts[task_name])["input_ids"][:-1]
        begins = batch[f"{column}_input_ids"][:, : len(prompt)].tolist()
        assert begins == [prompt] * 6


@pytest.mark.parametrize("task", ["retriever"])
@pytest.mark.parametrize("two_towers", [False, True])
def test_prompts_of_the_settings_are_used_wherever_the_retriever_is(
    config, task, data, two_towers, tmp_path
):
    change_settings(
        config,
        {
            "data.loader_workers": 0,
            "train.max_steps": 1,
            "model.pooling": "",
            "train.precision": "float32",
        },
    )
    change_settings(config, {"model.two_towers": two_towers, **PROMPT_SETTINGS})
    finetune(config, tmp_path / "run")
    retriever = tmp_path / "run" / "retriever"
    saved = json.loads((retriever / "config_sentence_transformers.json").read_text())
    assert saved["prompts"] == PROMPTS
    encode_corpus(Encoding(open_model(retriever)), data / "data", tmp_path / "embeddings")
    model = SentenceTransformer(str(retriever), device="cpu")
    texts = [PROMPTS["document"] + passage_text(p) for p in read_corpus(data / "data")]
    expected_NxD = model.encode(texts, prompt="", task="document")
    found_NxD = read_vectors(tmp_path / "embeddings")
    np.testing.assert_allclose(found_NxD, expected_NxD, atol=1e-5)
    queries = read_queries(data / "data")
    run = search_run(open_index(tmp_path / "embeddings", open_model(retriever)), queries, depth=1)
    texts = [PROMPTS["query"] + query for query in queries.values()]
    scores_QxN = model.encode(texts, prompt="", task="query") @ expected_NxD.T
    best = [score for results in run.values() for score in results.values()]
    np.testing.assert_allclose(best, scores_QxN.max(axis=1), rtol=1e-4)


@pytest.mark.effect("retriever model.title_separator")
@pytest.mark.parametrize("task", ["retriever"])
@pytest.mark.parametrize("two_towers", [False, True])
def test_a_title_and_its_text_are_a_pair_of_texts_to_the_network(
    config, task, data, two_towers, monkeypatch, tmp_path
):
    """DPR encodes them as the tokenizer's pair of texts, which is what [SEP] between them makes."""
    folder = tmp_path / "titled"
    shutil.copytree(data / "data", folder)
    titled = [p._replace(title=f"abc {p.text[:2]}") for p in read_corpus(folder)]
    lines = [json.dumps({"_id": p.id, "title": p.title, "text": p.text}) for p in titled]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    change_settings(
        config,
        {
            "data.folder": str(folder),
            "data.loader_workers": 0,
            "model.title_separator": "[SEP]",
            "model.two_towers": two_towers,
            "model.passage_length": 30,
            "model.pooling": "",
            "train.max_steps": 1,
            "train.precision": "float32",
        },
    )
    made = made_trainer(monkeypatch, config, tmp_path / "batch")
    tokenizer = made.model.tokenizer
    pairs = {
        tuple(tokenizer(p.title, p.text, truncation="only_second", max_length=30)["input_ids"])
        for p in titled
    }
    batch = next(iter(made.get_train_dataloader()))
    for ids_L in batch["positive_input_ids"].tolist():
        assert tuple(i for i in ids_L if i != tokenizer.pad_token_id) in pairs
    finetune(config, tmp_path / "run")
    retriever = tmp_path / "run" / "retriever"
    encode_corpus(Encoding(open_model(retriever)), folder, tmp_path / "embeddings")
    model = SentenceTransformer(str(retriever), device="cpu")
    texts = [f"{p.title}[SEP]{p.text}" for p in titled]
    expected_NxD = model.encode_document(texts)
    np.testing.assert_allclose(read_vectors(tmp_path / "embeddings"), expected_NxD, atol=1e-5)
    spaced_NxD = model.encode_document([passage_text(p) for p in titled])
    assert abs(spaced_NxD - expected_NxD).max() > 1e-3


def stored_as(folder, copy, dtype, widened):
    """Copies a model whose weights are rounded to 16 bits, and stored in these or in 32."""
    shutil.copytree(folder, copy)
    path = copy / "model.safetensors"
    rounded = {name: value.to(dtype) for name, value in load_file(path).items()}
    if widened:
        rounded = {name: value.float() for name, value in rounded.items()}
    save_file(rounded, path, {"format": "pt"})
    settings = json.loads((copy / "config.json").read_text())
    settings["dtype"] = "float32" if widened else str(dtype).removeprefix("torch.")
    (copy / "config.json").write_text(json.dumps(settings))
    return copy


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("task", CONFIGS)
def test_weights_of_16_bits_are_trained_and_saved_in_float32(
    task, config, model_folder, tmp_path, dtype
):
    config.train.precision = "float32"
    config.train.max_steps = 2
    config.optimizer.learning_rate = 5e-6  # of which weights of 16 bits would lose most
    trained = []
    for widened in (True, False):
        name = f"widened-{widened}"
        folder = stored_as(model_folder, tmp_path / f"model-{name}", dtype, widened)
        config.model.folder = str(folder)
        finetune(config, tmp_path / name)
        saved = {}
        for path in sorted((tmp_path / name / task).rglob("*.safetensors")):
            saved |= load_file(path)
        assert {value.dtype for value in saved.values()} == {torch.float32}
        trained.append(saved)
    of_32, of_16 = trained
    assert of_16.keys() == of_32.keys()
    for name, value in of_16.items():
        assert torch.equal(value, of_32[name]), name
