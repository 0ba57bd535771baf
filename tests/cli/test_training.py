"""What each flag of `corpus` does, and flags that would do nothing in a command up to `convert`."""

import gc
import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from cocondenser_jax.errors import UserError
from tests.cli.workplace import make_workplace
from tests.lines import whole
from tests.world import write_store


@pytest.mark.effect("corpus --corpus", "corpus --tokenizer", "corpus --out")
@pytest.mark.effect("corpus --max_length", "corpus --json_out")
def test_a_store(tmp_path, capsys):
    place = make_workplace(tmp_path)
    tokenizer, counts = f"{place}/bert-base-uncased", f"{place}/counts.json"
    command = ["corpus", f"--corpus={place}/articles.jsonl.xz", f"--tokenizer={tokenizer}"]
    command += ["--max_length=10", f"--json_out={counts}"]
    assert main([*command, f"--out={place}/store"]) == 0
    store = open_store(place / "store")
    values = json.loads(Path(counts).read_text())
    assert values["documents"] == store.n_documents == 40
    *printed, following = capsys.readouterr().out.splitlines()
    names = ["documents", "spans", "tokens", "documents_of_one_span"]
    names += ["dropped, empty", "dropped, duplicate", "dropped, too_short"]
    assert [re.split("  +", line) for line in printed] == [[n, f"{values[n]:,}"] for n in names]
    assert following == (
        "next: cocondenser pretrain --config=configs/small.py:condenser"
        f" --config.data.store={place}/store --config.data.length=10 --workdir=runs/condenser"
    )
    assert store.tokenizer_sha256 == load_tokenizer(tokenizer).sha256
    assert store.read_spans(np.arange(store.n_spans), 50)[2].max() == 10 - 2


@pytest.mark.effect("corpus --short_span_prob")
def test_spans_that_end_early_lose_no_text(tmp_path):
    place = make_workplace(tmp_path)
    (place / "a.txt").write_text(
        "\n".join("The river runs to the city and on. " * 80 for _ in "ab")
    )
    command = ["corpus", f"--corpus={place}/a.txt", f"--tokenizer={place}/bert-base-uncased"]
    stores = []
    for probability in (0, 0.5):
        out = place / f"store-{probability}"
        assert main([*command, f"--short_span_prob={probability}", f"--out={out}"]) == 0
        stores.append(open_store(out))
        assert stores[-1].manifests[0]["short_span_prob"] == probability
    whole, short = stores
    assert whole.n_tokens == short.n_tokens
    assert whole.n_spans < short.n_spans


@pytest.mark.effect("vocabulary --corpus", "vocabulary --size", "vocabulary --kind")
@pytest.mark.effect("vocabulary --cased", "vocabulary --out", "vocabulary --corpus...")
def test_a_vocabulary_of_ones_own(tmp_path, capsys):
    place = make_workplace(tmp_path)
    rows = {
        "body": ["none of these"] * 40,
        "text": ["Ärger Über these " * 9] * 40,
        "id": [*range(40)],
    }
    pq.write_table(pa.table(rows), place / "a.parquet")
    command = ["vocabulary", f"--corpus={place}/a.parquet"]
    assert main([*command, "--size=80", f"--out={place}/lower"]) == 0
    entries = load_tokenizer(f"{place}/lower").backend.get_vocab()
    assert capsys.readouterr().out == f"{place}/lower: {len(entries)} entries\n"
    assert {"arger", "uber"} < entries.keys()
    assert {"none", "Ärger", "river"}.isdisjoint(entries)
    assert main([*command, "--cased", f"--out={place}/cased"]) == 0
    assert {"Ärger", "Über"} < load_tokenizer(f"{place}/cased").backend.get_vocab().keys()
    both = ["vocabulary", f"--corpus={place}/a.parquet", f"--corpus={place}/articles.jsonl.xz"]
    both.append("--kind=roberta")
    assert main([*both, "--size=270", f"--out={place}/few"]) == 0
    assert load_tokenizer(f"{place}/few").vocab_size == 270
    assert main([*both, f"--out={place}/bytes"]) == 0
    tokenizer = load_tokenizer(f"{place}/bytes")
    assert tokenizer.kind == "roberta"
    # Learned from both sources, and good for `corpus`.
    assert {"Ġthese", "Ġriver"} < tokenizer.backend.get_vocab().keys()
    words = ["corpus", f"--corpus={place}/a.parquet", f"--tokenizer={place}/cased"]
    assert main([*words, f"--out={place}/store"]) == 0
    found = open_store(place / "store")
    assert found.n_documents == 1  # forty copies of one text
    assert found.document_id(0) == "0"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "vocabulary --corpus=x --out=out --kind=roberta --cased",
            "--cased goes with --kind=bert or mpnet: roberta is always cased",
        ),
        (
            "vocabulary --corpus=none.txt --out=out",
            (
                "none.txt does not exist: expected pydocs, pydocs:numpy,scipy, a .txt, .md, "
                ".jsonl, .tsv (also .gz, .xz, .zst) or .parquet file, a folder or pattern of "
                "them, hf:NAME_OR_FOLDER[:CONFIG[:SPLIT]] or tfds:NAME_OR_FOLDER[:SPLIT]"
            ),
        ),
        (
            "vocabulary --corpus=pydocs:json --out=out --size=9",
            "a vocabulary of 9 entries: bert needs at least 10",
        ),
        (
            "vocabulary --corpus=pydocs:json --out=out --size=10000001",
            "a vocabulary of 10,000,001 entries: expected at most 10,000,000",
        ),
        (
            "verify --store=store --step=7",
            (
                "No such option '--step'. (Did you mean one of: '--help', '--store'?) (see "
                "cocondenser verify --help)…"
            ),
        ),
    ],
)
def test_a_flag_without_effect_is_refused(command, says, capsys):
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert re.match(whole(f"cocondenser: {says}\n"), error)


@pytest.mark.parametrize(
    ("command", "prepare", "begin"),
    [
        (
            "pretrain --config=configs/small.py --workdir=run --config.data.store=made/store",
            "pretrain.devices.prepare_libtpu",
            "pretrain.loop.train",
        ),
        (
            "plan --config=configs/small.py --topology=v3-8",
            "plan.machines.prepare_to_plan",
            "plan.plan.plan",
        ),
        (
            "quickstart --workdir=run",
            "pretrain.devices.prepare_libtpu",
            "pipelines.quickstart.quickstart",
        ),
        (
            "adapt --workdir=run --corpus=a.txt --model=model",
            "pretrain.devices.prepare_libtpu",
            "pipelines.adapt.open_model",
        ),
    ],
)
def test_libtpu_is_prepared_before_it_compiles_a_step(
    monkeypatch, tmp_path, command, prepare, begin
):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "made", ["one two three four five six seven eight nine ten"])
    (tmp_path / "a.txt").write_text("a document\n")
    (tmp_path / "model").mkdir()
    happened = []

    def begins(*arguments, **options):
        happened.append("begins")
        raise UserError("far enough")

    package = "cocondenser_jax"
    monkeypatch.setattr(f"{package}.{prepare}", lambda: happened.append("prepares"))
    monkeypatch.setattr(f"{package}.{begin}", begins)
    assert main(command.split()) == 2
    assert happened == ["prepares", "begins"]


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("report --run_dir=run --out=made", ["retriever.compare.report.write_run_report"]),
        (
            "convert --run_dir=run --out=made",
            ["files.runs.require_run_folder", "pretrain.export.export_run"],
        ),
        (
            "resolve --model=model --out=made",
            ["model_folder.model.open_model", "convert.resolve.resolve_model"],
        ),
    ],
)
def test_what_was_made_is_named(command, parts, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for part in parts:
        monkeypatch.setattr(f"cocondenser_jax.{part}", lambda *_, **options: None)
    assert main(command.split()) == 0
    assert capsys.readouterr().out.splitlines()[0] == "made"


def test_the_quickstart_leaves_the_libraries_out_of_garbage_collection(monkeypatch, tmp_path):
    happened = []

    def begins(workdir):
        assert "torch" in sys.modules
        assert "jax" in sys.modules
        happened.append("begins")
        raise UserError("far enough")

    monkeypatch.setattr(gc, "freeze", lambda: happened.append("freezes"))
    monkeypatch.setattr("cocondenser_jax.pipelines.quickstart.quickstart", begins)
    assert main(["quickstart", f"--workdir={tmp_path}/run"]) == 2
    assert happened == ["freezes", "begins"]
