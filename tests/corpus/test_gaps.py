"""Vocabularies with numbers that are no entry."""

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from cocondenser_jax.corpus.batches import BatchSpec, make_batch
from cocondenser_jax.corpus.build import build_store
from cocondenser_jax.corpus.store import open_store
from tests.world import write_records


def test_what_is_drawn_at_random_is_an_entry_of_the_tokenizer(tmp_path):
    """Of a vocabulary with gaps, most of whose numbers stand for nothing."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = {token: number for number, token in enumerate(special)}
    entries |= {letter: 10 * number for number, letter in enumerate("abcdefghij", start=1)}
    tokenizer = Tokenizer(models.WordPiece(entries, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    rng = np.random.default_rng(0)
    texts = ({"text": " ".join(rng.choice([*"abcdefghij"], 14))} for _ in range(64))
    source = write_records(tmp_path / "text.jsonl", texts)
    build_store(str(source), str(tmp_path / "tokenizer"), tmp_path / "store", max_length=16)
    gaps = open_store(tmp_path / "store")
    spec = BatchSpec(seed=0, batch_size=60, length=16, example="span", mask_probability=0.8)
    shown = np.concatenate([make_batch(gaps, spec, step).input_ids_SxL for step in range(20)])
    assert gaps.vocab_size == 101
    assert set(shown.ravel().tolist()) == {*entries.values()} - {entries["[UNK]"], gaps.pad_id}
