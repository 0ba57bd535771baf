"""`compare` as a user types it, against sentence-transformers, on a tiny collection."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router

from cocondenser_jax.cli import main
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import read_object, write_json
from cocondenser_jax.model_folder import library
from cocondenser_jax.retriever.compare import compare as comparing
from cocondenser_jax.retriever.compare import comparison
from cocondenser_jax.retriever.compare.compare import find_rival, name_models
from cocondenser_jax.retriever.compare.rankings import find_lead
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.folder import passage_text, read_corpus, read_split
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.significance import LEAST_P, compare
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search.bm25 import Bm25Settings
from cocondenser_jax.retriever.search.fuse import fuse_runs
from cocondenser_jax.retriever.search.terms import languages
from tests.recording import all_said, assert_recorded, seen_on, written
from tests.world import comparison_of, ranked, write_qrels, write_retriever

pytestmark = pytest.mark.timeout(900)
METRICS = ("nDCG@10", "MRR@10", "Recall@100")


@pytest.fixture(scope="module")
def data(tmp_path_factory, beir):
    folder = shutil.copytree(beir, tmp_path_factory.mktemp("compare") / "data")
    shutil.copy(folder / "qrels" / "train.tsv", folder / "qrels" / "test.tsv")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory, make_model):
    folder = tmp_path_factory.mktemp("models")
    return [
        write_retriever(make_model(seed=seed), folder / name, pooling)
        for seed, (name, pooling) in enumerate((("first", "mean"), ("second", "cls")))
    ]


@pytest.fixture(scope="module")
def command(data, models):
    return ["compare", f"--data={data}", *(f"--model={model}" for model in models)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, command):
    workdir = tmp_path_factory.mktemp("work") / "compared"
    with all_said() as said:
        assert main([*command, f"--workdir={workdir}"]) == 0
    workdir.with_suffix(".txt").write_text(said.getvalue())
    return workdir


def rows_of(workdir):
    return {row["name"]: row for row in json.loads((workdir / "results.json").read_text())}


def cosines(model, queries, passages):
    encoder = SentenceTransformer(str(model))
    texts = [passage_text(passage) for passage in passages]
    scores = encoder.similarity(
        encoder.encode_query([*queries.values()]), encoder.encode_document(texts)
    ).tolist()
    names = [passage.id for passage in passages]
    return {q: dict(zip(names, s, strict=True)) for q, s in zip(queries, scores, strict=True)}


@pytest.mark.effect("compare --data", "compare --model", "compare --workdir")
@pytest.mark.effect("compare --model...")
def test_all_rankings_are_compared_with_the_best(finished, data, models):
    rows = rows_of(finished)
    ends = ("", " + BM25")
    assert [*rows] == ["BM25", *(f"{model.name}{end}" for model in models for end in ends)]
    queries, qrels = read_split(data, "test")
    passages = [*read_corpus(data)]
    bm25 = read_run(finished / "bm25.trec")
    per_query = {"BM25": evaluate_run(qrels, bm25, METRICS)["per_query"]}
    for model in models:
        dense = cosines(model, queries, passages)
        first = {q: dict(sorted(s.items(), key=lambda x: -x[1])[:100]) for q, s in dense.items()}
        for end, run in ((ends[0], dense), (ends[1], fuse_runs([bm25, first], "min_max"))):
            measured = evaluate_run(qrels, run, METRICS)
            row = rows[f"{model.name}{end}"]
            assert row["metrics"] == pytest.approx(measured["mean"], abs=2e-3)
            assert row["vectors"] == [len(passages), 32]
            per_query[row["name"]] = measured["per_query"]
    best = max(rows.values(), key=lambda row: row["metrics"]["nDCG@10"])["name"]
    assert rows[best]["tests"] == {}
    for name, row in rows.items():
        if name != best:
            expected = compare(per_query[name], per_query[best])["nDCG@10"]["difference"]
            assert row["tests"]["nDCG@10"]["difference"] == pytest.approx(expected, abs=4e-3)
            assert row["seconds"] > 0


def test_all_that_is_said_and_written_is_as_recorded(finished, data, models):
    page = (finished / "report.html").read_text()
    texts = {"said": finished.with_suffix(".txt").read_text()}
    texts |= {"report.html": seen_on(page, of_queries=False)}
    texts |= written(
        finished,
        *("started.json", "results.json", "models/second/started.json"),
        inside=["models", "models/second"],
    )
    folders = {"WORKDIR": finished, "DATA": data, "MODELS": models[0].parent}
    assert_recorded("compare", texts, folders)


def test_the_seconds_of_a_row_are_those_of_all_that_it_needs(finished, models):
    rows, seconds = rows_of(finished), read_object(finished / "seconds.json")
    own = {"BM25": ["bm25.trec"]}
    for name in (model.name for model in models):
        own[name] = [f"models/{name}/embeddings", f"models/{name}/dense.trec"]
        own[f"{name} + BM25"] = [*own[name], "bm25.trec", f"models/{name}/fused.trec"]
    assert {name: row["seconds"] for name, row in rows.items()} == pytest.approx(
        {name: sum(seconds[part] for part in parts) for name, parts in own.items()}
    )


def test_called_again_it_makes_nothing_and_another_model_is_added(
    finished, command, models, tmp_path, monkeypatch, capsys
):
    workdir = shutil.copytree(finished, tmp_path / "again")
    made = []
    encode = comparison.encode_corpus
    monkeypatch.setattr(
        comparison,
        "encode_corpus",
        lambda *given: made.append(given[0].model.path) or encode(*given),
    )
    assert main([*command, f"--workdir={workdir}"]) == 0
    assert made == []
    third = shutil.copytree(models[0], tmp_path / "third")
    assert main([*command, f"--model={third}", f"--workdir={workdir}"]) == 0
    assert made == [third]
    assert rows_of(workdir)["third"]["metrics"] == rows_of(finished)["first"]["metrics"]
    # Another model in a folder of the same name.
    shutil.rmtree(third)
    shutil.copytree(models[1], third)
    assert main([*command, f"--model={third}", f"--workdir={workdir}"]) == 2
    assert f"{workdir / 'models' / 'third'} was started with model=" in capsys.readouterr().err


def test_other_judgments_are_ranked_by_the_same_vectors(
    finished, command, data, tmp_path, monkeypatch, capsys
):
    workdir = shutil.copytree(finished, tmp_path / "again")
    other = shutil.copytree(data, tmp_path / "data")
    queries, qrels = read_split(other, "test")
    first, *rest = qrels
    (other / "queries.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"more-{name}" if name == first else name, "text": queries[name]})
            + "\n"
            for name in qrels
        )
    )
    changed = {f"more-{first}": qrels[first], **{name: qrels[name] for name in rest[:-1]}}
    write_qrels(other / "qrels" / "test.tsv", changed)
    anew = [command[0], f"--data={other}", *command[2:]]
    assert main([*anew, f"--workdir={tmp_path / 'new'}"]) == 0
    files = list(workdir.rglob("*.arrow"))
    before = [path.stat().st_mtime_ns for path in files]
    seconds = read_object(workdir / "seconds.json")
    runs = [name for name in seconds if name.endswith(".trec")]
    vectors = [name for name in seconds if name.endswith("/embeddings")]
    planted = dict.fromkeys(runs, 1e6) | dict.fromkeys(vectors, 1e9)
    write_json(workdir / "seconds.json", seconds | planted)
    assert main([*anew, f"--workdir={workdir}"]) == 0
    again = read_object(workdir / "seconds.json")
    assert len(runs) > 2
    assert all(again[name] < 1e6 for name in runs)  # of the ranking that is there
    for name, row in rows_of(workdir).items():  # but vectors took what they took
        assert 1e9 * (name != "BM25") < row["seconds"] < 1e9 * (name != "BM25") + 1e6
    assert before == [path.stat().st_mtime_ns for path in files]
    assert len(before) == 2
    for name, row in rows_of(tmp_path / "new").items():
        assert rows_of(workdir)[name]["metrics"] == row["metrics"]
        assert rows_of(workdir)[name]["tests"] == row["tests"]
    capsys.readouterr()
    records = (other / "corpus.jsonl").read_text()
    (other / "corpus.jsonl").write_text(records + '{"_id": "new", "text": "a new passage"}\n')
    assert main([*anew, f"--workdir={workdir}"]) == 2
    assert f"{workdir} was started with data.corpus=" in capsys.readouterr().err


def test_the_printed_table_line_and_search(finished, command, models, capsys):
    assert main([*command, f"--workdir={finished}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = rows_of(finished)
    (best,) = [name for name, row in rows.items() if not row["tests"]]
    (line,) = [line for line in lines if line.startswith("BEST: ")]
    assert f" | nDCG@10 | {best} {rows[best]['metrics']['nDCG@10']:.4f}, " in line
    assert f"report: {finished / 'report.html'}" in lines
    if rows[best]["model"]:
        (search,) = [line for line in lines if "cocondenser search" in line]
        words = search.split("cocondenser ")[1].split()
        assert main([*words, "--query=a word", "--depth=1"]) == 0
        assert ("--hybrid=min_max" in words) == rows[best]["is_fused"]
    page = (finished / "report.html").read_text()
    assert page.count("<svg") == 1
    assert re.search(r"<h2>(.*?) compared with (.*?)</h2>", page)[1] == best
    score, p = re.search(r"nDCG@10 \| \S.*? (\d\.\d{4}), .* \| (p [^|]+)", line).groups()
    sentence = re.search(r"<header>.*?<p>(.*?)</p>", page)[1]
    assert sentence.startswith(f"{best} has the highest nDCG@10, {float(score):.3f}; ")
    assert p.strip() in sentence
    assert (" queries show " in sentence) == ("BEST: undecided" in line)


@pytest.mark.effect("compare --split", "compare --metric")
def test_another_split_and_metric(command, data, models, tmp_path, capsys):
    queries, qrels = read_split(data, "test")
    few = dict([*qrels.items()][:4])
    other = shutil.copytree(data, tmp_path / "data")
    write_qrels(other / "qrels" / "few.tsv", few)
    flags = ["--split=few", "--metric=Recall@1"]
    words = [command[0], f"--data={other}", command[2], *flags]
    assert main([*words, f"--workdir={tmp_path / 'new'}"]) == 0
    assert " | Recall@1 | " in capsys.readouterr().out
    for run in (tmp_path / "new").rglob("*.trec"):
        assert read_run(run).keys() == few.keys()
    rows = rows_of(tmp_path / "new")
    run = cosines(models[0], {q: queries[q] for q in few}, [*read_corpus(data)])
    expected = evaluate_run(few, run, ["Recall@1", *METRICS])["mean"]
    assert rows["first"]["metrics"] == pytest.approx(expected, abs=2e-3)
    assert [*rows["first"]["metrics"]] == ["Recall@1", *METRICS]


@pytest.mark.parametrize("p", [0.01, 0.04, 0.05])
def test_what_is_decided_goes_into_the_line_and_the_report(data, models, tmp_path, monkeypatch, p):
    rows = [
        ranked("BM25", "", False, {"m": 0.5}, {"m": comparison_of(p, -0.3, 0.5)}, 1.0),
        ranked("first", "first", False, {"m": 0.8}, {}, 2.0, (7, 32)),
    ]
    given = []
    monkeypatch.setattr(comparing, "compare_models", lambda *_: rows)
    monkeypatch.setattr(comparing, "changes_between", lambda trial, *names: names)
    monkeypatch.setattr(comparing, "write_report", lambda *arguments: given.extend(arguments))
    workdir = tmp_path / "new"
    found = comparing.compare(workdir, Trial(data), [str(models[0])])
    flags = [f"--embeddings={workdir}/models/first/embeddings", f"--model={models[0]}"]
    assert found.search == flags
    line = f"m | first 0.8000, BM25 0.5000 | +0.3000 (+0.2000 to +0.4000) | p {p}"
    sentence = (
        "first has the highest m, 0.800; BM25 has 0.500: difference +0.300 (95 %: +0.200 to"
        f" +0.400), p {p}"
    )
    power = "100 queries show differences of 0.14 and more"
    if p < 0.05:
        assert found.summary == f"BEST: first | {line}"
    else:
        assert found.summary == f"BEST: undecided | {line} | {power}"
        sentence += f"; {power}"
    assert found.table == [
        ["", "m", "95 %", "p", "vectors", "seconds"],
        ["BM25", "0.500 (-0.300)", "-0.400 to -0.200", str(p), "", "1"],
        ["first", "0.800", "", "", "7 x 32", "2"],
    ]
    page, title = workdir / "report.html", f"first on {data}"
    assert given == [page, title, sentence, {}, found.table, (rows[0], rows[1])]


@pytest.mark.effect("compare --language", "compare --ignore_identical_ids")
def test_bm25_has_its_language_and_queries_do_not_find_themselves(
    command, data, tmp_path, monkeypatch
):
    seen = []

    def stop(searched, out, **given):
        seen.append((searched, out.name, given))
        raise UserError("seen")

    monkeypatch.setattr(comparison, "write_bm25_run", stop)
    for number, flags in enumerate(([], ["--language=german"], ["--ignore_identical_ids"])):
        assert main([*command, f"--workdir={tmp_path / str(number)}", *flags]) == 2
    assert seen == [
        (
            (data, "test", None),
            "bm25.trec",
            {
                "settings": Bm25Settings(language=language),
                "ignore_identical_ids": ignores,
                "depth": 100,
                "warns": False,
            },
        )
        for language, ignores in (("english", False), ("german", False), ("english", True))
    ]


def test_own_passages_are_left_out_of_every_ranking(command, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    # Each query has the id of the passage that is judged, which is relevant to the next one.
    names = [passage.id for passage in read_corpus(data)][:6]
    write_qrels(
        folder / "qrels" / "test.tsv",
        {q: {p: 1} for q, p in zip(names, np.roll(names, 1).tolist(), strict=True)},
    )
    texts = [{"_id": p.id, "text": p.text} for p in read_corpus(data) if p.id in names]
    (folder / "queries.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    words = ["compare", f"--data={folder}", command[2], "--ignore_identical_ids"]
    assert main([*words, f"--workdir={tmp_path / 'new'}"]) == 0
    runs = [*(tmp_path / "new").rglob("*.trec")]
    assert len(runs) == 3
    for run in runs:
        assert all(query not in found for query, found in read_run(run).items())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--model=no/such/model"],
            "no/such/model: no such folder, and not the name of a model on the hub",
        ),
        (["--model=/dev"], "/dev has no config.json: expected the folder of a model"),
        (
            ["--metric=best"],
            "unknown metric 'best': expected, for instance, MRR@10, Recall@100, nDCG@10",
        ),
        (
            ["--split=dev"],
            "{data} has no judgments of split 'dev': it has qrels/test.tsv, qrels/train.tsv",
        ),
        (["--language=klingon"], "language 'klingon': expected one of {languages}"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_made(
    command, data, tmp_path, capsys, flags, said
):
    assert main([*command, f"--workdir={tmp_path / 'new'}", *flags]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    said = said.format(data=data, languages=", ".join(languages()))
    assert error == f"cocondenser: {said}"
    assert not (tmp_path / "new").exists()


def test_a_workdir_in_a_model_is_refused_before_anything_is_made(command, models, capsys):
    workdir = models[1] / "compared"
    assert main([*command, f"--workdir={workdir}"]) == 2
    said = f"{workdir} lies in the folder of the model, {models[1]}: choose another place"
    assert capsys.readouterr().err.splitlines()[-1] == f"cocondenser: {said}"
    assert not workdir.exists()


def test_a_workdir_among_the_passages_is_refused(data, models, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "p0.txt").write_text("a text")
    said = f"{texts}/new is in the folder of the documents, {texts}, and would be read as one of"
    with pytest.raises(UserError, match=f"^{said} them: choose another place$"):
        comparing.compare(texts / "new", Trial(data, corpus=texts), [str(models[0])])


@pytest.mark.parametrize("wrong", [["no/such/model"], ["model", "model"], []])
def test_wrong_models_are_found_before_anything_is_read(data, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(comparing, "check_trial", pytest.fail)
    with pytest.raises(UserError):
        comparing.compare(tmp_path / "new", Trial(data), wrong)


def test_each_network_is_tried_before_all_passages_are_read(data, models, tmp_path, monkeypatch):
    """Both of a model of two towers, and of each model."""
    tried = []
    monkeypatch.setattr(library, "require_loadable", lambda network: tried.append(network.path))

    def stop(trial):
        raise UserError(f"before {trial.data.name} is read")

    monkeypatch.setattr(comparing, "survey_trial", stop)
    towers = tmp_path / "two"
    queries, passages = (SentenceTransformer(str(models[0])) for _ in range(2))
    router = Router.for_query_document([*queries], [*passages])
    SentenceTransformer(modules=[router]).save_pretrained(str(towers))
    with pytest.raises(UserError, match=f"before {data.name} is read"):
        comparing.compare(tmp_path / "new", Trial(data), [str(towers), str(models[1])])
    of_two = [towers / f"{task}_0_Transformer" for task in ("document", "query")]
    assert [path for path, _ in itertools.groupby(tried)][-3:] == [*of_two, models[1]]


def test_a_model_of_two_towers_is_compared(data, models, tmp_path):
    queries, passages = (SentenceTransformer(str(models[0])) for _ in range(2))
    router = Router.for_query_document([*queries], [*passages])
    SentenceTransformer(modules=[router]).save_pretrained(str(tmp_path / "two"))
    words = ["compare", f"--data={data}", f"--model={tmp_path / 'two'}"]
    assert main([*words, f"--workdir={tmp_path / 'new'}"]) == 0


def test_models_are_named_by_the_ends_of_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a/retriever", "runs/b/retriever", "runs/b/other"):
        (tmp_path / name).mkdir(parents=True)
    hub = "sentence-transformers/all-MiniLM-L6-v2"
    assert name_models(["runs/b/other/", hub]) == {
        "other": "runs/b/other/",
        "all-MiniLM-L6-v2": hub,
    }
    both = ["runs/a/retriever", "runs/b/retriever"]
    assert [*name_models(both)] == ["a/retriever", "b/retriever"]
    assert [*name_models(["runs/b/BM25"])] == ["b/BM25"]  # BM25 is a row of its own
    # Of a model and a fused ranking, too.
    hub = ["one/m", "two/m + BM25"]
    assert name_models(hub) == dict(zip(hub, hub, strict=True))
    assert name_models(["one/BM25"]) == {"one/BM25": "one/BM25"}
    assert name_models(["."]) == {tmp_path.name: "."}
    assert name_models(["/m", "a/m"]) == {"m": "/m", "a/m": "a/m"}
    absolute = str(tmp_path / both[0])
    for given, said in (
        ([], "expected a model to compare with BM25"),
        (
            [*both, both[0]],
            "a model is given twice: runs/a/retriever, runs/a/retriever",
        ),
        ([both[0], absolute], f"a model is given twice: {both[0]}, {absolute}"),
    ):
        with pytest.raises(UserError) as refused:
            name_models(given)
        assert str(refused.value) == said


def test_the_rival_of_the_best_is_by_other_vectors():
    rows = [
        ranked("BM25", "", False, {"m": 0.5}, {"m": comparison_of(0.01, -0.3, 0.5)}, 1.0),
        ranked("a", "a", False, {"m": 0.7}, {"m": comparison_of(0.02, -0.1, 0.7)}, 1.0),
        ranked("a + BM25", "a", True, {"m": 0.8}, {}, 1.0),
        ranked("b", "b", False, {"m": 0.6}, {"m": comparison_of(0.012, -0.2, 0.6)}, 1.0),
    ]
    best, rival = find_rival(rows)
    assert (best.name, rival.name) == ("a + BM25", "b")
    # p of the smallest of three is 3 x 0.01, of the next 2 x 0.012.
    assert find_lead(rows, best, rival).line() == (
        "m | a + BM25 0.8000, b 0.6000 | +0.2000 (+0.1000 to +0.3000) | p 0.03"
    )
    rows[0] = rows[0]._replace(tests={"m": comparison_of(0.02, -0.3, 0.5)})
    assert find_lead(rows, best, rival).line() == (
        "m | a + BM25 0.8000, b 0.6000 | +0.2000 (+0.1000 to +0.3000) | p 0.036"
    )
    for p in (0.06, 0.4):
        rows[3] = rows[3]._replace(tests={"m": comparison_of(p, -0.2, 0.6)})
        lead = find_lead(rows, best, rows[3])
        assert lead.line() == (
            "m | a + BM25 0.8000, b 0.6000 | +0.2000 (+0.1000 to +0.3000)"
            f" | p {p} | 100 queries show differences of 0.14 and more"
        )
        assert lead.sentence() == (
            "a + BM25 has the highest m, 0.800; b has 0.600: difference +0.200 (95 %: +0.100 to"
            f" +0.300), p {p}; 100 queries show differences of 0.14 and more"
        )
    # None of 10,000 assignments is as extreme: a bound, times the number of tests.
    rows[3] = rows[3]._replace(tests={"m": comparison_of(LEAST_P, -0.2, 0.6)})
    assert find_lead(rows, best, rows[3]).line().endswith(" | p ≤ 0.0006")
    # Seen from the one that was tested.
    seen = find_lead(rows, rows[1], best)
    assert seen.line().startswith("m | a 0.7000, a + BM25 0.8000 | -0.1000 (")
