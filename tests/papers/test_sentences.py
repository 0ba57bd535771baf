"""Sentence encoders: what is read and refused, the losses and metrics, and the commands."""

import copy
import gzip
import json

import numpy as np
import pytest
import torch
from scipy import stats
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

from cocondenser_jax.errors import UserError
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from papers import sentences
from papers.sentences import TASKS

LABELS = ("contradiction", "entailment", "neutral")
NLI_HEAD = "split\tdataset\tfilename\tsentence1\tsentence2\tlabel"


def test_pairs_are_read_with_quotes_and_further_columns(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text(
        'news\tMSR\t2012\t1\t2.500\tHe said "no.\tHe "said" no.\n'
        "\n"
        "news\tMSR\t2012\t2\t5\tOne.\tTwo.\tlicence\tmore\n"
    )
    assert sentences.read_stsb(path) == [
        {"sentence1": 'He said "no.', "sentence2": 'He "said" no.', "score": 0.5},
        {"sentence1": "One.", "sentence2": "Two.", "score": 1.0},
    ]


def test_triplets_are_read_by_the_names_of_their_columns(tmp_path):
    path = tmp_path / "triplets.csv"
    path.write_text(
        'Article,Sentence1,Sentence2,Sentence3\nx,"One, two.","He said ""no"".",Three.\n'
    )
    expected = {"Sentence1": "One, two.", "Sentence2": 'He said "no".', "Sentence3": "Three."}
    assert sentences.read_sections(path) == [expected]


def test_labeled_pairs_are_those_of_the_training_split(tmp_path):
    rows = [
        f"train\tAllNLI\tsnli\t{text}\tOne.\t{label}"
        for text, label in (('He said "no.', "neutral"), ("Two.", "contradiction"))
    ]
    rows += ["dev\tAllNLI\tsnli\tThree.\tFour.\tentailment", "test\tAllNLI\tm\tA.\tB.\tneutral"]
    path = tmp_path / "AllNLI.tsv.gz"
    path.write_bytes(gzip.compress("\n".join([NLI_HEAD, *rows, ""]).encode()))
    assert [tuple(row.values()) for row in sentences.read_nli(path)] == [
        ('He said "no.', "One.", 2),
        ("Two.", "One.", 0),
    ]


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("stsb", "a\tb\tc\td\t1.0\tone", ":1: expected sentence1, sentence2"),
        ("stsb", "a\tb\tc\td\t5.1\tone\ttwo", ":1: expected a score of 0 to 5, not '5.1'"),
        ("stsb", "a\tb\tc\td\thigh\tone\ttwo", ":1: expected a score of 0 to 5, not 'high'"),
        ("stsb", "a\tb\tc\td\tnan\tone\ttwo", ":1: expected a score of 0 to 5, not 'nan'"),
        ("stsb", "", "holds no rows"),
        ("sections", "Sentence1,Sentence2\na,b\n", ":2: expected Sentence1, Sentence2, Sentence3"),
        ("sections", 'Sentence1,Sentence2,Sentence3\na,"b,c\n', "unexpected end of data"),
        ("nli", f"{NLI_HEAD}\ntrain\ta\tb\tone\ttwo\n", ":2: expected split, sentence1,"),
        ("nli", f"{NLI_HEAD}\ntrain\ta\tb\tone\ttwo\tmaybe\n", ":2: expected one of contradic"),
        ("nli", NLI_HEAD, "holds no rows"),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, task, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        sentences.read(TASKS[task], path)


@pytest.fixture
def files(tmp_path, words):
    """A file of 16 rows for each task, and their texts."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 5)) for _ in range(48)]
    pairs = list(zip(texts[0:32:2], texts[1:32:2], strict=True))
    stsb = [f"g\tf\t2012\t{i}\t{i % 6}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs)]
    (tmp_path / "stsb").write_text("".join(stsb))
    nli = [f"train\td\tf\t{a}\t{b}\t{LABELS[i % 3]}\n" for i, (a, b) in enumerate(pairs)]
    (tmp_path / "nli").write_text("".join([f"{NLI_HEAD}\n", *nli]))
    triplets = [",".join(texts[3 * i : 3 * i + 3]) + "\n" for i in range(16)]
    (tmp_path / "sections").write_text("".join(["Sentence1,Sentence2,Sentence3\n", *triplets]))
    return tmp_path, texts


def first_loss(monkeypatch, make_model, files, task):
    """Trains one step; returns its loss, and the model before it."""
    folder = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    compute = SentenceTransformerTrainer.compute_loss
    losses = []

    def note(self, *arguments, **options):
        loss = compute(self, *arguments, **options)
        losses.append(loss.item())
        return loss

    monkeypatch.setattr(SentenceTransformerTrainer, "compute_loss", note)
    root, _ = files
    words = [f"--task={task}", f"--model={folder}", f"--data={root / task}", "--length=12"]
    sentences.main(["train", *words, "--epochs=1", f"--out={root / 'encoder'}"])
    (loss,) = losses
    model = load_retriever(folder)
    model.max_seq_length = 12
    return loss, model


def cosines(model, texts):
    first, second = (model.encode(texts[i:32:2]) for i in (0, 1))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / lengths


def test_pairs_are_taught_their_cosine(monkeypatch, make_model, files):
    loss, model = first_loss(monkeypatch, make_model, files, "stsb")
    expected = np.mean((cosines(model, files[1]) - np.arange(16) % 6 / 5) ** 2)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_a_batch_is_not_divided_among_gpus(monkeypatch, model_folder, files, trains_on_two_gpus):
    def note(model, arguments, *_, **__):
        assert (arguments.n_gpu, arguments.train_batch_size) == (1, 16)
        raise KeyboardInterrupt

    monkeypatch.setattr(sentences, "SentenceTransformerTrainer", note)
    words = ["--task=stsb", f"--model={model_folder}", f"--data={files[0] / 'stsb'}"]
    with pytest.raises(KeyboardInterrupt):
        sentences.main(["train", *words, f"--out={files[0] / 'encoder'}"])


def test_triplets_are_taught_their_distances(monkeypatch, make_model, files):
    loss, model = first_loss(monkeypatch, make_model, files, "sections")
    anchors, positives, negatives = (model.encode(files[1][i::3]) for i in range(3))
    near, far = (np.linalg.norm(anchors - other, axis=1) for other in (positives, negatives))
    assert loss == pytest.approx(np.maximum(0, near - far + 5).mean(), rel=1e-4)


def test_pairs_are_taught_their_label(monkeypatch, make_model, files):
    classifiers = []

    class Spy(sentences.SoftmaxLoss):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            classifiers.append(copy.deepcopy(self.classifier))

    monkeypatch.setattr(sentences, "SoftmaxLoss", Spy)
    loss, model = first_loss(monkeypatch, make_model, files, "nli")
    u, v = (torch.tensor(model.encode(files[1][i:32:2])) for i in (0, 1))
    (classifier,) = classifiers
    logits = classifier(torch.cat([u, v, (u - v).abs()], 1))
    expected = -logits.log_softmax(1)[range(16), np.arange(16) % 3].mean()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    torch.manual_seed(42)
    assert torch.equal(classifier.weight, torch.nn.Linear(3 * 32, 3).weight)


def test_samples_grow_with_their_size(files):
    path = files[0] / "stsb"
    samples = [set(sentences.read(TASKS["stsb"], path, n)["sentence1"]) for n in (3, 6, 0)]
    assert [len(sample) for sample in samples] == [3, 6, 16]
    assert samples[0] < samples[1] < samples[2]
    with pytest.raises(UserError, match="train_rows is 17: expected 1 to 16"):
        sentences.read(TASKS["stsb"], path, 17)


def test_the_commands_train_and_evaluate_an_encoder(model_folder, files):
    root, texts = files
    encoder, figures = root / "encoder", root / "figures.json"
    start = [f"--model={model_folder}", "--pooling=mean", "--epochs=2", "--length=12"]
    sentences.main(["train", "--task=stsb", *start, f"--data={root / 'stsb'}", f"--out={encoder}"])
    loaded = SentenceTransformer(str(encoder))
    assert (loaded.max_seq_length, loaded[1].pooling_mode) == (12, "mean")
    before = load_retriever(model_folder, given=Given("mean", "dot"))
    assert not np.allclose(before.encode(texts[0]), loaded.encode(texts[0]), atol=1e-6)
    assert not (encoder / "README.md").exists()  # it would quote the rows

    command = ["evaluate", f"--model={encoder}", f"--json_out={figures}"]
    sentences.main([*command, "--task=sections", f"--data={root / 'sections'}"])
    vectors = [loaded.encode(texts[i::3]) for i in range(3)]
    near, far = (np.linalg.norm(vectors[0] - other, axis=1) for other in vectors[1:])
    assert json.loads(figures.read_text()) == {"Accuracy": (near < far).mean()}
    # By angle they are others.
    units = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors]
    assert ((units[0] * units[1]).sum(1) > (units[0] * units[2]).sum(1)).mean() != (
        near < far
    ).mean()

    scores = np.arange(16) % 6
    for pooling in ("mean", "cls"):
        found = [*command, f"--pooling={pooling}", "--task=stsb", f"--data={root / 'stsb'}"]
        sentences.main(found)
        of_model = cosines(load_retriever(encoder, given=Given(pooling, "dot")), texts)
        assert json.loads(figures.read_text()) == {
            "Spearman": pytest.approx(100 * stats.spearmanr(of_model, scores).statistic, abs=1e-3),
            "Pearson": pytest.approx(100 * stats.pearsonr(of_model, scores).statistic, abs=1e-3),
        }


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("train --task=stsb --data=/nowhere --out=out", "cannot read /nowhere"),
        ("train --task=stsb --data=stsb --train_rows=8 --out=out", "8 rows to train on"),
        ("train --task=stsb --data=stsb --length=65 --out=out", "expected 3 to 64"),
        ("train --task=stsb --data=stsb --out=.", "already exists"),
        ("evaluate --task=nli --data=nli", "expected stsb or sections"),
        ("evaluate --task=stsb --data=equal", "all pairs have the same score"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_nothing(
    model_folder, files, typed, message, monkeypatch, capsys
):
    root, _ = files
    (root / "equal").write_text("g\tf\t2012\t1\t2.0\ta\tb\n" * 4)
    monkeypatch.chdir(root)
    with pytest.raises(SystemExit, match="2"):
        sentences.main([*typed.split(), f"--model={model_folder}"])
    error = capsys.readouterr().err
    assert message in error
    assert error.splitlines()[-1].startswith("sentences: ")
    assert not (root / "out").exists()


def test_all_are_trained_with_the_rate_and_warm_up_of_the_page(monkeypatch, model_folder, files):
    """And no checkpoint stays beside the encoder."""

    def note(model, arguments, *_, **__):
        assert (arguments.learning_rate, arguments.weight_decay) == (2e-5, 0.01)
        assert arguments.get_warmup_steps(100) == 10
        assert (arguments.num_train_epochs, arguments.save_strategy) == (4, "no")
        raise KeyboardInterrupt

    monkeypatch.setattr(sentences, "SentenceTransformerTrainer", note)
    words = ["--task=stsb", f"--model={model_folder}", f"--data={files[0] / 'stsb'}"]
    with pytest.raises(KeyboardInterrupt):
        sentences.main(["train", *words, f"--out={files[0] / 'encoder'}"])
