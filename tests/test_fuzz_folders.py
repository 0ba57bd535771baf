"""Whatever the files of a model folder say, its vectors are the library's, or one line refuses it.

The right answer is that of `SentenceTransformer(folder)`: what it loads may be refused here, but is
not encoded otherwise; what it refuses is refused.
"""

import functools
import logging
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from cocondenser_jax import flax_encoder
from cocondenser_jax.convert.from_torch import load_vectors
from cocondenser_jax.convert.resolve import resolve_model
from cocondenser_jax.corpus.same_tokens import tokens_in_training
from cocondenser_jax.errors import UserError
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model_folder.library import max_tokens
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pipelines.proposal import require_trainable
from cocondenser_jax.representation import passage_prompt, query_prompt
from cocondenser_jax.retriever.search.encode import Encoding, load_encoder
from cocondenser_jax.retriever.search.models import load
from tests.mutations import fuzz
from tests.published_contradictions import apply_changes, changes
from tests.published_folders import write_folder
from tests.test_published import CASES, assert_close

BASES = (
    "all-MiniLM-L6-v2",
    "bge-small-en-v1.5",
    "all-distilroberta-v1",
    "multi-qa-mpnet-base-dot-v1",
    "multilingual-e5-base",
    "gte-modernbert-base",
    "LaBSE",
    "contriever-msmarco",
    "paraphrase-MiniLM-L6-v2",
    "transformer in a subfolder",
)
TEXTS = [
    "The Red river, a Café (Émile)",
    "old",
    "Tea 茶 of the doctor's mountain",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h",
]
SHARE = 0.1  # of the usual examples: each loads a model twice


class Vectors(NamedTuple):
    """What one reader makes of TEXTS."""

    queries_NxD: np.ndarray
    passages_NxD: np.ndarray


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Writes the folders that are changed, once."""
    root = tmp_path_factory.mktemp("bases")
    return {name: write_folder(CASES[name].folder, root / name) for name in BASES}


@pytest.fixture(autouse=True, scope="module")
def _without_compilations():
    """Runs networks operation by operation: each change of a config would be compiled anew."""

    def encode_eagerly(config, params, dtype, batch_size):
        return functools.partial(_encode, config, params)

    with pytest.MonkeyPatch.context() as patched, jax.disable_jit(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setattr(flax_encoder, "mapped_encode", encode_eagerly)
        logging.disable(logging.WARNING)
        yield
        logging.disable(logging.NOTSET)


def _encode(config, params, ids_BxL, mask_BxL, prompt_lengths_B=None):
    arguments = ids_BxL, mask_BxL, None, prompt_lengths_B
    return np.asarray(Condenser(config).apply({"params": params}, *arguments, method="encode"))


def by_the_library(folder: Path) -> Vectors | None:
    """Asks the library, in float32; returns None where it refuses the folder.

    Texts are cut where a table of positions ends: there it fails with an IndexError, also where a
    folder has a limit of 0, which is none to the library.
    """
    try:
        model = SentenceTransformer(
            str(folder), local_files_only=True, model_kwargs={"dtype": "float32"}
        )
        if any(name.endswith("position_embeddings.weight") for name in model.state_dict()):
            longest = max_tokens(model.transformers_model.config)
            for name in ("max_seq_length", "query_length", "document_length"):
                said = getattr(model[0], name)
                setattr(model[0], name, said if said is None else min(said or longest, longest))
        passage = passage_prompt(model.prompts)
        options: dict[str, Any] = {"convert_to_tensor": True}
        queries = model.encode_query(TEXTS, **options)
        passages = model.encode_document(TEXTS, prompt=passage or None, **options)
        cosine = model.similarity_fn_name == "cosine"
    except Exception:  # of each kind of damage another
        return None
    vectors = (queries, passages)
    if cosine:
        vectors = tuple(x / x.norm(dim=1, keepdim=True) for x in vectors)
    return Vectors(*(x.cpu().numpy() for x in vectors))


def by_pytorch(folder: Path) -> Vectors:
    """Encodes as `encode` and `search` do."""
    model = load_encoder(Encoding(open_model(folder), precision="float32", batch_size=16)).model
    return Vectors(model.encode_query(TEXTS), model.encode_document(TEXTS))


def by_jax(folder: Path) -> Vectors:
    """Encodes as `encode --backend=jax` does."""
    encoding = Encoding(
        open_model(folder), precision="float32", batch_size=16, backend=flax_encoder.run_in_flax
    )
    model = load_encoder(encoding).model
    return Vectors(model.encode_query(TEXTS), model.encode_document(TEXTS))


def by_training(folder: Path) -> Vectors:
    """Encodes as `adapt` does before its first step, after what it compares."""
    opened = open_model(folder)
    representation = opened.representation
    shape, tokenizer = require_trainable(opened)
    config, params = load_vectors(opened)
    prompts = dict(shape.representation.prompts)
    longest, limit = shape.longest_text, config.max_length
    return Vectors(
        *(
            encode_rows(config, params, tokenizer, prompt, min(length or longest, limit))
            for prompt, length in (
                (query_prompt(prompts), representation.query_length),
                (passage_prompt(prompts), representation.passage_length),
            )
        )
    )


def encode_rows(config, params, tokenizer, prompt, longest):
    rows = tokens_in_training(tokenizer, TEXTS, prompt)
    rows = [row if len(row) <= longest else [*row[: longest - 1], row[-1]] for row in rows]
    length = max(map(len, rows))
    ids_NxL = np.full((len(rows), length), tokenizer.pad_id, np.int32)
    mask_NxL = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        ids_NxL[i, : len(row)] = row
        mask_NxL[i, : len(row)] = True
    return _encode(config, params, ids_NxL, mask_NxL)


def by_what_adapt_publishes(folder: Path) -> Vectors | None:
    """Asks the library about the copy of the model that `adapt` makes first."""
    opened = open_model(folder)
    out = folder.parent / "resolved"
    try:
        require_trainable(opened)
        resolve_model(opened, out)
        found = by_the_library(out)
        if found is None:
            raise AssertionError("the copy cannot be loaded")
        return found
    finally:
        shutil.rmtree(out, ignore_errors=True)


def by_what_is_saved(folder: Path) -> Vectors | None:
    """Asks the library about what `finetune` would save before its first step."""
    out = folder.parent / "saved"
    try:
        model = load(open_model(folder))
        model.save_pretrained(str(out), create_model_card=False)
        found = by_the_library(out)
        if found is None:
            raise AssertionError("what is saved cannot be loaded")
        return found
    finally:
        shutil.rmtree(out, ignore_errors=True)


READERS = {
    "torch": by_pytorch,
    "jax": by_jax,
    "training": by_training,
    "adapt's copy": by_what_adapt_publishes,
    "saved": by_what_is_saved,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_is_read_as_the_library_reads_it_or_refused(reader, bases, tmp_path):
    folder = tmp_path / "model"

    @fuzz(SHARE)
    @given(st.sampled_from(BASES), changes())
    def check(base, drawn):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bases[base], folder)
        apply_changes(folder, drawn)
        expected = by_the_library(folder)
        try:
            found = READERS[reader](folder)
        except UserError as error:
            message = str(error)
            note(message)
            if len(message.splitlines()) != 1:
                raise AssertionError(message) from error
            return
        assert expected is not None, "the library refuses it"
        if not all(np.isfinite(x).all() for x in expected):
            return
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)

    check()
