"""The quickstart on the docstrings of one package, with a few steps of each training."""

import json
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.configs import quickstart as pretraining
from cocondenser_jax.configs import quickstart_finetune as finetuning
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.runs import LOCK
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pipelines import quickstart as module
from cocondenser_jax.pipelines.quickstart import quickstart
from cocondenser_jax.pretrain import warm_start
from cocondenser_jax.pretrain.checkpoint import load_run
from cocondenser_jax.retriever.compare import comparison
from cocondenser_jax.retriever.compare.rankings import Ranking
from cocondenser_jax.retriever.data.trec import read_qrels
from tests.recording import NONE, all_said, assert_recorded, seen_on, written

NAMES = ("no-pretraining", "condenser", "cocondenser")
pytestmark = pytest.mark.timeout(900)  # the first test pays for five trainings


class Finished(NamedTuple):
    """What the module's one training left.

    Attributes:
      workdir: of the quickstart.
      rows: what it returned.
      results: as its file has them: later calls write it anew.
      page: its report.
      warm_starts: folder and parameters that each run was given to start from, in their order.
      seconds: as its file has them.
      texts: what it printed, showed and wrote, by what it is.
    """

    workdir: Path
    rows: list[Ranking]
    results: list[dict[str, Any]]
    page: str
    warm_starts: list[tuple[Path, Any]]
    seconds: dict[str, float]
    texts: dict[str, str]

    def folder(self, model):
        """Returns where the `model`, retriever and index of a row are."""
        return self.workdir if model == "cocondenser" else self.workdir / "compare" / model

    def run(self, stage):
        return self.workdir / "pretraining" / stage


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def small():
    """A quickstart on one package, with a small model and a few steps."""
    pretraining_config, finetuning_config = pretraining.get_config, finetuning.get_config

    def small(argument="cocondenser"):
        config = pretraining_config(argument).unlock()
        config.train.steps = 3
        config.data.batch_size = 16
        config.model.hidden_size = 16
        config.model.intermediate_size = 16
        return config.lock()

    def short(argument=""):
        config = finetuning_config(argument).unlock()
        config.train.max_steps = 2
        config.data.batch_size = 4
        return config.lock()

    # Those of the README's table.
    assert (module.VOCAB_SIZE, module.N_TEST_QUERIES, module.N_DEV_QUERIES) == (8192, 1000, 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_docstrings", lambda: read_docstrings(["optax"]))
        patch.setattr(module, "N_TEST_QUERIES", 30)
        patch.setattr(module, "N_DEV_QUERIES", 12)
        patch.setattr(module, "VOCAB_SIZE", 600)
        patch.setattr(pretraining, "get_config", small)
        patch.setattr(finetuning, "get_config", short)
        yield


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("quickstart") / "run"
    warm_starts = []
    load_warm_start = warm_start.load_warm_start

    def recorded(name_or_folder, *arguments, **options):
        model_config, params = load_warm_start(name_or_folder, *arguments, **options)
        warm_starts.append((Path(name_or_folder).absolute(), params))
        return model_config, params

    outcomes = []

    def kept(*arguments, **options):
        outcomes.append(quickstart(*arguments, **options))
        return outcomes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_start, "load_warm_start", recorded)
        patch.setattr(module, "quickstart", kept)
        patch.chdir(workdir.parent)  # a relative path, as in the README
        with all_said() as said:
            assert main(["quickstart", f"--workdir={workdir.name}"]) == 0
    results, seconds = (read_json(workdir / f"{name}.json") for name in ("results", "seconds"))
    page = (workdir / "report.html").read_text()
    [(rows, _)] = outcomes
    texts = {"said": said.getvalue(), "report.html": seen_on(page)}
    texts |= written(workdir, "started.json", inside=("compare", "data", "pretraining"))
    return Finished(workdir, rows, results, page, warm_starts, seconds, texts)


def test_each_step_says_where_the_whole_is(tmp_path, caplog):
    for step, spent in (
        ("reading docstrings", None),
        ("pre-training Condenser", {"data": 30.0, "store": 15.0}),
        ("comparing", {"data": 1.0}),
    ):
        if spent:
            (tmp_path / "seconds.json").write_text(json.dumps(spent))
        with caplog.at_level("INFO"):
            module._announce(tmp_path, step)
    assert sum(module.STEPS.values()) == 410
    minutes = 7
    # 45 seconds where 30 were expected, and 60 as expected: 105 / 90 of the 380 that are left.
    left = 8
    assert caplog.messages == [
        f"step 1 of 8: reading docstrings; about {minutes} minutes left",
        f"step 3 of 8: pre-training Condenser; about {left} minutes left",
        "step 8 of 8: comparing; about 1 minute left",
    ]


def test_the_minutes_left_are_those_of_the_steps_to_come(tmp_path, caplog):
    caplog.set_level("INFO")
    before = [0, 20, 30, 110, 270, 315, 360, 405]  # seconds, as expected
    minutes = [69, 65, 64, 50, 24, 16, 9, 1]  # of the others, ten times as slow
    for step, seconds in zip(module.STEPS, before, strict=True):
        spent = 10 * (seconds + 60) - 60
        (tmp_path / "seconds.json").write_text(json.dumps({"a": spent - 1.0, "b": 1.0}))
        module._announce(tmp_path, step)
    said = [line.partition("; about ")[2] for line in caplog.messages]
    assert said == [f"{n} minute{'s' if n > 1 else ''} left" for n in minutes]


def test_each_training_has_the_seed_and_folders_of_the_quickstart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SEED", 7)
    config = module._config("condenser", Path("store"), "start")
    assert (config.seed, config.data.store, config.warm_start) == (7, "store", "start")
    assert config.train.objective == "condenser"
    called = []
    returned = {"open_store": "tokens", "resolve": "resolved", "new_model": ("shape", "params")}
    for name in (*returned, "export_folder", "build_vocabulary"):
        note = lambda *given, name=name: called.append((name, *given)) or returned.get(name)  # noqa: E731
        monkeypatch.setattr(module, name, note)
    module._export_new(Path("store"), Path("tokenizer"), Path("out"))
    module._learn_vocabulary("text", Path("out"))
    assert called == [
        ("open_store", Path("store")),
        ("resolve", module._config("condenser", Path("store")), "tokens"),
        ("new_model", "resolved", "tokens"),
        (
            *("export_folder", "params", "shape", Path("tokenizer"), Path("out")),
            {"step": 0, "config": {"seed": 7}},
        ),
        ("build_vocabulary", ["text"], Path("out"), module.VOCAB_SIZE),
    ]

    def tune(config, workdir):
        called.append((config.model.folder, config.data.folder, config.seed, workdir))
        (workdir / "retriever").mkdir(parents=True)

    monkeypatch.setattr(module, "finetune", tune)
    module._finetune(Path("model"), Path("data"), tmp_path / "retriever")
    assert called[-1] == ("model", "data", 7, tmp_path / "finetuning")
    assert (tmp_path / "retriever").is_dir()


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def differ(left, right):
    """Tells whether every matrix of two parameter trees differs; biases may all be 0."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all((np.asarray(a) != np.asarray(b)).any() for a, b in pairs if np.ndim(a) > 1)


def test_the_folder_holds_what_was_promised(finished):
    workdir, rows = finished.workdir, finished.rows
    for name in ("model/model.safetensors", "retriever/modules.json", "index/index.faiss"):
        assert (workdir / name).is_file()
    expected = ["BM25", "no pre-training", "Condenser", "coCondenser"]
    assert [row.name for row in rows] == expected
    assert finished.results == json.loads(json.dumps([row.record() for row in rows]))
    assert rows[0].score > 0.2  # BM25 needs no training
    last = ("retriever", "index", "test.trec")
    took = {
        "BM25": ["bm25.trec"],
        "no pre-training": [f"compare/no-pretraining/{part}" for part in ("model", *last)],
        "Condenser": [f"compare/condenser/{part}" for part in ("model", *last)],
        "coCondenser": ["compare/condenser/model", "model", *last],
    }
    for row in rows:
        seconds = [finished.seconds[name] for name in took[row.name]]
        assert row.seconds == pytest.approx(sum(seconds))
    store = open_store(workdir / "store")
    assert store.max_length == pretraining.get_config().data.length
    assert f"<dd>{store.sha256}</dd>" in finished.page
    assert finished.page.count('<th scope="row">') == len(rows)
    assert "30 held-out first paragraphs" in finished.page


def test_all_that_is_said_and_written_is_as_recorded(finished):
    folders = {"WORKDIR": finished.workdir}
    assert_recorded("quickstart", finished.texts, folders)


def test_every_curve_has_a_title_and_a_unit_in_words(finished):
    """Each key that pre-training and fine-tuning log is in the table of panels."""
    figures = re.findall("<h3>(.*?)</h3>.*?(<svg.*?</svg>)", finished.page, re.DOTALL)
    assert len(figures) > 15
    for title, svg in figures:
        assert re.fullmatch(r"[A-Z][^_/]+", title)
        texts = re.findall("<text[^>]*>(.*?)</text>", svg)
        _, unit = (text for text in texts if re.search("[a-z]{2}", text))
        assert "_" not in unit


@pytest.mark.effect("quickstart --workdir")
def test_rows_are_an_evaluation_of_the_run_files(finished):
    qrels = read_qrels(finished.workdir / "data" / "qrels" / "test.tsv")
    files = [finished.folder(name) / "test.trec" for name in NAMES]
    rows = finished.rows
    per_row = []
    for row, file in zip(rows, [finished.workdir / "bm25.trec", *files], strict=True):
        found = defaultdict(list)
        for line in file.read_text().splitlines():
            query, _, passage, *_ = line.split()
            found[query].append(passage)
        # Each query has one relevant passage.
        ranks = np.array(
            [
                1 + found[query].index(passage) if passage in found[query] else 1000
                for query, judged in qrels.items()
                for passage in judged
            ]
        )
        assert len(ranks) == 30
        expected = {
            "MRR@10": np.where(ranks <= 10, 1 / ranks, 0.0),
            "Recall@100": ranks <= 100,
            "nDCG@10": np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0),
        }
        means = {name: x.mean() for name, x in expected.items()}
        assert row.metrics["mean"] == pytest.approx(means)
        per_row.append(expected["MRR@10"])
    for row, values in zip(rows[:-1], per_row, strict=False):
        # The signs of the differences, drawn 10,000 times.
        rng = np.random.default_rng(1)
        difference = values - per_row[-1]
        drawn = np.abs(rng.choice([-1, 1], (10_000, 30)) @ difference)
        p = (drawn >= abs(difference.sum()) - 1e-9).mean()
        test = row.tests["MRR@10"]
        assert test["randomization_p"] == pytest.approx(p, abs=0.03)
        assert test["difference"] == pytest.approx(difference.mean())


def test_cocondenser_starts_from_the_condensers_weights(finished):
    [(folder, start)] = finished.warm_starts
    assert folder == finished.run("condenser")
    assert_same(start, load_run(folder)[1])
    assert differ(start, load_run(finished.run("cocondenser"))[1])


def test_each_exported_model_is_that_of_its_run(finished):
    for stage in ("condenser", "cocondenser"):
        _, params, facts = load_run(finished.run(stage))
        assert facts["config"]["train"]["objective"] == stage
        assert_same(load_folder(str(finished.folder(stage) / "model"))[1], params)


def test_each_retriever_is_tuned_from_the_model_beside_it(finished):
    for name in NAMES:
        folder = finished.folder(name)
        config = json.loads((folder / "finetuning" / "finetune.json").read_text())
        model = finished.workdir.parent / config["model"]["folder"]  # as it was given: relative
        assert (model, config["seed"]) == (folder / "model", 0)
        manifest = json.loads((folder / "index" / "manifest.json").read_text())
        assert manifest["model_sha256"] == open_model(folder / "retriever").sha256()


def test_the_models_differ(finished):
    params = {name: load_folder(str(finished.folder(name) / "model"))[1] for name in NAMES}
    for left, right in combinations(params, 2):
        assert differ(params[left], params[right]), (left, right)


def test_held_out_first_paragraphs_are_in_no_training_text(small, tmp_path):
    data = tmp_path / "data"
    module.write_collection(data)
    queries = {query["_id"]: query["text"] for query in lines(data / "queries.jsonl")}
    texts = {
        " ".join(line["text"].split("\n\n")[0].split()) for line in lines(data / "pretrain.jsonl")
    }
    splits = [read_qrels(data / "qrels" / f"{split}.tsv") for split in ("test", "dev", "train")]
    test, dev, train = splits
    assert (len(test), len(dev)) == (30, 12)
    assert sum(map(len, splits)) == len(test | dev | train) == len(queries)
    assert not {queries[query] for query in test | dev} & texts
    assert {queries[query] for query in train} <= texts
    passages = {line["_id"]: line["text"] for line in lines(data / "corpus.jsonl")}
    for query, judged in (test | dev | train).items():
        assert set(judged) == {query}
        assert queries[query] not in passages[query]


def test_queries_are_first_paragraphs_of_one_docstring(tmp_path, monkeypatch):
    """They have four words or more, and what follows has ten."""
    rest = [f"passage {number} " + "word " * 8 for number in range(9)]
    docstrings = {
        "own": f"A first paragraph\n  of its own\n\n {rest[0]}",
        "three": f"See also this\n\n{rest[1]}",
        "four": f"See also this one\n\n{rest[2]}\n\nMore.",
        "shared": f"The same first paragraph\n\n{rest[3]}",
        "copied": f"The first of a copy\n\n{rest[4]}",
        "sharing": f"The same first paragraph\n\n{rest[5]}",
        "copy": f"The second of a copy\n\n{rest[4]}",
        "short": "A first paragraph of its own\n\n" + "word " * 9,
        "one": f"Another first paragraph, one\n\n{rest[6]}",
        "two": f"Another first paragraph, two\n\n{rest[7]}",
    }
    monkeypatch.setattr(module, "read_docstrings", docstrings.items)
    monkeypatch.setattr(module, "N_TEST_QUERIES", 1)
    monkeypatch.setattr(module, "N_DEV_QUERIES", 2)
    module.write_collection(tmp_path / "data")
    files = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    texts = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in files}
    assert_recorded("quickstart_data", texts, masked=NONE)


def test_called_again_it_trains_nothing(finished, monkeypatch):
    for name in ("build_store", "pretrain_model", "finetune", "encode_corpus"):
        monkeypatch.setattr(module, name, pytest.fail)
    monkeypatch.setattr(comparison, "write_bm25_run", pytest.fail)
    announced, texts = [], []
    monkeypatch.setattr(module, "_announce", lambda workdir, step: announced.append(step))
    measure = module.measure_all
    note = lambda *given: texts.extend(given[2](set())) or measure(*given)  # noqa: E731
    monkeypatch.setattr(module, "measure_all", note)
    # As a kill between these two would leave it, but for the index.
    (finished.workdir / "test.trec").unlink()
    retriever = finished.workdir / "retriever"
    retriever.rename(finished.workdir / "finetuning" / "retriever")
    again, _ = quickstart(finished.workdir)
    assert (retriever / "modules.json").is_file()
    for old, new in zip(finished.rows, again, strict=True):
        assert old.record() | {"seconds": 0.0} == new.record() | {"seconds": 0.0}
    assert announced == [*module.STEPS]
    passages = lines(finished.workdir / "data" / "corpus.jsonl")
    assert texts == [(each["_id"], each["text"]) for each in passages]


def test_passages_are_encoded_in_float32_on_every_machine(finished, tmp_path, monkeypatch):
    def refuse(encoding, *_):
        raise UserError(f"asked for {encoding.precision}")

    monkeypatch.setattr(module, "encode_corpus", refuse)
    made = [finished.workdir / "index", finished.workdir / "test.trec"]
    for path in made:
        path.rename(tmp_path / path.name)
    with pytest.raises(UserError, match="asked for float32"):
        quickstart(finished.workdir)
    for path in made:
        (tmp_path / path.name).rename(path)


def test_a_second_process_is_refused(tmp_path, hold):
    first = hold(tmp_path / "quickstart")
    with pytest.raises(UserError, match=f"quickstart is in use by process {first.pid} on "):
        quickstart(tmp_path / "quickstart")
    assert [path.name for path in (tmp_path / "quickstart").iterdir()] == [LOCK]


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        quickstart(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
