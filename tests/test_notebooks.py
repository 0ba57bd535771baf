"""The notebooks of examples/ run from top to bottom, with tiny models and texts.

`make docs` installs what they need; elsewhere they are skipped.
"""

import re
from pathlib import Path

import pytest

from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.representation import Given
from cocondenser_jax.retriever.search.models import load_retriever
from tests.world import TINY, as_flags, write_tokenizer

nbformat = pytest.importorskip("nbformat", reason="make docs installs and runs the notebooks")
nbclient = pytest.importorskip("nbclient", reason="make docs installs and runs the notebooks")
pytest.importorskip("ipykernel", reason="make docs installs and runs the notebooks")

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_notebook(name, folder, parameters):
    """Runs a notebook with other parameters in a folder; returns what its cells printed."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert set(re.findall(r"^(\w+) =", cell.source, re.MULTILINE)) == parameters.keys()
    cell.source = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    outputs = [output for c in notebook.cells for output in c.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def test_adapt_on_a_laptop(tmp_path, make_model):
    texts = [text for _, text in read_docstrings(["click"])]
    folder = write_tokenizer(make_model(vocab_size=400), texts, 400)
    model = tmp_path / "model"
    load_retriever(folder, given=Given("mean", "dot")).save_pretrained(str(model))
    settings = ["--config.train.steps=2", "--config.data.length=32", "--config.probe.every=2"]
    parameters = {"MODEL": str(model), "PACKAGES": ["click"], "SETTINGS": settings}
    printed = run_notebook("adapt_on_a_laptop", tmp_path, parameters)
    assert re.search(r"^\d+ documents, \d+ queries$", printed, re.MULTILINE)
    assert "VERDICT: " in printed
    assert len(re.findall(r"^-?\d+\.\d\d click", printed, re.MULTILINE)) == 3
    assert (tmp_path / "adapted" / "retriever" / "modules.json").exists()


def test_pretrain_on_a_tpu_falls_back_to_the_cpu(tmp_path):
    sizes = {name: value for name, value in TINY.items() if name != "data.length"}
    sizes |= {"model.max_position_embeddings": 64, "checkpoint.every": 1, "log_every": 1}
    parameters = {
        "PACKAGES": "click",
        "CORPUS": "pydocs:click",
        "STEPS": {"tpu": 0, "cpu": 2},
        "SETTINGS": as_flags(sizes),
    }
    printed = run_notebook("pretrain_on_a_tpu", tmp_path, parameters)
    assert "devices: cpu" in printed
    assert re.search(r"^2 0\.\d+$", printed, re.MULTILINE)  # the probe after the last step
    assert "model.safetensors" in printed
