"""What each flag of `corpus` does, and flags that would do nothing in a command up to `convert`."""

import json
from pathlib import Path

import numpy as np
import pytest

from cocondenser_jax.cli import main
from cocondenser_jax.corpus.store import open_store
from cocondenser_jax.corpus.tokenizer import load_tokenizer
from tests.cli.workplace import make_workplace


@pytest.mark.effect("corpus --source", "corpus --tokenizer", "corpus --out")
@pytest.mark.effect("corpus --max_tokens", "corpus --shard", "corpus --json_out")
def test_the_shards_of_a_store(tmp_path: Path) -> None:
    place = make_workplace(tmp_path)
    tokenizer, counts = f"{place}/bert-base-uncased", f"{place}/counts.json"
    command = ["corpus", f"--source={place}/articles.jsonl.xz", f"--tokenizer={tokenizer}"]
    command += ["--max_tokens=10", f"--json_out={counts}"]
    for shard in range(2):
        assert main([*command, f"--out={place}/store", f"--shard={shard}/2"]) == 0
        part = open_store(place / "store" / f"shard-0000{shard}-of-00002")
        assert part.manifests[0]["shard"] == [shard, 2]
        assert json.loads(Path(counts).read_text())["documents"] == part.n_documents > 0
    assert sorted(path.name for path in (place / "store").iterdir()) == [
        "shard-00000-of-00002", "shard-00001-of-00002"
    ]  # fmt: skip
    store = open_store(place / "store")
    assert store.n_documents == 40
    assert store.tokenizer_sha256 == load_tokenizer(tokenizer).sha256
    assert store.read_spans(np.arange(store.n_spans), 50)[2].max() == 10 - 2


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("convert --out=out --checkpoint=run --init_head", "--init_head goes with --pytorch_fol"),
        ("convert --out=out --pytorch_folder=x --step=0", "--step goes with --checkpoint"),
        (
            "convert --out=out --pytorch_folder=x --max_seq_length=0",
            "--max_seq_length goes with --checkpoint",
        ),
        (
            "convert --out=out --pytorch_folder=x --research_layout",
            "--research_layout goes with --checkpoint",
        ),
        (
            "plan --config=configs/small.py --topology=v3-8 --search_chunk"
            " --config.train.chunk_size=8",
            "--search_chunk tries every config.train.chunk_size",
        ),
        ("verify --store=store --step=7", "cocondenser verify --help"),
        ("verify store --store=store --step=7", "'--step=7' (see cocondenser verify store --help)"),
    ],
)
def test_a_flag_without_effect_is_refused(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
