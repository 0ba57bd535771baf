"""Published models as tiny folders with the same files, and what is expected of each.

Each case is one record: the files that matter, what only the model's card says, and whether the
package encodes with the folder and adapts it, or refuses it. `published_table.py` prints the table
of docs/backbones.md from the same records.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tests.published_folders import IDENTITY, TANH, Folder, Module, dense, pooling
from tests.published_networks import HIDDEN, POSITIONS

EXACT = "exact"


class Expected(NamedTuple):
    """What comes of a folder: EXACT, or a part of the one line that refuses it."""

    torch: str = EXACT
    jax: str = EXACT
    adapt: str = EXACT


class Case(NamedTuple):
    """A folder and what is expected of it."""

    folder: Folder
    expected: Expected = Expected()
    prompts: Mapping[str, str] = {}  # that the model's card alone names
    similarity: str | None = None  # likewise


_TRAINER = "SentenceTransformerTrainer"  # which the line names that refuses a family
BY_TORCH = Expected(jax="expected bert or", adapt=_TRAINER)


def refused(words: str) -> Expected:
    """Returns what is expected of a folder that is refused everywhere by the same line."""
    return Expected(words, words, words)


CLS = pooling("cls")
MEAN = pooling("mean")
LAST = pooling("last", include_prompt=True)
UNIT = Module("Normalize")
# What the releases of sentence-transformers write into config_sentence_transformers.json.
OF_2_0 = {"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1"}}
OF_2_7 = {**OF_2_0, "prompts": {}, "default_prompt_name": None}
OF_3_0 = {**OF_2_7, "similarity_fn_name": None}
OF_3_3 = {**OF_2_7, "similarity_fn_name": "cosine"}
_REPRESENT = "Represent this sentence for searching relevant passages: "
E5 = {"query": "query: ", "passage": "passage: "}
_NOMIC = {"query": "search_query: ", "passage": "search_document: "}
_INSTRUCT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
CODE = {"auto_map": {"AutoModel": "modeling_new.NewModel", "AutoConfig": "config_new.NewConfig"}}
MINILM = Folder("bert", "WordPiece", (MEAN, UNIT), settings=OF_2_0)
_MULTILINGUAL_MINILM = Folder(
    "bert, padded by 0", "unigrams without a class", (MEAN,), 16, OF_2_0, padded_by=35
)
_MODERNBERT = Folder(
    "modernbert", "byte-level BPE of ModernBERT", (CLS,), settings=OF_3_3, weights="float16"
)
XLM_R = Folder("xlm-roberta", "unigrams", (MEAN, UNIT), settings=OF_2_0)

# By the lines of the table in docs/backbones.md, then by the names of the folders.
ROWS: dict[str, dict[str, Case]] = {
    "all-MiniLM-L6-v2, -L12-v2": {
        "all-MiniLM-L6-v2": Case(
            MINILM._replace(tokenizer="WordPiece, cut and padded by its file", max_length=24)
        ),
        "all-MiniLM-L12-v2": Case(MINILM._replace(max_length=16, weights="gamma")),
    },
    "all-mpnet-base-v2": {
        "all-mpnet-base-v2": Case(Folder("mpnet", "WordPiece of MPNet", (MEAN, UNIT), 24, OF_2_0))
    },
    "paraphrase-multilingual-MiniLM-L12-v2": {
        "paraphrase-multilingual-MiniLM-L12-v2": Case(_MULTILINGUAL_MINILM)
    },
    "bge-m3 (its dense vector)": {
        "bge-m3": Case(
            XLM_R._replace(tokenizer="unigrams of long texts", modules=(CLS, UNIT), weights="bin")
        )
    },
    "multilingual-e5-base, -large": {
        "multilingual-e5-base": Case(XLM_R, prompts=E5),
        "multilingual-e5-large": Case(XLM_R._replace(weights="shards"), prompts=E5),
    },
    "multilingual-e5-small": {
        "multilingual-e5-small": Case(
            _MULTILINGUAL_MINILM._replace(
                tokenizer="unigrams", modules=(MEAN, UNIT), max_length=POSITIONS
            ),
            prompts=E5,
        )
    },
    "e5-small-v2, -base, -large": {"e5-small-v2": Case(MINILM, prompts=E5)},
    "bge-small-en-v1.5, -base, -large": {
        "bge-small-en-v1.5": Case(
            MINILM._replace(
                modules=(CLS, UNIT), changes={"sentence_bert_config.json": {"do_lower_case": True}}
            ),
            prompts={"query": _REPRESENT},
        )
    },
    "gte-small, -base, -large": {"gte-small": Case(MINILM._replace(weights="float16"))},
    "multi-qa-MiniLM-L6-cos-v1": {
        "multi-qa-MiniLM-L6-cos-v1": Case(MINILM._replace(weights="bin"))
    },
    "all-distilroberta-v1": {
        "all-distilroberta-v1": Case(
            Folder("roberta", "byte-level BPE of RoBERTa", (MEAN, UNIT), settings=OF_2_0)
        )
    },
    "multi-qa-mpnet-base-dot-v1": {
        "multi-qa-mpnet-base-dot-v1": Case(
            Folder(
                "mpnet",
                "WordPiece of MPNet",
                (CLS,),
                settings={**OF_2_0, "similarity_fn_name": "dot"},
            )
        )
    },
    "mxbai-embed-large-v1": {
        "mxbai-embed-large-v1": Case(
            MINILM._replace(
                modules=(CLS,),
                settings={**OF_2_7, "prompts": {"query": _REPRESENT, "passage": ""}},
                weights="float16",
            )
        )
    },
    "snowflake-arctic-embed-xs, -s, -m, -l": {
        "snowflake-arctic-embed-xs": Case(
            MINILM._replace(
                modules=(CLS, UNIT), settings={**OF_2_7, "prompts": {"query": _REPRESENT}}
            )
        ),
    },
    "snowflake-arctic-embed-m-v1.5": {
        "snowflake-arctic-embed-m-v1.5": Case(
            MINILM._replace(modules=(CLS, UNIT), settings=OF_2_7), prompts={"query": _REPRESENT}
        ),
    },
    "snowflake-arctic-embed-l-v2.0": {
        "snowflake-arctic-embed-l-v2.0": Case(
            XLM_R._replace(
                tokenizer="unigrams of long texts",
                modules=(CLS, UNIT),
                settings={**OF_3_3, "prompts": {"query": "query: "}},
            )
        )
    },
    "paraphrase-MiniLM-L6-v2": {
        "paraphrase-MiniLM-L6-v2": Case(MINILM._replace(modules=(MEAN,), max_length=16)),
    },
    "paraphrase-multilingual-mpnet-base-v2": {
        "paraphrase-multilingual-mpnet-base-v2": Case(
            XLM_R._replace(tokenizer="unigrams", modules=(MEAN,), max_length=16)
        ),
    },
    "gte-modernbert-base": {
        "gte-modernbert-base": Case(_MODERNBERT),
    },
    "granite-embedding-english-r2": {
        "granite-embedding-english-r2": Case(
            _MODERNBERT._replace(modules=(CLS, UNIT), weights="bfloat16")
        ),
    },
    "modernbert-embed-base": {
        "modernbert-embed-base": Case(
            _MODERNBERT._replace(modules=(MEAN, UNIT), weights="safetensors", padded_by=12),
            prompts=_NOMIC,
        )
    },
    "nomic-embed-text-v1.5": {
        "nomic-embed-text-v1.5": Case(
            Folder(
                "nomic",
                "WordPiece",
                (MEAN,),
                settings=OF_2_7,
                padded_by=6,
                changes={"config.json": CODE},
            ),
            BY_TORCH,
            prompts=_NOMIC,
        )
    },
    "gte-multilingual-base, gte-*-en-v1.5, snowflake-arctic-embed-m-v2.0": {
        "gte-multilingual-base": Case(
            Folder(
                "bert",
                "unigrams",
                (CLS, UNIT),
                settings=OF_3_0,
                changes={"config.json": {**CODE, "model_type": "new"}},
            ),
            refused("code of its own"),
        )
    },
    "Qwen3-Embedding-0.6B": {
        "Qwen3-Embedding-0.6B": Case(
            Folder(
                "qwen3",
                "byte-level BPE of Qwen2",
                (LAST, UNIT),
                None,
                {**OF_3_3, "prompts": {"query": _INSTRUCT, "document": ""}},
                weights="bfloat16",
                padded_by=9,
            ),
            Expected(jax="expected cls or mean", adapt=_TRAINER),
        )
    },
    "embeddinggemma-300m": {
        "embeddinggemma-300m": Case(
            Folder(
                "gemma",
                "BPE of Gemma",
                (
                    MEAN,
                    dense(64, IDENTITY, bias=False),
                    dense(HIDDEN, IDENTITY, 64, bias=False),
                    UNIT,
                ),
                settings={
                    **OF_3_3,
                    "prompts": {
                        "query": "task: search result | query: ",
                        "document": "title: none | text: ",
                        "Clustering": "task: clustering | query: ",
                    },
                },
            ),
            BY_TORCH,
        )
    },
    "jina-embeddings-v2": {
        "jina-embeddings-v2-base-en": Case(
            MINILM._replace(
                changes={"config.json": {**CODE, "position_embedding_type": "alibi"}},
                weights="alibi",
            ),
            Expected("alibi", "alibi", "alibi"),
        ),
    },
    "jina-embeddings-v3, -v5": {
        "jina-embeddings-v3": Case(
            XLM_R._replace(
                modules=(MEAN, UNIT),
                settings=OF_3_0,
                changes={"config.json": CODE},
                transformer="custom_st.Transformer",
            ),
            refused("code of its own"),
        ),
    },
    "distiluse-base-multilingual-cased-v2": {
        "distiluse-base-multilingual-cased-v2": Case(
            Folder(
                "distilbert",
                "cased WordPiece",
                (MEAN, dense(16, TANH)),
                16,
                OF_2_0,
                weights="bin",
            ),
            BY_TORCH,
        ),
    },
    "LaBSE": {
        "LaBSE": Case(
            Folder(
                "bert",
                "cased WordPiece of BERT",
                (CLS, dense(HIDDEN, TANH), UNIT),
                24,
                OF_2_0,
            )
        ),
    },
    "contriever, contriever-msmarco": {
        "contriever-msmarco": Case(
            Folder("bert", "WordPiece", None, None, weights="bin"), similarity="dot"
        )
    },
    "gtr-t5-base, sentence-t5-base": {
        "gtr-t5-base": Case(
            Folder(
                "t5",
                "unigrams of T5",
                (MEAN, dense(HIDDEN, IDENTITY, bias=False), UNIT),
                settings=OF_2_0,
                weights="bin",
            ),
            BY_TORCH,
        )
    },
    "mdbr-leaf-ir, -mt": {
        "mdbr-leaf-ir": Case(
            MINILM._replace(
                modules=(MEAN, dense(48, IDENTITY), UNIT),
                settings={**OF_3_3, "prompts": {"query": _REPRESENT, "document": ""}},
            )
        )
    },
    "static-retrieval-mrl-en-v1, potion": {
        "static-retrieval-mrl-en-v1": Case(
            MINILM._replace(settings=OF_3_3, saved_as="a table of words"),
            refused("StaticEmbedding"),
        )
    },
}
