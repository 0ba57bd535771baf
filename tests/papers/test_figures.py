"""The scripts that draw figures: a plot, a table, a file of figures, one line for a mistake."""

import json
import lzma
import shutil

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from cocondenser_jax.retriever.search.models import load_retriever
from papers.figures import attention, curves, neighborhood, sizes
from papers.figures.attention import layer_entropies
from tests.lines import printed, run_lines, write_lines

STAGE1 = ["q1 d2 d1 d3 d4", "q2 d3 d2"]
OTHER = ["q1 d1", "q3 d1 d2"]
STAGE2 = ["q1 d1 d2 d3", "q2 d2 d9", "q3 d2"]


@pytest.fixture
def folder(tmp_path, monkeypatch, research_folders, texts):
    """Two models, texts in two forms, and runs; the working directory."""
    for name, kind in (("one/retriever", "bert"), ("two/retriever", "bert"), ("other", "roberta")):
        shutil.copytree(research_folders[kind], tmp_path / name)
    with lzma.open(tmp_path / "texts.txt.xz", "wt") as file:
        file.write("\n\n".join(texts))
    (tmp_path / "data").mkdir()
    records = [{"_id": f"d{i}", "title": "A title", "text": text} for i, text in enumerate(texts)]
    write_lines(tmp_path / "data" / "corpus.jsonl", map(json.dumps, records))
    for name, rankings in (("stage1", STAGE1), ("other", OTHER), ("stage2", STAGE2)):
        # Scores order a run, whatever the order of its lines.
        write_lines(tmp_path / f"{name}.trec", reversed(list(run_lines(rankings))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entropies(folder, texts, max_tokens):
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    return layer_entropies(model, AutoTokenizer.from_pretrained(folder), texts, max_tokens)


def test_attention_of_several_models(folder, capsys, texts):
    models = "--model=one/retriever --model=two/retriever --model=other"
    command = f"{models} --texts=texts.txt.xz --max_length=16"
    attention.main([*command.split(), "--out=plots/a.svg", "--json_out=a.json"])
    figures = json.loads((folder / "a.json").read_text())
    assert (figures["texts"], figures["seed"], figures["passage_length"]) == (4, 0, 16)
    assert list(figures["models"]) == ["one/retriever", "two/retriever", "other"]
    for model in figures["models"].values():
        expected = entropies(model["folder"], texts, 16)
        np.testing.assert_allclose(model["entropy"], expected.entropy, rtol=1e-5)
        assert model["uniform"] == pytest.approx(expected.uniform)
    header, *rows = printed(capsys)
    assert header == ["layer", *figures["models"]]
    assert rows == [
        [str(i + 1), *(f"{model['entropy'][i]:.4f}" for model in figures["models"].values())]
        for i in range(2)
    ]
    svg = (folder / "plots" / "a.svg").read_text()
    assert all(f">{name}<" in svg for name in figures["models"])
    # RoBERTa's tokenizer cuts in another way, so uniform attention has no one height.
    assert "uniform attention" not in svg
    one = "--model=one/retriever --texts=texts.txt.xz --out=plots/b.svg --max_length=16"
    attention.main(one.split())
    assert ">uniform attention<" in (folder / "plots" / "b.svg").read_text()


def test_each_tower_has_its_line(folder, texts):
    load_retriever(folder / "other", two_towers=True).save(str(folder / "towers"))
    # The two are copies; make them differ.
    path = folder / "towers" / "query_0_Transformer"
    model = AutoModel.from_pretrained(path, add_pooling_layer=False)
    for parameter in model.encoder.layer[1].attention.parameters():
        parameter.data.mul_(0.5)
    model.save_pretrained(path)
    command = "--model=towers --texts=texts.txt.xz --max_length=16"
    attention.main([*command.split(), "--out=a.png", "--json_out=a.json"])
    models = json.loads((folder / "a.json").read_text())["models"]
    for tower in ("query", "document"):
        expected = entropies(folder / "towers" / f"{tower}_0_Transformer", texts, 16).entropy
        np.testing.assert_allclose(models[f"towers, {tower}"]["entropy"], expected, rtol=1e-5)
    assert models["towers, query"]["entropy"] != models["towers, document"]["entropy"]


def test_texts_are_drawn_by_a_seed(folder, texts):
    command = "--model=other --texts=data --n_texts=2 --max_length=16"
    found = {}
    for seed in range(2):
        out = ["--out=a.png", "--json_out=a.json", f"--seed={seed}"]
        attention.main([*command.split(), *out])
        figures = json.loads((folder / "a.json").read_text())
        assert figures["texts"] == 2
        found[seed] = figures["models"]["other"]["entropy"]
    passages = [f"A title {text}" for text in texts]
    pairs = [
        entropies(folder / "other", [first, second], 16).entropy
        for i, first in enumerate(passages)
        for second in passages[:i]
    ]
    for entropy in found.values():
        assert any(np.allclose(entropy, pair, rtol=1e-5) for pair in pairs)
    assert len({tuple(entropy) for entropy in found.values()}) > 1
    attention.main([*command.split(), "--out=a.png", "--json_out=again.json", "--seed=1"])
    assert (folder / "again.json").read_text() == (folder / "a.json").read_text()


def test_neighborhoods_of_two_runs(folder, capsys):
    command = "--stage1=stage1.trec --stage1=other.trec --stage2=stage2.trec"
    neighborhood.main([*command.split(), "--n=1,2", "--out=n.png", "--json_out=n.json"])
    assert (folder / "n.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = printed(capsys)
    runs = ("stage1.trec,", "other.trec,")
    assert header == ["k", *(word for run in runs for n in (1, 2) for word in (run, f"n={n}"))]
    # q2's neighborhood of 2 holds d9, which no run has; q3's is of one passage.
    assert rows == [
        ["1", "0.0000", "0.1667", "0.3333", "0.1667"],
        ["2", "0.6667", "0.5000", "0.6667", "0.5000"],
        ["4", "0.6667", "0.5000"],
    ]
    figures = json.loads((folder / "n.json").read_text())
    assert figures["queries"] == 3
    recall = figures["stage1"]["stage1.trec"]["recall"]
    assert recall["1"] == pytest.approx([0, 2 / 3, 2 / 3, 2 / 3])
    assert recall["2"] == pytest.approx([1 / 6, 1 / 2, 1 / 2, 1 / 2])


def test_a_measure_by_size(folder, capsys):
    for name, result in (
        ("few", {"mean": {"MRR@10": 0.25, "R@1": 0.1}, "per_query": {}}),
        ("many", {"mean": {"MRR@10": 0.5, "R@1": 0.2}}),
        ("plain", {"MRR@10": 0.375}),  # what has no queries has no mean
    ):
        (folder / f"{name}.json").write_text(json.dumps(result))
    command = "--point=b,100,many.json --point=b,10,few.json --point=other,100,plain.json"
    sizes.main([*command.split(), "--measure=MRR@10", "--out=s.svg", "--json_out=s.json"])
    figures = json.loads((folder / "s.json").read_text())
    lines = {"b": {"10": 0.25, "100": 0.5}, "other": {"100": 0.375}}
    assert figures == {"measure": "MRR@10", "lines": lines}
    assert list(figures["lines"]["b"]) == ["10", "100"]  # or the line would turn back
    assert printed(capsys) == [["10", "100"], ["b", "0.2500", "0.5000"], ["other", "0.3750"]]
    svg = (folder / "s.svg").read_text()
    assert all(f">{text}<" in svg for text in ("MRR@10", "other", "training rows", "50"))


def write_metrics(folder, losses):
    """Writes a run that logs a loss every ten steps, and between them something else."""
    lines = [{"step": 10 * i, "loss": loss, "epoch": i} for i, loss in enumerate(losses, start=1)]
    lines.insert(1, {"step": 15, "eval_MRR@100": 0.5})
    write_lines(folder / "metrics.jsonl", map(json.dumps, lines))


def test_curves_of_two_runs(folder, capsys):
    write_metrics(folder / "one", [4.0, 1.0, 2.0, 0.5])
    write_metrics(folder / "other", [3.0, 2.0, 1.0, 0.25])
    command = "--run=BERT,one --run=Condenser,other --key=loss --json_out=c.json"
    curves.main([*command.split(), "--until=30", "--out=c.svg"])
    assert json.loads((folder / "c.json").read_text()) == {
        "key": "loss",
        "lines": {
            "BERT": {"10.0": 4.0, "20.0": 1.0, "30.0": 2.0},
            "Condenser": {"10.0": 3.0, "20.0": 2.0, "30.0": 1.0},
        },
    }
    assert printed(capsys) == [
        ["points", "first", "last", "lowest", "highest"],
        ["BERT", "3", "4.0000", "2.0000", "1.0000", "4.0000"],
        ["Condenser", "3", "3.0000", "1.0000", "1.0000", "3.0000"],
    ]
    svg = (folder / "c.svg").read_text()
    assert all(f">{text}<" in svg for text in ("loss", "BERT", "Condenser", "step"))
    curves.main([*command.split(), "--out=all.svg"])
    assert json.loads((folder / "c.json").read_text())["lines"]["BERT"]["40.0"] == 0.5
    curves.main([*command.split(), "--out=log.svg", "--log_y"])
    assert (folder / "log.svg").read_text() != (folder / "all.svg").read_text()
    curves.main([*command.split(), "--key=eval_MRR@100", "--out=dev.svg"])
    assert json.loads((folder / "c.json").read_text())["lines"]["BERT"] == {"15.0": 0.5}


ATTENTION = "--out=plot.png --model=other --texts=texts.txt.xz --max_length=16"
NEIGHBORHOOD = "--out=plot.png --stage1=stage1.trec --stage2=stage2.trec"
SIZES = "--out=plot.png --measure=MRR@10"
CURVES = "--out=plot.png --key=loss"


@pytest.mark.parametrize(
    ("script", "flags", "says"),
    [
        (attention, "--out=plot.png --texts=data", "required: --model"),
        (
            attention,
            f"{ATTENTION} --out=plot.pdf",
            "--out: expected a .png or .svg file, not 'plot.pdf'",
        ),
        (
            attention,
            f"{ATTENTION} --model=none",
            "none: no such folder, no network, and not in the hub's cache",
        ),
        (
            attention,
            f"{ATTENTION} --model=data",
            "data has no config.json: expected the folder of a model",
        ),
        (attention, f"{ATTENTION} --texts=none.txt", "cannot read none.txt"),
        (attention, f"{ATTENTION} --texts=one", "folder one holds no .txt, .md, .jsonl"),
        (attention, f"{ATTENTION} --texts=blank.txt", "blank.txt holds no text"),
        (
            attention,
            f"{ATTENTION} --n_texts=0",
            "--n_texts: expected a whole number from 1, not '0'",
        ),
        (attention, f"{ATTENTION} --seed=-1", "--seed: expected a whole number from 0, not '-1'"),
        (
            attention,
            f"{ATTENTION} --max_length=999",
            "passage_length=999: expected 3 to 24 tokens",
        ),
        (attention, f"{ATTENTION} --layers=3", "unrecognized arguments: --layers=3"),
        (neighborhood, f"{NEIGHBORHOOD} --n=0", "--n: expected a whole number from 1, not '0'"),
        (neighborhood, f"{NEIGHBORHOOD} --n=4", "no query has 4 passages in stage 2 (at most 3)"),
        (neighborhood, f"{NEIGHBORHOOD} --stage2=none.trec", "cannot read none.trec"),
        (
            neighborhood,
            f"{NEIGHBORHOOD} --stage1=strange.trec --n=1",
            "stage 1 has none of the 3 queries",
        ),
        (sizes, f"{SIZES} --point=a,b.json", "expected NAME,ROWS,FILE, not 'a,b.json'"),
        (sizes, f"{SIZES} --point=a,0,r.json", "expected a whole number from 1, not '0'"),
        (sizes, f"{SIZES} --point=a,1,r.json", "r.json has no MRR@10: expected one of R@1"),
        (sizes, f"{SIZES} --point=a,1,none.json", "cannot read none.json"),
        (curves, f"{CURVES} --run=one", "expected NAME,FOLDER, not 'one'"),
        (curves, f"{CURVES} --run=a,one", "cannot read one/metrics.jsonl"),
        (curves, f"{CURVES} --run=a,other --key=XX", "other/metrics.jsonl has no XX"),
        (
            curves,
            f"{CURVES} --run=a,other --until=5",
            "has no loss before step 10, and --until is 5",
        ),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(folder, capsys, script, flags, says):
    write_lines(folder / "blank.txt", ["", "  "])
    write_lines(folder / "strange.trec", run_lines(["x1 d1"]))
    write_lines(folder / "r.json", ['{"mean": {"R@1": 0.5}}'])
    write_metrics(folder / "other", [1.0])
    with pytest.raises(SystemExit, match="2"):
        script.main(flags.split())
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "plot.png").exists()
