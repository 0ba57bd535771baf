"""The probe's numbers against slow transcriptions; what a run does because of them."""

import hashlib
import json
import logging
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from cocondenser_jax.cli import main
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.batches import held_out_batch
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import CHECKSUMS, numbered_folders, write_checksums
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pipelines.pretraining import folder_probes
from cocondenser_jax.pretrain import probe
from cocondenser_jax.pretrain.checkpoint import (
    best_probe,
    checkpoint_writer,
    load_run,
    open_run,
    saved_probes,
)
from cocondenser_jax.pretrain.experiment import resolve, with_texts_as
from cocondenser_jax.pretrain.loop import train
from cocondenser_jax.pretrain.probe import Probe, measure_vectors, open_probes
from cocondenser_jax.representation import Representation
from tests.lines import whole
from tests.pretrain.test_checkpoint import state_of
from tests.world import WORDS, batches_of, model_of, read_metrics, write_beir, write_qrels

pytestmark = pytest.mark.usefixtures("one_length")

N_PASSAGES = 12


def slow_measures(vectors):
    """`measure_vectors` of pairs, one pair of vectors at a time."""
    n = len(vectors)
    unit = [v / math.sqrt(sum(x * x for x in v)) for v in vectors]
    pairs = [(i, j) for i in range(n) for j in range(i)]
    distances = [sum((unit[i] - unit[j]) ** 2) for i, j in pairs]
    ranks = []
    for i in range(n):
        scores = {j: float(np.dot(vectors[i], vectors[j])) for j in range(n) if j != i}
        positive = i + 1 if i % 2 == 0 else i - 1
        ranks.append(1 + sum(scores[j] >= scores[positive] for j in scores if j != positive))
    eigenvalues = np.linalg.eigvalsh(vectors.T @ vectors)
    singular = [math.sqrt(x) for x in eigenvalues if x > 1e-12]
    entropy = -sum(s / sum(singular) * math.log(s / sum(singular)) for s in singular)
    return {
        "positive_mrr": sum(1 / rank for rank in ranks) / n,
        "positive_recall_at_1": sum(rank == 1 for rank in ranks) / n,
        "positive_recall_at_10": sum(rank <= 10 for rank in ranks) / n,
        "alignment": sum(sum((unit[i] - unit[i + 1]) ** 2) for i in range(0, n, 2)) / (n / 2),
        "uniformity": math.log(sum(math.exp(-2 * d) for d in distances) / len(distances)),
        "effective_rank": math.exp(entropy),
        "mean_cosine": sum(float(np.dot(unit[i], unit[j])) for i, j in pairs) / len(pairs),
    }


def test_the_measures_of_vectors():
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(20, 8)), 2, axis=0) + rng.normal(size=(40, 8))  # one at 10
    expected = slow_measures(vectors)
    assert 0.1 < expected["positive_mrr"] < 0.9
    assert measure_vectors(vectors, is_pair=True) == pytest.approx(expected)
    alone = measure_vectors(vectors, is_pair=False)
    assert alone == {name: alone[name] for name in ("uniformity", "effective_rank", "mean_cosine")}


def test_vectors_that_are_all_the_same_find_no_positive():
    same = measure_vectors(np.ones((40, 8), np.float32), is_pair=True)
    assert same["positive_mrr"] == pytest.approx(1 / 39)
    assert same["positive_recall_at_10"] == 0
    assert same["effective_rank"] == pytest.approx(1)
    assert same["mean_cosine"] == pytest.approx(1)
    nothing = measure_vectors(np.zeros((4, 8), np.float32), is_pair=True)
    assert all(map(math.isfinite, nothing.values()))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three queries with one or two relevant passages each, the split "dev"; q0 is a passage."""
    folder = tmp_path_factory.mktemp("probe") / "data"
    rng = np.random.default_rng(1)
    passages = [" ".join(rng.choice(WORDS, 30)) for _ in range(N_PASSAGES)]
    queries = [" ".join(rng.choice(WORDS, 5)) for _ in range(4)]
    write_beir(folder, passages, queries, {})
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "q0", "text": queries[0]}) + "\n")
    judgments = {"q0": {"p1": 1, "p5": 2}, "q1": {"p7": 1}, "q2": {"p0": 0, "p9": 1}}
    write_qrels(folder / "qrels" / "dev.tsv", judgments)
    return folder


@pytest.fixture(scope="module")
def probed(config, data):
    """A run of ten steps with a probe every third, of which only the best is to be kept."""
    config = config.copy_and_resolve_references().unlock()
    config.train.steps = 10
    config.train.chunk_size = 4  # one pass: less to compile
    config.checkpoint.every = 100
    config.optimizer.learning_rate = 3e-2
    config.probe.update(
        {"every": 3, "documents": 3, "data": str(data), "split": "dev", "passages": 7}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "N_ROWS", 1)  # several chunks on each of eight devices
        train(config, data.parent / "run", folder_probes(config))
    return data.parent / "run"


def test_other_texts_or_judgments_are_refused_and_moved_ones_are_not(config, data, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)

    def start(folder):
        config.probe.update({"every": 3, "data": str(folder), "split": "dev"})
        (of_folder,) = folder_probes(config)
        experiment = resolve(config, store)
        open_run(tmp_path / "run", experiment, model_config, store, of_folder.record, {})

    start(data)
    moved = Path(shutil.copytree(data, tmp_path / "moved"))
    start(moved)
    files = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "judgments": "qrels/dev.tsv"}
    for kind, name in files.items():
        content = (moved / name).read_text()
        (moved / name).write_text(
            content.replace('"text": "', '"text": "the ').replace("\t2", "\t3")
        )
        with pytest.raises(UserError, match=rf"was started with probe_data\.{kind}='\w+', now"):
            start(moved)
        (moved / name).write_text(content)
    start(moved)


def logged(run):
    """The probes by step."""
    lines = read_metrics(run)
    return {line.pop("step"): line for line in lines if "probe/positive_mrr" in line}


def slow_search(encode, data, store):
    tokenizer = load_tokenizer(str(store.tokenizer_folder)).backend

    def vector(text):
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:14]
        return encode([store.cls_id, *ids, store.sep_id])

    texts = {
        line["_id"]: line["text"]
        for name in ("queries", "corpus")
        for line in map(json.loads, (data / f"{name}.jsonl").open())
    }
    relevant = {"q0": {"p1": 1, "p5": 2}, "q1": {"p7": 1}, "q2": {"p9": 1}}
    others = {"q0", *(f"p{i}" for i in range(N_PASSAGES))} - {"p1", "p5", "p7", "p9"}
    others = sorted(others, key=lambda name: hashlib.sha256(name.encode()).digest())[:3]
    assert "q0" in others
    passages = {name: vector(texts[name]) for name in ["p1", "p5", "p7", "p9", *others]}
    ndcg = []
    for query, grades in relevant.items():
        by_score = sorted(passages, key=lambda name: -float(vector(texts[query]) @ passages[name]))
        if query == "q0":  # it is its own best result, by BEIR's rule no result
            by_score.remove("q0")
        gains = [grades.get(name, 0) / math.log2(i + 2) for i, name in enumerate(by_score)]
        ideal = sorted(grades.values(), reverse=True)
        ndcg.append(sum(gains) / sum(g / math.log2(i + 2) for i, g in enumerate(ideal)))
    return {"ndcg_at_10": sum(ndcg) / 3, "recall_at_100": 1.0}


@pytest.mark.effect("pretrain probe.every", "pretrain probe.documents", "pretrain probe.data")
@pytest.mark.effect("pretrain probe.split", "pretrain probe.passages")
def test_a_run_logs_what_a_slow_probe_of_its_best_checkpoint_measures(probed, data):
    assert list(logged(probed)) == [3, 6, 9, 10]
    model_config, params, facts = load_run(probed, "best")
    config = ConfigDict(facts["config"])
    store, model = open_store(Path(config.data.store)), Condenser(model_config)

    @jax.jit
    def forward(ids, mask, positions):
        return model.apply({"params": params}, ids, mask, positions)

    def encode(ids):
        """One text in a batch by itself, without slots for masked tokens."""
        row = np.array([ids + [store.pad_id] * (16 - len(ids))])
        mask = np.arange(16)[None] < len(ids)
        return np.array(forward(row, mask, np.zeros((1, 1), np.int32)).vectors_BxD)[0]

    spec = batches_of(config)
    whole, masked = (held_out_batch(store, spec._replace(masked=x)) for x in (False, True))
    n_tokens = whole.attention_mask_SxL.sum(axis=1)
    rows = [row[:n].tolist() for row, n in zip(whole.input_ids_SxL, n_tokens, strict=True)]
    assert len(rows) == 6
    expected = slow_measures(np.array([encode(row) for row in rows], np.float64))
    output = forward(*masked[:3])
    logits = np.array(output.head_logits_BxMxV, np.float64)
    losses = [
        math.log(np.exp(logits[row, slot]).sum()) - logits[row, slot, masked.labels_SxM[row, slot]]
        for row, slot in zip(*np.nonzero(masked.weights_SxM), strict=True)
    ]
    expected["mlm_loss"] = sum(losses) / len(losses)
    expected |= slow_search(encode, data, store)
    found = logged(probed)[facts["step"]]
    expected = {f"probe/{name}": value for name, value in expected.items()}
    assert found == pytest.approx(expected, rel=2e-4)


def test_the_best_checkpoint_is_kept_beside_the_latest(probed, tmp_path):
    ndcg = {step: line["probe/ndcg_at_10"] for step, line in logged(probed).items()}
    best = max(ndcg, key=lambda step: ndcg[step])
    assert best_probe(saved_probes(probed)) == (best, "ndcg_at_10", ndcg[best])
    kept = {int(path.name) for path in (probed / "checkpoints").iterdir()}
    # The last, another one that was the best when it was saved, and the best.
    assert {best, 10} <= kept
    assert len(kept) <= 3

    command = ["convert", f"--run_dir={probed}", "--step=best", f"--out={tmp_path}/model"]
    assert main(command) == 0
    _, exported = load_folder(str(tmp_path / "model"))
    of_best, of_last = (load_run(probed, step)[1]["mlm"]["bias"] for step in (best, 10))
    np.testing.assert_array_equal(exported["mlm"]["bias"], of_best)
    assert (of_best != of_last).any()


def test_which_probe_is_the_best():
    def best(**curves):
        probes = {}
        for name, values in curves.items():
            for step, value in values.items():
                probes.setdefault(step, {})[f"probe/{name}"] = value
        return best_probe(probes)

    losses = {2: 3.0, 4: 2.0, 6: 2.5}
    assert best(mlm_loss=losses) == (4, "mlm_loss", 2.0)
    positives = {6: 0.5, 2: 0.5, 4: math.nan}
    assert best(mlm_loss=losses, positive_mrr=positives) == (2, "positive_mrr", 0.5)  # the first
    assert best(positive_mrr=positives, ndcg_at_10={6: 0.1}) == (6, "ndcg_at_10", 0.1)
    for none in (best(), best(recall_at_100={2: 1.0}), best(positive_mrr={2: math.nan})):
        assert none is None


def save_probes(run, values):
    with checkpoint_writer(run, keep=2) as save:
        for step, value in values.items():
            save(state_of(step), {"probe/positive_mrr": value})


def test_the_best_of_many_checkpoints_stays(tmp_path):
    save_probes(tmp_path, {2: 0.1, 4: 0.5, 6: 0.4, 8: 0.3, 10: 0.2})
    kept = {4: 0.5, 8: 0.3, 10: 0.2}
    assert saved_probes(tmp_path) == {s: {"probe/positive_mrr": x} for s, x in kept.items()}
    for damage in (Path.unlink, lambda path: path.write_text("{")):
        damage(tmp_path / "checkpoints" / "4" / "probe.json")
        assert list(saved_probes(tmp_path)) == [8, 10]
    save_probes(tmp_path, {12: 0.1})
    assert list(saved_probes(tmp_path)) == [8, 10, 12]


def test_a_run_without_a_probe_has_no_best_checkpoint(tmp_path):
    model = ModelConfig(vocab_size=9, hidden_size=4, num_attention_heads=1)
    (tmp_path / "run.json").write_text("{}")
    said = "TMP/run.json is damaged: it lacks the shape of a model ('model')"
    with pytest.raises(UserError, match=whole(said)):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"model": model.to_dict()}))
    with pytest.raises(UserError, match=whole("TMP holds no checkpoint yet")):
        load_run(tmp_path)
    with checkpoint_writer(tmp_path, keep=2) as save:
        for step in (2, 6):
            save(state_of(step), {})
    with pytest.raises(UserError, match=whole("TMP has no checkpoint 4; it has 2, 6")):
        load_run(tmp_path, 4)
    with pytest.raises(UserError, match=whole("TMP has no checkpoint best; it has 2, 6")):
        load_run(tmp_path, "best")


def test_the_last_line_says_which_probe_was_the_best(config, probed, tmp_path, caplog):
    run = Path(shutil.copytree(probed, tmp_path / "run"))
    of_run = ConfigDict(json.loads((run / "run.json").read_text())["config"])
    earlier = run / "checkpoints" / f"{best_probe(saved_probes(probed)).step}"
    earlier.rename(earlier.with_name("9"))
    for step, trend in ((10, "still rising"), (9, "no later one was better")):
        for each, folder in numbered_folders(run / "checkpoints").items():
            values = json.loads((folder / "probe.json").read_text())
            values["probe/ndcg_at_10"] = 0.75 if each == step else 0.5
            (folder / "probe.json").write_text(json.dumps(values))
            (folder / CHECKSUMS).unlink()
            write_checksums(folder)
        with caplog.at_level(logging.INFO, logger="cocondenser_jax"):
            train(of_run, run, folder_probes(of_run))
        said = f"{run}: best probe: step {step} of 10, ndcg_at_10 0.75; {trend}"
        assert caplog.messages[-1] == said


def test_a_collapse_is_named_once(config, monkeypatch, caplog):
    config = config.copy_and_resolve_references().unlock()
    config.probe.every = 1
    config.train.objective = "contrastive"
    config.train.steps = 10  # the first is the warm-up
    store = open_store(Path(config.data.store))
    noise = np.random.default_rng(0).normal(size=(8, 16))

    def mapped_forward(*arguments):
        return lambda spread, batch: (1 + spread * noise, {})

    monkeypatch.setattr(probe, "mapped_forward", mapped_forward)
    opened = open_probes(resolve(config, store), store, model_of(config, store), [])
    # The cosine of the last two is 0.986 and 0.992.
    steps = {1: 0.0, 2: 1.0, 3: 0.01, 4: 0.0, 5: 1.0, 6: 0.0, 7: 0.13, 8: 0.1}
    for step, spread in steps.items():
        assert "probe/mlm_loss" not in opened(step, spread)
    assert [message.rpartition(" ")[0] for message in caplog.messages] == [
        "step 3: CLS vectors have collapsed: mean cosine 0.9999, effective rank",
        "step 6: CLS vectors have collapsed: mean cosine 1.0000, effective rank",
        "step 8: CLS vectors have collapsed: mean cosine 0.9919, effective rank",
    ]


@pytest.mark.parametrize(
    ("sums", "loss"), [({"late_mlm": 6.0, "head_mlm": 4.0}, 4.0), ({"late_mlm": 6.0}, 6.0)]
)
def test_the_mlm_loss_is_that_of_the_head_where_there_is_one(config, monkeypatch, sums, loss):
    config = config.copy_and_resolve_references().unlock()
    config.probe.every = 1
    store = open_store(Path(config.data.store))
    noise = np.random.default_rng(0).normal(size=(8, 16))
    monkeypatch.setattr(probe, "mapped_forward", lambda *_: lambda params, batch: (noise, sums))
    values = open_probes(resolve(config, store), store, model_of(config, store), [])(1, None)
    n_masked = held_out_batch(store, batches_of(config)).weights_SxM.sum()
    assert values["probe/mlm_loss"] == pytest.approx(loss / n_masked)


def test_what_is_not_finite_counts_as_zero(config, probed):
    model_config, params, facts = load_run(probed)
    config = ConfigDict(facts["config"])
    broken = jax.tree.map(lambda x: np.full_like(x, np.nan), params)
    store = open_store(Path(config.data.store))
    opened = open_probes(resolve(config, store), store, model_config, folder_probes(config))
    values = opened(3, broken)
    assert values["probe/positive_recall_at_1"] == 0
    # Of equal scores what is relevant comes last: the four of seven passages that are.
    assert 0 < values["probe/ndcg_at_10"] < 0.5


def test_nothing_to_measure(config):
    config = config.copy_and_resolve_references().unlock()
    store = open_store(Path(config.data.store))
    model_config = model_of(config, store)
    assert open_probes(resolve(config, store), store, model_config, [])(6, None) == {}
    config.probe.update({"every": 1, "documents": 0})
    assert open_probes(resolve(config, store), store, model_config, [])(6, None) == {}


def test_probes_are_measured_when_they_are_due(config, monkeypatch):
    """Each of its own steps, and all after the last one."""
    store = open_store(Path(config.data.store))
    monkeypatch.setattr(probe, "mapped_forward", lambda *_: None)
    probes = [
        Probe(lambda snapshot: {"twice": 2 * snapshot.params}, every=2),
        Probe(lambda snapshot: {"thrice": 3 * snapshot.params}, every=3),
    ]
    opened = open_probes(resolve(config, store), store, model_of(config, store), probes)
    assert [sorted(opened(step, step).items()) for step in range(1, 5)] == [
        [],
        [("probe/twice", 4.0)],
        [("probe/thrice", 9.0)],
        [("probe/twice", 8.0)],
    ]
    probes = [probes[0]._replace(every=4)]
    opened = open_probes(resolve(config, store), store, model_of(config, store), probes)
    assert opened(6, 6) == {"probe/twice": 12.0}  # the last


@pytest.mark.parametrize("separator", [None, f" {WORDS[0]} "])
def test_texts_are_encoded_as_those_of_a_batch_are_read(config, monkeypatch, separator):
    """A title stands before its text as the vectors say; texts are tokenized once."""
    title, text, query = WORDS[1:4]
    store = open_store(Path(config.data.store))
    prompts = (("title_separator", separator),) if separator else ()
    experiment = with_texts_as(resolve(config, store), Representation(prompts=prompts))
    batches = []

    def forward(params, batch):
        batches.append(batch)
        return np.arange(6.0).reshape(3, 2), {}

    monkeypatch.setattr(probe, "mapped_forward", lambda *_: forward)
    encoded = []

    def measure(snapshot):
        encoded.append(snapshot.encode([query], [(title, text), ("", text)]))
        return {}

    opened = open_probes(experiment, store, model_of(config, store), [Probe(measure, every=1)])
    opened(1, None), opened(2, None)
    assert batches[0] is batches[1]
    backend = load_tokenizer(str(store.tokenizer_folder)).backend
    for row, read in enumerate((query, f"{title}{separator or ' '}{text}", text)):
        ids = backend.encode(read, add_special_tokens=False).ids
        found = batches[0].input_ids_SxL[row, batches[0].attention_mask_SxL[row]]
        assert found.tolist() == [store.cls_id, *ids, store.sep_id]
    of_queries, of_passages = encoded[0]
    np.testing.assert_array_equal(of_queries, [[0, 1]])
    np.testing.assert_array_equal(of_passages, [[2, 3], [4, 5]])


def test_a_folder_that_nothing_searches_is_refused(config, data, tmp_path):
    config = config.copy_and_resolve_references().unlock()
    config.probe.update({"every": 1, "data": str(data), "split": "dev"})
    with pytest.raises(
        UserError,
        match=whole(
            f"config.probe.data is '{data}', but no probe"
            " searches it: expected one of `pipelines.pretraining.folder_probes`"
        ),
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_records_what_its_probes_read(probed, data):
    run = json.loads((probed / "run.json").read_text())
    config = ConfigDict(run["config"])
    (of_folder,) = folder_probes(config)
    assert run["probe_data"] == dict(of_folder.record)
    assert run["probe_data"].keys() == {"corpus", "queries", "judgments"}
