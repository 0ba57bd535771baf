"""The example of mteb computes what `retrieve` and `evaluate` compute."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cocondenser_jax.cli import main

ROOT = Path(__file__).parents[1]
NAMES = {"ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_100": "Recall@100"}


def run_example(*flags):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "evaluate_mteb.py", *flags],
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_mteb_finds_the_metrics_of_evaluate(similarity, model_folder, beir, tmp_path):
    pytest.importorskip("mteb", reason="needs mteb: make mteb")
    import cocondenser_jax as cj

    given = cj.Given(
        similarity=similarity,
        query_prompt="abc ",
        passage_prompt="hgf ",
        title_separator=" gfe " * 9,
    )
    model = tmp_path / "retriever"
    cj.load_retriever(model_folder, given=given).save_pretrained(str(model))
    flags = [f"--model={model}", f"--data={beir}"]
    embeddings, run, metrics = (tmp_path / name for name in ("embeddings", "run", "metrics.json"))
    encode = ["encode", flags[0], f"--corpus={beir}", f"--out={embeddings}", "--precision=float32"]
    assert main(encode) == 0
    assert main(["retrieve", *flags, f"--embeddings={embeddings}", f"--run_out={run}"]) == 0
    evaluate = ["evaluate", f"--run={run}", f"--qrels={beir}/qrels/train.tsv"]
    asked = ["--metric=nDCG@10,MRR@10,Recall@100", f"--json_out={metrics}"]
    assert main([*evaluate, *asked]) == 0
    expected = json.loads(metrics.read_text())["mean"]
    assert 0 < expected["nDCG@10"] < expected["Recall@100"]
    done = run_example(*flags, "--split=train")
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r", train: (\w+) ([\d.]+)$", done.stdout, re.MULTILINE))
    assert {NAMES[name]: float(value) for name, value in found.items()} == pytest.approx(
        expected, abs=2e-4
    )


def test_mteb_needs_a_folder_or_a_task():
    pytest.importorskip("mteb", reason="needs mteb: make mteb")
    done = run_example("--model=none")
    assert done.returncode == 2
    assert "give one of --data and --task" in done.stderr
