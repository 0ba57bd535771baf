"""The public names: each has an example in docs/python.md that runs; examples/ run too."""

import ast
import importlib
import inspect
import pickle
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cocondenser_jax as cj
from cocondenser_jax.model_folder.model import open_model
from tests.world import write_records, write_run, write_tokenizer

pytestmark = pytest.mark.usefixtures("one_length")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
OTHERS = "langchain|llama_index"  # their examples: tests/test_frameworks.py
SUBJECTS = "birds maps vectors stars rivers recipes trains clocks".split()


def page_blocks():
    """Returns the examples of the page."""
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A folder with what the page's examples read: text, tokenizer, run, index and judgments."""
    from cocondenser_jax.corpus.tokenizer import load_tokenizer
    from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
    from cocondenser_jax.retriever.search.index import build_index

    folder = tmp_path_factory.mktemp("python")
    texts = [
        " ".join(f"Sentence {n} of text {i} is about {subject}." for n in range(12))
        for i, subject in enumerate(SUBJECTS * 3)
    ]
    records = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    for name in ("articles.jsonl", "corpus.jsonl"):
        write_records(folder / name, records)
    (folder / "qrels.tsv").write_text("q1 0 d0 1\nq2 0 d2 1\n")
    tokenizer = load_tokenizer(str(write_tokenizer(folder / "tokenizer", texts, 120)))
    config = cj.ModelConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
        n_head_layers=1, skip_from=1,
    )  # fmt: skip
    run = folder / "runs" / "cocondenser"
    write_run(run, config, cj.init_params(config, seed=1), folder / "tokenizer")
    cj.export_run(run, folder / "exported")
    encode_corpus(Encoding(open_model(folder / "exported")), folder, folder / "runs" / "embeddings")
    build_index(folder / "runs" / "embeddings", folder / "runs" / "index")
    return folder


def test_the_examples_of_the_page_run(workdir, monkeypatch):
    monkeypatch.chdir(workdir)
    blocks = [block for block in page_blocks() if not re.search(OTHERS, block)]
    assert len(blocks) == 15
    scope = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), scope)
        if "penalty" in block:
            require_gradient_of_the_whole(scope)
    metrics = scope["metrics"]["mean"]
    assert metrics.keys() == {"MRR@10", "Recall@100"}
    assert all(0 <= value <= 1 for value in metrics.values())
    assert scope["scores_QxP"].shape == (1, 2)
    assert (workdir / "runs" / "same" / "model.safetensors").read_bytes() == (
        workdir / "runs" / "model" / "model.safetensors"
    ).read_bytes()


def require_gradient_of_the_whole(scope):
    """The page's variance with a penalty, in one pass: the same value and gradient."""
    texts = [x.reshape(-1, x.shape[-1]) for x in scope["chunks"]]

    def loss(params):
        cls_SxD = scope["encode"](params, texts)
        return jnp.var(cls_SxD) + 0.1 * jnp.mean(jnp.sum(cls_SxD**2, axis=1))

    value, grads = jax.jit(jax.value_and_grad(loss))(scope["params"])
    assert float(scope["value"] + scope["sums"]["penalty"]) == pytest.approx(float(value), rel=1e-5)
    norm, difference = (
        np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree)))
        for tree in (grads, jax.tree.map(jnp.subtract, grads, scope["grads"]))
    )
    assert norm > 0
    assert difference < 1e-5 * norm


def test_the_page_has_an_example_of_every_public_name():
    used = set(re.findall(r"\bcj\.(\w+)", PAGE))
    assert used == set(cj.__all__)


@pytest.mark.parametrize("name", cj.__all__)
def test_a_public_name_is_there_and_documented(name):
    assert name in dir(cj)
    assert getattr(cj, name).__doc__


# What each public function that reads or writes a file or folder is given.
PLACES = {
    "build_store": ("NO.jsonl", "NO", "NO/out"),
    "export_folder": ({}, cj.ModelConfig(), "NO", "NO/out", {}),
    "export_run": ("NO", "NO/out"),
    "load_folder": ("NO",),
    "load_retriever": ("NO",),
    "load_run": ("NO",),
    "open_index": ("NO", "NO"),
    "open_store": ("NO",),
    "read_qrels": ("NO",),
    "read_run": ("NO/file",),
    "write_run": ("NO/file", {"q": {"p": 1.0}}),
}


def takes_place(name):
    """Returns whether a public name is a function with a parameter that may be a `Path`."""
    value = getattr(cj, name)
    if not inspect.isfunction(value):
        return False
    parameters = inspect.signature(inspect.unwrap(value)).parameters.values()
    return any(each.annotation in (Path, str | Path) for each in parameters)


@pytest.mark.parametrize("name", filter(takes_place, cj.__all__))
def test_a_place_is_text_or_a_path(name, tmp_path):
    """There is nothing to read there, nor a folder to write into, whichever it is."""
    (tmp_path / "NO").touch()

    def message(kind):
        given = [
            kind(tmp_path / place) if isinstance(place, str) else place for place in PLACES[name]
        ]
        with pytest.raises(cj.UserError) as error:
            getattr(cj, name)(*given)
        return str(error.value)

    assert message(str) == message(Path)
    shown = inspect.signature(getattr(cj, name)).parameters.values()
    assert not any(each.annotation is Path for each in shown)
    assert pickle.loads(pickle.dumps(getattr(cj, name))) is getattr(cj, name)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'train_everything'"):
        _ = cj.train_everything


@pytest.mark.parametrize(
    ("statement", "slow"),
    [
        (
            "import cocondenser_jax as cj; dir(cj); cj.UserError",
            "jax flax torch transformers numpy",
        ),
        ("import cocondenser_jax.corpus.build", "jax torch transformers datasets"),
        # What `pretrain` and `convert` call.
        (
            "import cocondenser_jax.pretrain.loop, cocondenser_jax.pretrain.export",
            "torch transformers datasets",
        ),
        ("import cocondenser_jax.retriever.compare.compare", "jax flax"),
    ],
)
def test_what_is_slow_to_import_is_not_loaded_where_it_is_not_needed(statement, slow):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not set(done.stdout.split()) & set(slow.split())


def test_the_example_with_a_loss_of_ones_own_learns(workdir):
    if not (workdir / "store").exists():
        cj.build_store(
            str(workdir / "articles.jsonl"), str(workdir / "tokenizer"), workdir / "store",
            max_length=32,
        )  # fmt: skip
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import own_loss
    finally:
        sys.path.pop(0)
    store = cj.open_store(workdir / "store")
    losses = own_loss.train(store, n_steps=12, n_documents=8, chunk_size=4)
    whole = own_loss.train(store, n_steps=12, n_documents=8, chunk_size=16)
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(whole, rel=1e-3)  # the cache changes nothing


def test_the_example_that_searches_prints_passages(workdir, monkeypatch, capsys):
    places = [f"--index={workdir / 'runs' / 'index'}", f"--model={workdir / 'exported'}"]
    monkeypatch.setattr(sys, "argv", ["search.py", *places, "Sentence about birds", "maps"])
    runpy.run_path(str(ROOT / "examples" / "search.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if not line.startswith(" ")] == [
        "Sentence about birds",
        "maps",
    ]
    assert sum("Sentence" in line for line in printed) == 1 + 6


def package_calls(tree):
    """Yields each call of what a file imports from the package by its name, and what it calls."""
    imported = {
        alias.asname or alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("cocondenser_jax")
        for alias in node.names
    }
    for call in ast.walk(tree):
        match call:
            case ast.Call(func=ast.Name(id=name)) if name in imported:
                yield call, imported[name]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="cj"), attr=name)):
                yield call, getattr(cj, name)


# Most examples need libraries that are not installed, so that they neither run here nor are typed.
@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_an_example_calls_the_package_with_the_arguments_that_it_takes(path):
    for call, called in package_calls(ast.parse(path.read_text(encoding="utf-8"))):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        is_partial = None in named or any(isinstance(value, ast.Starred) for value in call.args)
        if not is_partial:  # no *values, no **values
            inspect.signature(called).bind(*call.args, **named)
