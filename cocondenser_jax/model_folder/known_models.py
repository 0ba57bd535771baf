"""Settings that published models need but whose folders lack them, by name on the Hub.

The prompts for queries and passages are those registered for the models in MTEB: the files
`*_models.py` in mteb/models/model_implementations of
https://github.com/embeddings-benchmark/mteb.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from cocondenser_jax.representation import AS_IN_PAPERS, NOTHING_GIVEN, Given


class KnownModel(NamedTuple):
    """Settings of a family of models on the Hub."""

    names: str  # a regular expression for the whole name, in lower case
    prompts: Given = NOTHING_GIVEN
    plain: Given = NOTHING_GIVEN  # pooling and similarity of a folder without modules.json
    scale: float = 0.0  # see `Representation.scale`


_TO_SEARCH = Given(query_prompt="Represent this sentence for searching relevant passages: ")
_OF_E5 = Given(query_prompt="query: ", passage_prompt="passage: ")

KNOWN_MODELS = (
    # Wang et al., arXiv 2212.03533 and 2402.05672, with temperature 0.01; e5_models.py.
    KnownModel(
        r"intfloat/(multilingual-e5-(small|base|large)|e5-(small|base|large)(-v2)?)",
        _OF_E5,
        scale=100.0,
    ),
    # Xiao et al., arXiv 2309.07597; bge_models.py.
    KnownModel(r"baai/bge-(small|base|large)-en(-v1\.5)?", _TO_SEARCH),
    KnownModel(
        r"baai/bge-(small|base|large)-zh(-v1\.5)?",
        Given(query_prompt="为这个句子生成表示以用于检索相关文章："),  # noqa: RUF001
    ),
    # Nussbaum et al., arXiv 2402.01613; nomic_models.py.
    KnownModel(
        r"nomic-ai/(nomic-embed-text-v(1|1\.5|2-moe)|modernbert-embed-base)",
        Given(query_prompt="search_query: ", passage_prompt="search_document: "),
    ),
    # Merrick et al., arXiv 2405.05374, and Yu et al., arXiv 2412.04506; arctic_models.py.
    KnownModel(r"snowflake/snowflake-arctic-embed-(xs|s|m|m-long|m-v1\.5|l)", _TO_SEARCH),
    KnownModel(r"snowflake/snowflake-arctic-embed-(m|l)-v2\.0", Given(query_prompt="query: ")),
    KnownModel(r"mixedbread-ai/mxbai-embed-large-v1", _TO_SEARCH),  # mixedbread_ai_models.py
    KnownModel(r"mongodb/mdbr-leaf-(ir|mt)", _TO_SEARCH),  # arXiv 2509.12539; mdbr_models.py
    # Izacard et al., arXiv 2112.09118: mean over all tokens, inner product.
    KnownModel(r"facebook/m?contriever(-msmarco)?", plain=Given(pooling="mean", similarity="dot")),
    # [CLS] and inner product: arXiv 2104.08253, 2108.05540, 2208.07670 and 2205.12035.
    KnownModel(r"luyu/(co-)?condenser(-(marco|wiki|marco-retriever))?", plain=AS_IN_PAPERS),
    KnownModel(r"caskcsg/cotmae_base_(uncased|msmarco_retriever)", plain=AS_IN_PAPERS),
    KnownModel(r"shitao/retromae(_(msmarco|beir|wiki)(_finetune|_distill)?)?", plain=AS_IN_PAPERS),
)


def find_known_model(name: str) -> KnownModel | None:
    """Returns the known settings of a model, by its name on the Hub; None for others."""
    found = (known for known in KNOWN_MODELS if re.fullmatch(known.names, name.lower()))
    return next(found, None)


def find_namesake(names: Iterable[str]) -> tuple[str, Given] | None:
    """Returns the first name that ends like a known model's name, and that model's prompts.

    Only a hint: the folder may hold another model, such as one trained further from it.
    """
    for name in names:
        last = name.rstrip("/").rpartition("/")[2].lower()
        for known in KNOWN_MODELS:
            is_named_so = re.fullmatch(known.names.partition("/")[2], last)
            if is_named_so and known.prompts != NOTHING_GIVEN:
                return last, known.prompts
    return None
