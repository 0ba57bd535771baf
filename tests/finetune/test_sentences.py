"""Fine-tuning of sentence encoders: the losses, samples, and the commands."""

import copy
import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from cocondenser_jax.cli import main
from cocondenser_jax.configs import sentences as sentences_config
from cocondenser_jax.errors import UserError
from cocondenser_jax.finetune import sentences, trainer
from cocondenser_jax.finetune.sentences import _read_rows
from cocondenser_jax.finetune.tasks import finetune
from cocondenser_jax.retrieval.models import load_retriever
from tests.world import read_metrics


@pytest.fixture
def files(tmp_path, words):
    """Twelve scored pairs, and as many triplets."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 5)) for _ in range(36)]
    pairs = [f"g\tf\t2012\t{i}\t{i % 6}\t{texts[2 * i]}\t{texts[2 * i + 1]}\n" for i in range(12)]
    (tmp_path / "sts.csv").write_text("".join(pairs))
    triplets = [",".join(texts[3 * i : 3 * i + 3]) + "\n" for i in range(12)]
    labels = ("contradiction", "entailment", "neutral")
    nli = [f"train\t{texts[2 * i]}\t{texts[2 * i + 1]}\t{labels[i % 3]}\n" for i in range(12)]
    (tmp_path / "nli.tsv").write_text("split\tsentence1\tsentence2\tlabel\n" + "".join(nli))
    (tmp_path / "triplets.csv").write_text("Sentence1,Sentence2,Sentence3\n" + "".join(triplets))
    return tmp_path, texts


def make_config(argument, folder, data):
    config = sentences_config.get_config(argument)
    config.update(
        model=str(folder), data=str(data), length=12, batch_size=12, max_steps=1, log_every=1
    )
    return config


def first_loss(make_model, argument, data, workdir, **changes):
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = make_config(argument, folder, data)
    config.update(changes)
    result = finetune(config, workdir)
    assert (result["rows"], result["steps"]) == (12, 1)
    model = load_retriever(folder)
    model.max_seq_length = 12
    return result["loss"], model


def cosines(model, texts):
    first, second = (model.encode(texts[i:24:2]) for i in (0, 1))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / lengths


@pytest.mark.effect("sentences model", "sentences data", "sentences length")
@pytest.mark.effect("sentences max_steps")
def test_pairs_are_taught_their_cosine(make_model, files):
    root, texts = files
    loss, model = first_loss(make_model, "stsb", root / "sts.csv", root / "run")
    expected = np.mean((cosines(model, texts) - np.arange(12) % 6 / 5) ** 2)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.effect("sentences loss")
def test_triplets_are_taught_their_distances(make_model, files):
    root, texts = files
    data = root / "triplets.csv"
    loss, model = first_loss(make_model, "triplets", data, root / "run")
    anchors, positives, negatives = (model.encode(texts[i::3]) for i in range(3))
    near, far = (np.linalg.norm(anchors - other, axis=1) for other in (positives, negatives))
    assert loss == pytest.approx(np.maximum(0, near - far + 5).mean(), rel=1e-4)


@pytest.mark.effect("sentences loss")
def test_pairs_are_taught_their_label_and_then_their_cosine(make_model, files, monkeypatch):
    root, texts = files
    classifiers = []

    class Spy(sentences.SoftmaxLoss):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            classifiers.append(copy.deepcopy(self.classifier))

    monkeypatch.setattr(sentences, "SoftmaxLoss", Spy)
    loss, model = first_loss(make_model, "nli", root / "nli.tsv", root / "run")
    u, v = (torch.tensor(model.encode(texts[i:24:2])) for i in (0, 1))
    (classifier,) = classifiers
    logits = classifier(torch.cat([u, v, (u - v).abs()], 1))
    expected = -logits.log_softmax(1)[range(12), np.arange(12) % 3].mean()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    torch.manual_seed(42)
    assert torch.equal(classifier.weight, torch.nn.Linear(3 * 32, 3).weight)
    config = make_config("stsb", root / "run" / "encoder", root / "sts.csv")
    assert finetune(config, root / "sts")["steps"] == 1


def test_a_classifier_is_resumed_too(model_folder, files, monkeypatch):
    root, _ = files
    config = make_config("nli", model_folder, root / "nli.tsv")
    config.update(batch_size=4, max_steps=6, checkpoint_every=2, learning_rate=1e-2)
    losses = []
    for run in ("whole", "halves"):
        if run == "halves":
            with monkeypatch.context() as patch:
                patch.setattr(trainer, "new_folder", None)
                patch.setattr(trainer._Metrics, "on_save", stop_after(2), raising=False)
                with pytest.raises(KeyboardInterrupt):
                    finetune(config, root / run)
        finetune(config, root / run)
        losses.append([line["loss"] for line in read_metrics(root / run)])
    assert losses[0] == losses[1]


def stop_after(step):
    def stop(self, args, state, control, **kwargs):
        if state.global_step > step:
            raise KeyboardInterrupt

    return stop


def test_samples_grow_with_their_size(files):
    root, _ = files
    samples = [set(_read_rows(root / "sts.csv", "cosine", n, 42)["first"]) for n in (3, 6, 0)]
    assert [len(sample) for sample in samples] == [3, 6, 12]
    assert samples[0] < samples[1] < samples[2]
    with pytest.raises(UserError, match="train_rows is 13: expected 1 to 12"):
        _read_rows(root / "sts.csv", "cosine", 13, 42)


@pytest.mark.effect("evaluate sentences --model", "evaluate sentences --sts")
@pytest.mark.effect("evaluate sentences --triplets", "evaluate sentences --pooling")
@pytest.mark.effect("evaluate sentences --json_out")
def test_the_commands_train_and_evaluate_an_encoder(model_folder, files, capsys):
    root, texts = files
    flags = [f"--config.model={model_folder}", f"--config.data={root / 'sts.csv'}"]
    flags += ["--config.length=12", "--config.batch_size=4", f"--workdir={root / 'run'}"]
    assert main(["finetune", f"--config={sentences_config.__file__}:stsb", *flags]) == 0
    encoder = str(root / "run" / "encoder")
    loaded = SentenceTransformer(encoder)
    assert loaded.max_seq_length == 12
    assert loaded[1].pooling_mode == "cls"

    figures = root / "figures.json"
    command = ["evaluate", "sentences", f"--model={encoder}", f"--json_out={figures}"]
    assert main([*command, f"--sts={root / 'sts.csv'}"]) == 0
    assert json.loads(figures.read_text()).keys() == {"Spearman", "Pearson"}
    assert main([*command, f"--triplets={root / 'triplets.csv'}"]) == 0
    vectors = [loaded.encode(texts[i::3]) for i in range(3)]
    near, far = (np.linalg.norm(vectors[0] - other, axis=1) for other in vectors[1:])
    assert json.loads(figures.read_text()) == {"Accuracy": (near < far).mean()}
    assert main([*command, f"--sts={root / 'sts.csv'}", "--pooling=mean"]) == 0
    model = load_retriever(root / "run" / "encoder", pooling="mean")
    pearson = 100 * np.corrcoef(cosines(model, texts), np.arange(12) % 6)[0, 1]
    assert json.loads(figures.read_text())["Pearson"] == pytest.approx(pearson, abs=0.01)

    capsys.readouterr()
    for wrong, message in (
        (command, "give one of --sts and --triplets"),
        ([*command, "--sts=x", "--triplets=y"], "give one of --sts and --triplets"),
        ([*command, "--sts=x", "--metrics=RR"], "No such option '--metrics'"),
        ([*command, "--sts=x", "--pooling=max"], "'max' is not one of 'cls', 'mean'"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "/nowhere"}, "cannot read /nowhere"),
        ({"batch_size": 13}, "has 12 rows to train on: too few for one step of batch_size=13"),
        ({"length": 65}, "query_length=65: expected 3 to 64"),
    ],
)
def test_bad_settings_leave_nothing(model_folder, files, change, message):
    root, _ = files
    config = make_config("stsb", model_folder, root / "sts.csv")
    config.update(change)
    with pytest.raises(UserError, match=message):
        finetune(config, root / "run")
    assert not (root / "run").exists()
